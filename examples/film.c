/* QUESTION  How does a density change during training, and do its samples show it?

   FORMULA   p(x) = sum over y of exp f(x)[y] / Z, learned by contrastive divergence and
             cross-entropy, as in worlds.c. At every frame Z is summed over a grid, and also
             estimated by annealed importance sampling (Neal 2001), which needs no grid.

   LOOK FOR  Columns are moments of training. Upper row: the learned density. Lower row: short-run
             samples, the ends of 10,000 chains of 20 steps from noise, in the same colours; the
             last column shows as many data points. Below: the mean log p of new points, with
             either Z, and the maximum, that of the true density. The samples improve to the end;
             the density was best after 430 updates, then the outer circle fades until it is gone.
             Chains cross the gap too slowly for training to notice how much probability is on
             either side. The loss does not show it, either: it only compares f at the samples with
             f at the data. film.png is animated: truth, density, samples.

   TRY       build/film gaussians: which of the eight are lost? pinwheel: why does that succeed?
             how.reinit = 1 in world_recipe: no chain is kept. Does the outer circle stay?

   RUN       build/film [world]          Pictures: build/pictures/film_strip.png, film.png */
#define JEM_IMPLEMENTATION
#include "jem.h"

#include "worlds.h"

enum { UPDATES = 2000, STRIP = 6, FRAMES = 31, SHORT = 10000, SIZE = 180 };

typedef struct film {
    world_kind kind;
    plot p;
    sheet strip;
    unsigned char *frames;                         /* pictures of w x h */
    int w, h, taken, count;                        /* frames in total; on the strip */
    float at[FRAMES], by_grid[FRAMES], by_ais[FRAMES], best[FRAMES];
} film;

/* Returns the update of frame k: frames are denser at the beginning, where more changes. */
static int moment(int k, int count, int updates) {
    const double t = k / (count - 1.0);
    return (int)(updates * t * t * t + 0.5);
}

/* The likelihood with either Z, for the curves. */
static void measure(film *f, jem_net *net, int update, double log_z) {
    const double logp = world_mean_logp(f->kind, net);
    const int k = f->taken;
    const jem_ais_result ais = world_ais(net);
    f->at[k] = (float)update;
    f->by_grid[k] = (float)(logp - log_z);
    f->by_ais[k] = (float)(logp - ais.log_z);
    f->best[k] = (float)world_mean_logp(f->kind, NULL);
    printf("update %5d: log Z %6.2f, by AIS %6.2f +- %.2f; mean log p of new points %.3f, truth "
           "%.3f\n", update, log_z, ais.log_z, ais.error, logp - log_z, (double)f->best[k]);
    fflush(stdout);
}

/* Draws the true density, and as many points of it as there are chains, at the end of the strip. */
static void put_truth(film *f, const char *title) {
    static float x[2 * SHORT];
    static int y[SHORT];
    jem_rng rng = jem_rng_seed(3);
    sheet_put(&f->strip, STRIP, 0, &f->p, title);
    world_sample(f->kind, &rng, SHORT, x, y);
    plot_histogram(&f->p, SHORT, x, 5);
    plot_density(&f->p, 0);
    sheet_put(&f->strip, STRIP, 1, &f->p, "data");
}

static int shoot(film *f, jem_net *net, int update) {
    static float x[2 * SHORT];
    const int column = f->taken * (STRIP - 1) % (f->count - 1) ? -1 :
                       f->taken * (STRIP - 1) / (f->count - 1);
    char title[64];
    sheet s;
    plot *p = &f->p;
    if (!sheet_create(&s, 3, 1, SIZE, 0)) return 0;
    plot_function(p, net->ctx, jem_logp, net);
    const double log_z = plot_log_z(p);
    plot_density(p, log_z);
    measure(f, net, update, log_z);
    snprintf(title, sizeof title, "update %d: %.2f", update, (double)f->by_grid[f->taken]);
    sheet_put(&s, 1, 0, p, title);
    if (column >= 0) sheet_put(&f->strip, column, 0, p, title);

    world_walk(net, SHORT, 20, NULL, NULL, x);
    plot_histogram(p, SHORT, x, 5);
    plot_density(p, 0);
    sheet_put(&s, 2, 0, p, "short-run");
    if (column >= 0) sheet_put(&f->strip, column, 1, p, "short-run");

    plot_truth(p, f->kind);
    plot_density(p, 0);
    snprintf(title, sizeof title, "truth: %.2f", (double)f->best[f->taken]);
    sheet_put(&s, 0, 0, p, title);
    if (column == STRIP - 1) put_truth(f, title);
    const size_t size = (size_t)s.paper.w * (size_t)s.paper.h * 3;
    f->w = s.paper.w;
    f->h = s.paper.h;
    if (!f->frames) f->frames = (unsigned char *)malloc((size_t)f->count * size);
    if (f->frames) memcpy(f->frames + (size_t)f->taken++ * size, s.paper.rgb, size);
    plot_free(&s.paper);
    return f->frames != NULL;
}

static int learn(film *f, jem_ctx *ctx, int updates) {
    jem_net *net = world_net(ctx, f->kind);
    const jem_train_desc how = world_recipe(updates);
    jem_trainer *tr = jem_trainer_create(net, &how);
    jem_rng rng = jem_rng_seed(1);
    int ok = tr != NULL;
    for (int i = 0; ok && jem_ok(ctx) && f->taken < f->count; i++) {
        if (i >= moment(f->taken, f->count, updates)) {
            jem_trainer_use_average(tr, 1);
            ok = shoot(f, net, i);
            jem_trainer_use_average(tr, 0);
        }
        if (i < updates) world_learn(tr, f->kind, &rng);
    }
    jem_trainer_free(tr);
    jem_net_free(net);
    return ok;
}

int main(int argc, char **argv) {
    const int quick = is_quick(argc, argv);
    static film f;
    memset(&f, 0, sizeof f);
    f.kind = argc > 1 && !quick ? world_find(argv[1]) : CIRCLES;
    f.count = quick ? STRIP : FRAMES;
    if (f.kind == WORLDS || !sheet_create(&f.strip, STRIP + 1, 2, SIZE, 260) ||
        !panel_create(&f.p, &f.strip)) return 1;
    jem_ctx *ctx = jem_ctx_create(NULL);
    int ok = learn(&f, ctx, quick ? 20 : UPDATES);
    const curve curves[3] = {                      /* AIS wide and pale, below the other */
        { "by AIS", 0xf2bf99, f.at, f.by_ais, f.taken, 7 },
        { "by a grid", INK_RED, f.at, f.by_grid, f.taken, 2 },
        { "truth", INK_BLUE, f.at, f.best, f.taken, 2 }
    };
    sheet_chart(&f.strip, "mean log p of new points", "updates", curves, 3, 0, 0);
    ok = !report(ctx) && ok && sheet_close(&f.strip, "build/pictures/film_strip.png") &&
         picture_reduce(f.frames, (ptrdiff_t)f.taken * f.w * f.h) &&
         picture_film("build/pictures/film.png", f.frames, f.taken, f.w, f.h, 200, 3000);
    if (ok) printf("picture: build/pictures/film.png, of %d frames\n", f.taken);
    free(f.frames);
    plot_free(&f.p);
    jem_ctx_free(ctx);
    return !ok;
}
