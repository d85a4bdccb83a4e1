/* QUESTION  What does learning look like while it happens, and what does failing look like?

   FORMULA   grad log p(x) = grad f(x) - E[grad f(x')], x' from the model: data lift f, samples
             lower it. A rate of 30 times the healthy one: the samples no longer follow the model.

   LOOK FOR  films_push.png: a density of one number. Blue arrows at data lift the curve, orange
             ones at samples lower it; where both are equally dense, it rests. The grey curve is the
             truth.
             films_diverge.png: two trainings of the same network on four rings. On the right the
             landscape becomes steeper, until it throws all samples into two corners of the box;
             below, f(data) - f(sample), which is an alarm.

   TRY       RATE 0.05f: does the curve come to rest? STEPS 1: what happens between the modes?

   RUN       build/films_learn       Pictures: build/pictures/films_push.png, films_diverge.png */
#define JEM_IMPLEMENTATION
#include "jem.h"

#include "worlds.h"

/* ---- data push up, samples push down --------------------------------------------------------- */

#define RATE 0.01f
#define LINE 3.0f                                  /* numbers are in [-3,3] */
enum { PUSHES = 300, STEPS = 20, BATCH = 128, FRAMES = 35, CURVE = 120, ARROWS = 28 };
enum { WIDE = 480, HIGH = 320 };

/* Draws n numbers of .35 N(-1.3, .35^2) + .65 N(1, .5^2). */
static void numbers(jem_rng *rng, int n, float *x) {
    for (int i = 0; i < n; i++) {
        const int left = jem_rng_uniform(rng) < 0.35f;
        x[i] = left ? -1.3f + 0.35f * jem_rng_normal(rng) : 1 + 0.5f * jem_rng_normal(rng);
    }
}
static float numbers_logp(float x) {
    const float a = (x + 1.3f) / 0.35f;
    const float b = (x - 1) / 0.5f;
    return logf(0.35f / 0.35f * expf(-a * a / 2) + 0.65f / 0.5f * expf(-b * b / 2)) - 0.9189385f;
}

/* Computes log p of the network at n numbers; log Z is a sum over [-3,3]. */
static int line_logp(jem_net *net, int n, const float *x, float *logp) {
    enum { GRID = 600 };
    static float grid[GRID], f[GRID];
    double z = 0;
    for (int i = 0; i < GRID; i++) grid[i] = LINE * (2 * ((float)i + 0.5f) / GRID - 1);
    const jem_mark mark = jem_begin(net->ctx);
    const int ok =
        jem_read(jem_logp(net->ctx, jem_input(net->ctx, grid, GRID, 1, 1, 1), net), f) == JEM_OK &&
        jem_read(jem_logp(net->ctx, jem_input(net->ctx, x, n, 1, 1, 1), net), logp) == JEM_OK;
    jem_end(net->ctx, mark);
    for (int i = 0; i < GRID; i++) z += exp((double)f[i]) * 2 * (double)LINE / GRID;
    for (int i = 0; i < n; i++) logp[i] -= (float)log(z);
    return ok;
}

/* Draws an arrow of `up` units at every point of the curve. */
static int arrows(plot *p, jem_net *net, const float *x, float up, unsigned colour) {
    float logp[ARROWS];
    if (!line_logp(net, ARROWS, x, logp)) return 0;
    for (int i = 0; i < ARROWS; i++) {
        const float y = fmaxf(logp[i], -5) + (up > 0 ? 0.12f : -0.12f);
        const float tip = y + up;
        plot_line(p, x[i], y, x[i], tip, 1.8f, colour);
        plot_line(p, x[i], tip, x[i] - 0.06f, tip - 0.3f * up, 1.8f, colour);
        plot_line(p, x[i], tip, x[i] + 0.06f, tip - 0.3f * up, 1.8f, colour);
    }
    return 1;
}

