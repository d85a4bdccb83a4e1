/* QUESTION  What does sampling look like while it happens?

   FORMULA   Langevin dynamics x <- x + a/2 d log p/dx + sqrt(a) N(0,I), with rejections (MALA), at
             one temperature or at several; noise-blind denoising, then Langevin dynamics.

   LOOK FOR  films_cross.png: chains start in the left of two modes, which has 30% of the
             probability. At one temperature they stay; tempered chains cross, until about 65% are
             on the right (the share is above). films_digit.png: ten chains from noise to digit, a
             class each.

   TRY       HOTTEST 3: do the chains still cross? PER_SHOT 100: how close to 70% do they get?

   RUN       build/films                 Pictures: build/pictures/films_*.png (animated) */
#define JEM_IMPLEMENTATION
#include "jem.h"

#include "worlds.h"

#define HOTTEST 12
enum { SIZE = 180, CHAINS = 60, LADDER = 5, CROSS = 25, PER_SHOT = 50, SHOTS = 36, ZOOM = 3 };

/* ---- two modes ------------------------------------------------------------------------------- */

static jem_tensor *gaussian(jem_ctx *ctx, jem_tensor *x, float mean, float std) {
    return jem_scale(ctx, jem_square(ctx, jem_add_constant(ctx, x, -mean)), -0.5f / (std * std));
}
/* Returns log p of u ~ .3 N(-1.8, .35^2) + .7 N(1.8, .35^2), v ~ N(0, .7^2). */
static jem_tensor *two_modes(jem_ctx *ctx, jem_tensor *x, void *unused) {
    (void)unused;
    jem_tensor *u = jem_slice(ctx, x, 0, 1);
    jem_tensor *v = jem_slice(ctx, x, 1, 1);
    jem_tensor *left = jem_add_constant(ctx, gaussian(ctx, u, -1.8f, 0.35f), logf(0.3f));
    jem_tensor *right = jem_add_constant(ctx, gaussian(ctx, u, 1.8f, 0.35f), logf(0.7f));
    u = jem_logsumexp(ctx, jem_concat(ctx, left, right));
    return jem_add(ctx, u, gaussian(ctx, v, 0, 0.7f));
}

typedef struct history {
    float x[CROSS][2 * CHAINS], now[2 * CHAINS * LADDER];
    int ladder;
} history;

static int record(void *user, int step, jem_tensor *x) {
    history *h = (history *)user;
    if (step % PER_SHOT || step / PER_SHOT >= CROSS) return 0;
    if (jem_read(x, h->now) != JEM_OK) return 1;
    for (int i = 0; i < CHAINS; i++) {                         /* those of temperature 1 */
        memcpy(h->x[step / PER_SHOT] + 2 * i, h->now + 2 * i * h->ladder, 2 * sizeof(float));
    }
    return 0;
}

