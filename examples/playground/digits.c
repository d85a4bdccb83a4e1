/* The panels with digits: classify, fill in, dream, attack. The page shows the code between the
   marks [name] and [end]. */
#include "page.h"

enum {
    SIDE = 28, PIXELS = SIDE * SIDE, CLASSES = 10,
    CHAINS = 10,                                   /* as fast as one: there are 16 lanes */
    POINTS = 4000
};
static jem_net *nets[2];                           /* the JEM; a plain classifier */
static jem_rng rng;

static float stroke[3 * POINTS];                   /* x, y in 0..1; 0 where a new line begins */
static float seen[PIXELS], slope[PIXELS], hidden[PIXELS], known[CHAINS * PIXELS];
static float filled[CHAINS * PIXELS];
static float chance[CHAINS * CLASSES], found[PIXELS];
static float chain[CHAINS * PIXELS], shown[CHAINS * PIXELS];
static float result[8];
static float sight[CHAINS];                        /* the verdict on each chain */

PAGE(int, load_net)(int which, const void *bytes, int size);
PAGE(float *, place)(int what);
PAGE(int, has_score)(void);
PAGE(float, usual_weight)(void);
PAGE(void, centre)(int n);
PAGE(int, answer)(void);
PAGE(const char *, reason_name)(int reason);
PAGE(int, fill_in)(int ways, int seed);
PAGE(void, dream_fresh)(int which, int seed);
PAGE(void, dream_poke)(int which, float x, float y, float size);
PAGE(void, dream_wish)(int kind, int a, int b, float weight, float temperature);
PAGE(int, dream)(int steps, float step, float noise);
PAGE(int, dream_show)(int clean);
PAGE(int, fool)(int which, int label, float eps, int l2, int steps, int on);

PAGE(int, load_net)(int which, const void *bytes, int size) {
    jem_archive *a = jem_archive_parse(ctx, bytes, (size_t)size);
    jem_net *net = jem_net_from_archive(ctx, a);
    jem_archive_free(a);
    rng = jem_rng_seed(1);
    if (!net) return 0;
    if (net->channels != 1 || net->height != SIDE || net->width != SIDE ||
        net->classes != CLASSES) {
        jem_net_free(net);
        jem_fail(ctx, JEM_BAD_SHAPE, "the page requires a network of 28 x 28 grey pixels and 10 "
                                     "classes");
        return 0;
    }
    jem_net_set_meta(net, "jem.temperature", NULL);          /* bars show p(y|x) without it */
    jem_net_free(nets[which]);
    nets[which] = net;
    return 1;
}
PAGE(float *, place)(int what) {
    float *const all[] = {
        seen, slope, hidden, chance, found, chain, shown, result, stroke, sight
    };
    return all[what];
}
/* Returns 1 if the JEM has learned a score, else 0. */
PAGE(int, has_score)(void) { return nets[0]->noise_hi > 0; }
/* Returns the weight of log p(y|x) in samples of a class. */
PAGE(float, usual_weight)(void) { return jem_net_query(nets[0], NULL).weight; }

/* ---- draw ------------------------------------------------------------------------------------ */

/* Returns the ink of a drawing p[n][3] at a point. */
static float ink_at(int n, const float *p, float x, float y) {
    float nearest = 1e9f;
    for (int i = 0; i < n; i++, p += 3) {
        const float *from = i && p[2] != 0 ? p - 3 : p;
        const float ux = p[0] - from[0];
        const float uy = p[1] - from[1];
        const float vx = x - from[0];
        const float vy = y - from[1];
        const float length = ux * ux + uy * uy;
        const float t = length > 0 ? fminf(1, fmaxf(0, (ux * vx + uy * vy) / length)) : 0;
        nearest = fminf(nearest, hypotf(vx - t * ux, vy - t * uy));
    }
    return fminf(1, fmaxf(0, 1.9f - nearest));     /* a pen about 3 pixels wide, with soft edges */
}
/* Centres a drawing like the digits of MNIST: its box scaled to 20 pixels, its centre of mass in
   the middle of 28 x 28, ink 1, paper -1. */