static int push_frame(plot *p, jem_net *net, int update, const float *data, const float *sample) {
    static float x[CURVE], logp[CURVE];
    char title[64];
    plot paper = *p;                               /* the same picture in pixels, y downwards */
    paper.x0 = paper.y1 = 0;
    paper.x1 = WIDE;
    paper.y0 = HIGH;
    memset(p->rgb, 255, WIDE * HIGH * 3);
    for (int i = 0; i < CURVE; i++) x[i] = LINE * (2 * (float)i / (CURVE - 1) - 1);
    if (!line_logp(net, CURVE, x, logp)) return 0;
    for (int i = 1; i < CURVE; i++)
        plot_line(p, x[i - 1], numbers_logp(x[i - 1]), x[i], numbers_logp(x[i]), 4, 0xd0d0d0);
    if (!arrows(p, net, data, 0.55f, INK_BLUE)) return 0;
    if (!arrows(p, net, sample, -0.55f, INK_RED)) return 0;
    for (int i = 1; i < CURVE; i++)
        plot_line(p, x[i - 1], logp[i - 1], x[i], logp[i], 2.5f, 0x111111);
    snprintf(title, sizeof title, "log p(x) at update %d", update);
    text(&paper, 16, 14, 2.2f, 0x111111, title);
    text(&paper, 16, 42, 2, INK_BLUE, "data lift f,");
    text(&paper, 152, 42, 2, INK_RED, "samples lower it");
    return 1;
}

static int film_push(jem_ctx *ctx, int updates) {
    float x[BATCH];
    reel r = { NULL, 0, 0, 0, FRAMES };
    plot p;
    jem_mlp_desc shape = jem_mlp_desc_default();
    shape.channels = shape.height = shape.width = shape.classes = 1;
    shape.widths[0] = shape.widths[1] = 32;
    jem_net *net = jem_mlp_create(ctx, &shape, 1);
    jem_train_desc how = jem_train_desc_default();
    how.lr = RATE;
    how.schedule.kind = JEM_SCHEDULE_COSINE;
    how.schedule.total = updates;
    how.weights.ce = how.data_noise = 0;
    how.negatives = how.buffer_size = BATCH;
    how.sgld = jem_sgld_desc_langevin(0.02f, STEPS);
    how.restart_lo = how.sgld.clamp_lo = -LINE;
    how.restart_hi = how.sgld.clamp_hi = LINE;
    jem_trainer *trainer = jem_trainer_create(net, &how);
    jem_rng rng = jem_rng_seed(1);
    int ok = trainer && plot_create(&p, WIDE, HIGH, -LINE, LINE, -5.6f, 1);
    for (int i = 1; ok && i <= updates && jem_ok(ctx); i++) {
        const double now = r.taken / (FRAMES - 1.0);
        numbers(&rng, BATCH, x);
        jem_train_step_semi(trainer, NULL, NULL, 0, x, BATCH);
        if (i - 1 < (int)((updates - 1) * now * now + 0.5)) continue;
        const jem_buffer *b = jem_trainer_buffer(trainer);
        ok = b && push_frame(&p, net, i, x, b->data) && reel_add(&r, WIDE, HIGH, p.rgb);
    }
    if (trainer) plot_free(&p);
    jem_trainer_free(trainer);
    jem_net_free(net);
    return reel_close(&r, "build/pictures/films_push.png", 230) && ok;
}

/* ---- a rate that is too high ----------------------------------------------------------------- */

enum { RUNS = 2, SIZE = 160, CHART = 170, SHOTS = 32, POINTS = 70, SEEN = 256 };

/* Frames of a training: log p on the panel with samples, and f(data) - f(sample). */
typedef struct run {
    unsigned char shot[SHOTS][SIZE * SIZE * 3];
    float at[SHOTS], gap[SHOTS];
    int shots, diverged;                           /* the update at which it diverged, or 0 */
} run;

/* Returns the update of a frame: one in eight while the landscape changes fast, then one in 60. */
static int moment(int shot) {
    return shot < 27 ? 8 * (shot + 1) : 216 + 60 * (shot - 26);
}

static void shoot(run *r, plot *p, jem_net *net, const jem_buffer *b, int update, float gap) {
    const float edge = 0.96f * WORLD_BOX;
    plot_function(p, net->ctx, jem_logp, net);
    plot_density(p, plot_log_z(p));
    for (int i = 0, shown = 0; b && i < b->capacity && shown < POINTS; i++) {
        const float *x = b->data + 2 * i;
        if (b->visits[i] <= 0) continue;
        plot_dot(p, fmaxf(-edge, fminf(x[0], edge)), fmaxf(-edge, fminf(x[1], edge)), 2.5f,
                 0xffffff);
        shown++;
    }
    memcpy(r->shot[r->shots], p->rgb, sizeof r->shot[0]);
    r->at[r->shots] = (float)update;
    r->gap[r->shots++] = gap;
}