static int film_cross(jem_ctx *ctx) {
    static history both[2];
    reel r = { NULL, 0, 0, 0, CROSS };
    plot p, empty;
    sheet s;
    memset(&p, 0, sizeof p);
    empty = p;
    int ok = world_grid(&p, SIZE) && world_grid(&empty, SIZE);
    for (int k = 0; k < 2 && ok; k++) {
        jem_rng rng = jem_rng_seed(1);
        jem_mcmc_desc how = jem_mcmc_desc_default();
        how.temperatures = k ? LADDER : 1;
        both[k].ladder = how.temperatures;
        how.hottest = HOTTEST;
        how.step_size = 0.28f;
        how.leapfrog = 1;
        how.steps = CROSS * PER_SHOT;
        how.watch = record;
        how.watch_user = both + k;
        const int n = CHAINS * how.temperatures;
        jem_fill_uniform(ctx, &rng, both[k].now, 2 * n, -2.3f, -1.3f);
        jem_tensor *x = jem_input(ctx, both[k].now, n, 2, 1, 1);
        ok = jem_mcmc(ctx, two_modes, NULL, x, &how, &rng, NULL) == JEM_OK;
        jem_reset(ctx);
    }
    if (ok) {
        plot_function(&empty, ctx, two_modes, NULL);
        plot_density(&empty, plot_log_z(&empty));
    }
    for (int t = 0; ok && t < CROSS; t++) {
        ok = sheet_create(&s, 2, 1, SIZE, 0);
        for (int k = 0; ok && k < 2; k++) {
            char title[64];
            int right = 0;
            memcpy(p.rgb, empty.rgb, (size_t)p.w * (size_t)p.h * 3);
            for (int i = 0; i < CHAINS; i++) right += both[k].x[t][2 * i] > 0;
            plot_dots(&p, both[k].x[t], CHAINS, 3, 0xffffff);
            right = 100 * right / CHAINS;
            snprintf(title, sizeof title, "%s: %d%%", k ? "tempered" : "MALA", right);
            sheet_put(&s, k, 0, &p, title);
            if (t < CROSS - 1) continue;
            printf("%s: %d%% right\n", k ? "tempered" : "one temperature", right);
        }
        ok = ok && reel_add(&r, s.paper.w, s.paper.h, s.paper.rgb);
        plot_free(&s.paper);
    }
    plot_free(&p);
    plot_free(&empty);
    return reel_close(&r, "build/pictures/films_cross.png", 180) && ok;
}

/* ---- from noise to digit --------------------------------------------------------------------- */

static int film_digit(jem_ctx *ctx, int steps) {
    enum { DIGITS = 10, ACROSS = 5, W = ACROSS * DIGIT * ZOOM, H = DIGITS / ACROSS * DIGIT * ZOOM };
    static float x[DIGITS][DIGIT_PIXELS], shots[DIGITS][SHOTS][DIGIT_PIXELS];
    static unsigned char rgb[H][W][3];
    reel r = { NULL, 0, 0, 0, SHOTS };
    int labels[DIGITS], moments[SHOTS];
    jem_net *net = jem_load(ctx, SHIPPED_PATH);
    if (!net) return 0;
    for (int i = 0; i < DIGITS; i++) labels[i] = i;
    for (int t = 0; t < SHOTS; t++) moments[t] = 1 + (2 * steps - 1) * t / (SHOTS - 1);
    chains_film film = { moments, SHOTS, DIGITS, 1, x[0], shots[0][0], 0, 0 };
    jem_rng rng = jem_rng_seed(3);
    jem_query query = jem_net_query(net, labels);
    jem_generate_desc how = jem_net_generate_desc(net);
    how.denoise.steps = how.walk.steps = steps;
    how.denoise.watch = how.walk.watch = chains_film_watch;
    how.denoise.watch_user = how.walk.watch_user = &film;
    jem_tensor *t = jem_zeros(ctx, DIGITS, 1, DIGIT, DIGIT);
    int ok = t && jem_generate(ctx, jem_logp_guided, &query, t, &how, &rng) == JEM_OK;
    for (int k = 0; ok && k < film.taken; k++) {
        for (int i = 0; i < H; i++) {
            for (int j = 0; j < W; j++) {
                const int digit = i / (DIGIT * ZOOM) * ACROSS + j / (DIGIT * ZOOM);
                const int at = i / ZOOM % DIGIT * DIGIT + j / ZOOM % DIGIT;
                const float v = (shots[digit][k][at] + 1) / 2;
                /* 16 greys make a smaller file. */
                const int grey = (int)(fmaxf(0, fminf(v, 1)) * 15 + 0.5f) * 17;
                memset(rgb[i][j], grey, 3);
            }
        }
        ok = reel_add(&r, W, H, rgb[0][0]);
    }
    jem_reset(ctx);
    jem_net_free(net);
    return reel_close(&r, "build/pictures/films_digit.png", 160) && ok;
}

int main(int argc, char **argv) {
    const int quick = is_quick(argc, argv);
    jem_ctx *ctx = jem_ctx_create(NULL);
    int ok = film_cross(ctx);
    ok = ok && film_digit(ctx, quick ? 40 : 150);
    ok = !report(ctx) && ok;
    jem_ctx_free(ctx);
    return !ok;
}