PAGE(void, centre)(int n) {
    float lo[2] = { 1, 1 };
    float hi[2] = { 0, 0 };
    float at[2] = { 0, 0 };
    float mass = 0;
    for (int i = 0; i < 2 * n; i++) {
        float *v = stroke + 3 * (i / 2) + i % 2;
        lo[i % 2] = fminf(lo[i % 2], *v);
        hi[i % 2] = fmaxf(hi[i % 2], *v);
    }
    const float box = fmaxf(0.12f, fmaxf(hi[0] - lo[0], hi[1] - lo[1]));
    const float scale = 17 / box;
    for (int i = 0; i < 2 * n; i++) {
        float *v = stroke + 3 * (i / 2) + i % 2;
        *v = (*v - (lo[i % 2] + hi[i % 2]) / 2) * scale + 14;
    }
    for (int k = 0; k < PIXELS; k++) {
        const float x = (float)(k % SIDE) + .5f;
        const float y = (float)(k / SIDE) + .5f;
        const float ink = ink_at(n, stroke, x, y);
        mass += ink;
        at[0] += ink * x;
        at[1] += ink * y;
    }
    const float dx = mass > 0 ? at[0] / mass - 14 : 0;
    const float dy = mass > 0 ? at[1] / mass - 14 : 0;
    for (int k = 0; k < PIXELS; k++)
        seen[k] = 2 * ink_at(n, stroke, (float)(k % SIDE) + .5f + dx,
                             (float)(k / SIDE) + .5f + dy) - 1;
}

/* Rates the familiarity of a picture: the fraction of known digits that are less
   typical. */
enum { FAMILIAR, ODD, STRANGE, UNKNOWN };
static int verdict(const jem_answer *a) {
    switch (jem_judge(a->familiarity)) {
    case JEM_VERDICT_FAMILIAR: return FAMILIAR;
    case JEM_VERDICT_ODD: return ODD;
    case JEM_VERDICT_STRANGE: return STRANGE;
    default: return UNKNOWN;                       /* the network is not calibrated */
    }
}

/* Returns why a picture is odd or strange, "" without a reason. */
PAGE(const char *, reason_name)(int reason) { return jem_reason_name((jem_reason)reason); }

static void tell(const jem_answer *a) {
    result[0] = (float)a->label;
    result[1] = a->probability;
    result[2] = a->log_density;
    result[3] = a->familiarity;
    result[4] = (float)verdict(a);
    result[5] = (float)a->reason;
}

/* [draw] */
PAGE(int, answer)(void) {
    jem_answer a;
    if (jem_classify(nets[0], seen, 1, &a) != JEM_OK) return 0;
    const jem_mark mark = jem_begin(ctx);
    jem_tensor *x = jem_input(ctx, seen, 1, 1, SIDE, SIDE);
    jem_tensor *logits = jem_forward(nets[0], x, 0);                   /* f(x)[y] */
    jem_read(jem_exp(ctx, jem_log_softmax(ctx, logits)), chance);      /* p(y|x) */
    jem_grad(jem_logp(ctx, x, nets[0]), x);
    jem_read_grad(x, slope);                                           /* d log p(x)/dx */
    jem_end(ctx, mark);
    tell(&a);
    return jem_ok(ctx);
}
/* [end] */

static int fill_steps;
static int fill_watch(void *user, int step, jem_tensor *x) {
    (void)user;
    (void)step;
    if (++fill_steps % 8 == 0 && jem_read(x, shown) == JEM_OK) progress(fill_steps);
    return 0;
}
/* [fill] Samples the unknown pixels by chains that keep the known ones. */
PAGE(int, fill_in)(int ways, int seed) {
    jem_impute_desc how = jem_net_impute_desc(nets[0]);
    how.walk.watch = how.denoise.watch = fill_watch;
    if (how.denoise.steps > 0) {               /* a page has less time */
        how.denoise.steps = 150;
        how.denoise.beta = 0.038f;
        how.walk.steps = 150;
    }
    for (int k = 0; k < ways * PIXELS; k++) {
        filled[k] = seen[k % PIXELS];
        known[k] = hidden[k % PIXELS] == 0;
    }
    jem_rng own = jem_rng_seed((uint64_t)seed);
    const jem_mark mark = jem_begin(ctx);
    jem_tensor *x = jem_input(ctx, filled, ways, 1, SIDE, SIDE);
    jem_impute(ctx, jem_logp, nets[0], x, known, &how, &own);
    jem_read(x, shown);
    jem_end(ctx, mark);
    fill_steps = 0;
    return jem_ok(ctx);
}
/* [end] */