/* Trains as break_it.c does, with `rate` times the healthy learning rate. */
static int train(jem_ctx *ctx, run *r, plot *p, float rate, int updates) {
    float x[2 * SEEN];
    int y[SEEN];
    jem_net *net = world_net(ctx, RINGS);
    jem_train_desc how = jem_train_desc_default();
    how.max_rollbacks = 0;                         /* no guard: the divergence should be visible */
    how.lr = 1e-3f * rate;
    how.data_noise = 0;
    how.negatives = SEEN;
    how.buffer_size = 4000;
    how.sgld = jem_sgld_desc_langevin(0.01f, 20);
    how.sgld.clamp_lo = how.restart_lo = -WORLD_BOX;
    how.sgld.clamp_hi = how.restart_hi = WORLD_BOX;
    jem_trainer *trainer = jem_trainer_create(net, &how);
    jem_rng rng = jem_rng_seed(1);
    double gap = 0;
    int since = 0;
    for (int i = 0; trainer && i < updates && !r->diverged; i++) {
        world_sample(RINGS, &rng, SEEN, x, y);
        const jem_stats s = jem_train_step(trainer, x, y, SEEN);
        if (s.status != JEM_OK) r->diverged = i;
        gap += (double)(s.f_data - s.f_sample);
        since++;
        if (r->diverged || r->shots == SHOTS || i + 1 < moment(r->shots)) continue;
        shoot(r, p, net, jem_trainer_buffer(trainer), i + 1, (float)(gap / since));
        gap = 0;
        since = 0;
    }
    if (jem_error_status(ctx) == JEM_DIVERGED) {
        printf("rate x %g: %s\n", (double)rate, jem_error(ctx));
        jem_clear_error(ctx);
    }
    jem_trainer_free(trainer);
    jem_net_free(net);
    return r->shots > 0 && jem_ok(ctx);
}

static int film_diverge(jem_ctx *ctx, int updates) {
    static run runs[RUNS];
    static const float rates[RUNS] = { 1, 30 };
    static const char *const names[RUNS] = { "healthy", "rate x 30" };
    static float at[RUNS][SHOTS + 2], gap[RUNS][SHOTS + 2];
    reel r = { NULL, 0, 0, 0, SHOTS };
    plot p;
    sheet s;
    for (int k = 0; k < RUNS; k++) {               /* two points that fix the ends of the axis */
        at[k][1] = (float)moment(SHOTS - 1);
        gap[k][0] = gap[k][1] = NAN;
    }
    if (!world_grid(&p, SIZE)) return 0;
    int ok = 1;
    int last = 0;
    for (int k = 0; k < RUNS && ok; k++) {
        ok = train(ctx, runs + k, &p, rates[k], updates);
        if (runs[k].shots > last) last = runs[k].shots;
    }
    for (int t = 0; t < last && ok; t++) {
        curve curves[RUNS];
        ok = sheet_create(&s, RUNS, 1, SIZE, CHART);
        for (int k = 0; k < RUNS && ok; k++) {
            const run *now = runs + k;
            char title[64];
            const int shown = t < now->shots ? t : now->shots - 1;
            const int over = t > shown;
            const curve c = { "", k ? INK_RED : 0x111111, at[k], gap[k], shown + 3, 2.5f };
            curves[k] = c;
            memcpy(at[k] + 2, now->at, sizeof now->at);
            memcpy(gap[k] + 2, now->gap, sizeof now->gap);
            memcpy(p.rgb, now->shot[shown], sizeof now->shot[0]);
            if (over) snprintf(title, sizeof title, "diverged at %d", now->diverged);
            else snprintf(title, sizeof title, "%s: %d", names[k], (int)now->at[shown]);
            sheet_put(&s, k, 0, &p, title);
        }
        if (ok) {
            sheet_chart(&s, "f(data) - f(sample)", "updates", curves, RUNS, -6, 12);
            ok = reel_add(&r, s.paper.w, s.paper.h, s.paper.rgb);
            plot_free(&s.paper);
        }
    }
    plot_free(&p);
    return reel_close(&r, "build/pictures/films_diverge.png", 250) && ok;
}

int main(int argc, char **argv) {
    const int quick = is_quick(argc, argv);
    jem_ctx *ctx = jem_ctx_create(NULL);
    int ok = film_push(ctx, quick ? 20 : PUSHES);
    ok = ok && film_diverge(ctx, quick ? moment(1) : moment(SHOTS - 1));
    ok = !report(ctx) && ok;
    jem_ctx_free(ctx);
    return !ok;
}