/* ---- dream ----------------------------------------------------------------------------------- */

enum { ANY, CLASS, EACH, OR, AND, NOT };
typedef struct wish { int kind, a, b, labels[CHAINS], others[CHAINS]; float weight; } wish;
static wish wanted = { 0, 0, 0, { 0 }, { 0 }, 1 };
static float heat = 1;                             /* temperature of the walk: 1 is the usual */
static int age[CHAINS];

/* [wish] The target of the chains: a density composed of p(x) and p(y|x). */
static jem_tensor *wished(jem_ctx *c, jem_tensor *x, void *user) {
    const wish *w = (const wish *)user;
    jem_tensor *f = jem_forward(nets[0], x, 0);
    jem_tensor *logp = nets[0]->log_density ? nets[0]->log_density : jem_logsumexp(c, f);
    logp = jem_scale(c, logp, nets[0]->scale);                                 /* log p(x) */
    if (nets[0]->shift) logp = jem_add(c, logp, nets[0]->shift);
    if (w->kind != ANY) {
        jem_tensor *log_py = jem_log_softmax(c, f);                            /* log p(y|x) */
        jem_tensor *a = jem_gather(c, log_py, w->labels);
        jem_tensor *b = jem_gather(c, log_py, w->others);
        if (w->kind == OR) a = jem_logsumexp(c, jem_concat(c, a, b));
        if (w->kind == AND) a = jem_add(c, a, b);
        if (w->kind == NOT)                        /* with a floor, or 'not' would be unbounded */
            a = jem_sub(c, a, jem_log(c, jem_add_constant(c, jem_exp(c, b), 1e-3f)));
        logp = jem_add(c, logp, jem_scale(c, a, w->weight));
    }
    return logp;
}
/* [end] */

PAGE(void, dream_wish)(int kind, int a, int b, float weight, float temperature) {
    wanted.kind = kind;
    wanted.a = a;
    wanted.b = b;
    wanted.weight = weight;
    heat = temperature;
}

/* [fresh] Starts a chain from noise. */
PAGE(void, dream_fresh)(int which, int seed) {
    float *x = chain + which * PIXELS;
    const float high = nets[0]->noise_hi;
    if (seed > 0) rng = jem_rng_seed((uint64_t)seed);
    if (high > 0) jem_fill_normal(ctx, &rng, x, PIXELS, nets[0]->mean, high);
    else jem_fill_uniform(ctx, &rng, x, PIXELS, -1, 1);
    age[which] = 0;
}
/* [end] */

/* Adds noise, most of it around the click. Some noise everywhere lets the chain also rebuild the
   surroundings: it estimates one noise level for the whole image, and would keep a blot on a clean
   one. */
PAGE(void, dream_poke)(int which, float x, float y, float size) {
    const float most = nets[0]->noise_hi > 0 ? nets[0]->noise_hi : 1;
    for (int k = 0; k < PIXELS; k++) {
        const float far = hypotf((float)(k % SIDE) + .5f - x, (float)(k / SIDE) + .5f - y);
        const float noise = fmaxf(most * expf(-far * far / (2 * size * size)), 0.35f * most);
        chain[which * PIXELS + k] += noise * jem_rng_normal(&rng);
    }
    age[which] = age[which] < 60 ? age[which] : 60;        /* recently started from noise */
}

/* Copies the chains that are `young`, or the others, to x; fills in their wish. */
static int pick(int young, int until, float *x, wish *w) {
    int n = 0;
    *w = wanted;
    for (int i = 0; i < CHAINS; i++) {
        if ((age[i] < until) != young) continue;
        memmove(x + n * PIXELS, chain + i * PIXELS, PIXELS * sizeof *x);
        w->labels[n] = wanted.kind == EACH ? i : wanted.a;
        w->others[n++] = wanted.b;
    }
    return n;
}
/* Copies them back from x. */
static void put_back(int young, int until, const float *x, int steps) {
    for (int i = 0, n = 0; i < CHAINS; i++) {
        if ((age[i] < until) != young) continue;
        memcpy(chain + i * PIXELS, x + n++ * PIXELS, PIXELS * sizeof *x);
        age[i] += steps;
    }
}

/* [dream] */
PAGE(int, dream)(int steps, float step, float noise) {
    static float x[CHAINS * PIXELS];
    const jem_generate_desc usual = jem_net_generate_desc(nets[0]);
    const int until = usual.denoise.steps;         /* 0 without a score */
    for (int young = 0; young <= 1; young++) {     /* a chain that comes of age waits */
        wish w;
        const int n = pick(young, until, x, &w);
        if (!n) continue;
        const jem_mark mark = jem_begin(ctx);
        jem_tensor *t = jem_input(ctx, x, n, 1, SIDE, SIDE);
        if (young) {                               /* high noise: estimate it, remove some */
            jem_denoise_desc d = usual.denoise;
            d.steps = steps;
            d.fraction = fminf(1, d.fraction * step / usual.walk.step_size);
            d.beta = fminf(1, fmaxf(0, 1 - (1 - d.beta) * noise / usual.walk.noise_std));
            jem_denoise(ctx, wished, &w, t, &d, noise > 0 ? &rng : NULL);
        } else {                                   /* x <- x + step d log p/dx + noise N(0,I) */
            jem_sgld_desc d = jem_sgld_desc_default();
            d.steps = steps;
            d.step_size = step;
            d.noise_std = noise * sqrtf(heat);     /* twice the noise is four times as hot */
            d.clamp_lo = -2;
            d.clamp_hi = 2;
            jem_sgld(ctx, wished, &w, t, &d, &rng);
        }
        if (jem_read(t, x) == JEM_OK) put_back(young, until, x, steps);
        jem_end(ctx, mark);
    }
    return jem_ok(ctx);
}
/* [end] */

/* Computes the chains to show, optionally without their last noise, their classes and verdicts.
   These are on what the page shows: pixels between black and white. */
PAGE(int, dream_show)(int clean) {
    const jem_mark mark = jem_begin(ctx);
    wish w;
    pick(0, 0, chain, &w);                         /* all of them, only to fill in w */
    jem_tensor *x = jem_input(ctx, chain, CHAINS, 1, SIDE, SIDE);
    if (clean && nets[0]->noise_lo > 0) {
        const float last_sigma = jem_net_generate_desc(nets[0]).last_sigma;
        const jem_denoise_desc last = jem_denoise_desc_clean(last_sigma);
        jem_denoise(ctx, wished, &w, x, &last, NULL);
    }
    jem_read(x, shown);
    jem_read(jem_exp(ctx, jem_log_softmax(ctx, jem_forward(nets[0], x, 0))), chance);
    jem_end(ctx, mark);
    for (int k = 0; k < CHAINS * PIXELS; k++) shown[k] = fminf(1, fmaxf(-1, shown[k]));
    jem_answer a[CHAINS];
    if (jem_classify(nets[0], shown, CHAINS, a) != JEM_OK) return 0;
    for (int k = 0; k < CHAINS; k++) sight[k] = (float)verdict(a + k);
    return jem_ok(ctx);
}

/* ---- fool it --------------------------------------------------------------------------------- */

/* [fool] Attacks the JEM or the plain classifier. on: takes all steps, even after the answer has
   changed, for the curve. */
PAGE(int, fool)(int which, int label, float eps, int l2, int steps, int on) {
    int fooled = 0;
    jem_answer a;
    jem_rng own = jem_rng_seed(1);
    jem_attack_desc how = jem_attack_desc_default();
    how.eps = 2 * eps;                             /* pixels are -1..1 here, 0..1 on the page */
    how.l2 = l2;
    how.steps = steps;
    how.random_start = 0;
    how.all_steps = on;
    memcpy(found, seen, sizeof found);
    if (eps > 0) jem_attack(nets[which], seen, &label, 1, &how, &own, found, &fooled);
    if (jem_classify(nets[which], found, 1, &a) != JEM_OK) return 0;
    const jem_mark mark = jem_begin(ctx);
    jem_tensor *x = jem_input(ctx, found, 1, 1, SIDE, SIDE);
    jem_read(jem_exp(ctx, jem_log_softmax(ctx, jem_forward(nets[which], x, 0))), chance);
    jem_end(ctx, mark);
    tell(&a);
    return jem_ok(ctx);
}
/* [end] */
