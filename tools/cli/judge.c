/* Judges of samples. */
#include "tools/cli/system.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cli/judge.h"
#include "tools/cli/memory.h"
#include "tools/cli/train.h"
#include "tools/cli/train_options.h"
#include "tools/support/crc32.h"
#include "tools/support/judge.h"
#include "tools/support/measures.h"
#include "tools/support/pictures.h"

/* ---- jem judge ------------------------------------------------------------------------------- */

typedef struct judge_options {
    char dataset[OPTION_TEXT_SIZE], data[OPTION_TEXT_SIZE], out[OPTION_TEXT_SIZE];
    picture_options pictures;
    int iters, mirror, seed, precision, threads, max_memory, max_file, max_picture;
} judge_options;

#define JUDGE_AT(field) offsetof(judge_options, field)
static const option judge_table[] = {
    { "dataset", OPTION_TEXT, OPTION_NOW, JUDGE_AT(dataset), "NAME", NO_PRESETS("digits"), 0, 0,
      "as in jem train" },
    { "data", OPTION_TEXT, OPTION_NOW, JUDGE_AT(data), "DIR", NO_PRESETS("data"), 0, 0,
      "the folder that tools/get-data filled" },
    PICTURE_OPTIONS(judge_options, OPTION_NOW),
    { "out", OPTION_TEXT, OPTION_NOW, JUDGE_AT(out), "FILE", NO_PRESETS("judge.safetensors"), 0, 0,
      "file for the judge" },
    { "iters", OPTION_INT, OPTION_NOW, JUDGE_AT(iters), "N", NO_PRESETS("6000"), 1, 1e8,
      "number of updates" },
    { "flip", OPTION_FLAG, OPTION_NOW, JUDGE_AT(mirror), "", NO_PRESETS("off"), 0, 0,
      "mirror half of the images" },
    { "seed", OPTION_INT, OPTION_NOW, JUDGE_AT(seed), "N", NO_PRESETS("1234"), 0, 2147483647,
      "seed for all random numbers" },
    COMPUTE_OPTIONS(judge_options, "fast"),
    LIMIT_OPTIONS(judge_options, "0")
};

enum { JUDGE_REAL = 64, JUDGE_FALSE = 32, JUDGE_BATCH = JUDGE_REAL + JUDGE_FALSE };

typedef struct judging {                           /* images of a data set, intact and damaged */
    const data_set *d;
    int mirror;
    jem_rng rng;
    float *a, *b, *plain;                          /* one image each */
} judging;

static int judging_create(judging *j, const data_set *d, int mirror, uint64_t seed) {
    const size_t bytes = (size_t)(d->c * d->h * d->w) * sizeof(float);
    j->d = d;
    j->mirror = mirror;
    j->rng = jem_rng_seed(seed);
    j->a = (float *)malloc(bytes);
    j->b = (float *)malloc(bytes);
    j->plain = (float *)malloc(bytes);
    return j->a && j->b && j->plain;
}
static void judging_free(judging *j) {
    free(j->a);
    free(j->b);
    free(j->plain);
}

/* Returns a random image, moved by up to `reach` pixels, and its label. */
static int judge_draw(judging *j, int reach, float *x) {
    const data_set *d = j->d;
    const int i = jem_rng_below(&j->rng, d->n);
    const int dy = jem_rng_below(&j->rng, 2 * reach + 1) - reach;
    const int dx = jem_rng_below(&j->rng, 2 * reach + 1) - reach;
    const int mirror = j->mirror && jem_rng_below(&j->rng, 2);
    data_floats(d, &i, 1, j->plain);
    move_image(j->plain, x, d->c, d->h, d->w, dy, dx, mirror);
    return d->labels[i];
}

/* Makes damaged images. A colour image may look right when inverted, so only grey ones are
   inverted. */
static void judge_false(judging *j, float *x, int n) {
    const data_set *d = j->d;
    for (int i = 0; i < n; i++, x += d->c * d->h * d->w) {
        int kind = jem_rng_below(&j->rng, JUDGE_KINDS);
        while (d->c > 1 && kind == 6) kind = jem_rng_below(&j->rng, JUDGE_KINDS);
        judge_draw(j, 3, j->a);
        judge_draw(j, 3, j->b);
        judge_damage(&j->rng, kind, j->a, j->b, d->c, d->h, d->w, x, j->plain);
    }
}

static void judge_batch(judging *j, jem_ctx *ctx, float *x, int *y) {
    const data_set *d = j->d;
    const int size = d->c * d->h * d->w;
    for (int i = 0; i < JUDGE_REAL; i++) {         /* samples have slight noise left */
        y[i] = judge_draw(j, 1, x + i * size);
        jem_fill_normal(ctx, &j->rng, j->plain, size, 0, .15f * jem_rng_uniform(&j->rng));
        for (int k = 0; k < size; k++) x[i * size + k] += j->plain[k];
    }
    judge_false(j, x + JUDGE_REAL * size, JUDGE_FALSE);
    for (int i = JUDGE_REAL; i < JUDGE_BATCH; i++) y[i] = d->classes;
    for (int k = 0; k < JUDGE_BATCH * size; k++) x[k] = fminf(fmaxf(x[k], -1), 1);
}

static int judge_train(jem_net *judge, const judge_options *o, const data_set *train) {
    jem_ctx *ctx = judge->ctx;
    judging j;
    jem_train_desc how = jem_train_desc_default();
    how.weights.cd = 0;
    how.lr = 2e-3f;
    how.data_noise = 0;
    how.optim.ema = .999f;
    how.optim.clip = 20;
    how.schedule.kind = JEM_SCHEDULE_COSINE;
    how.schedule.total = o->iters;
    how.schedule.warmup = 100;
    jem_trainer *tr = jem_trainer_create(judge, &how);
    float *x = uses_floats(JUDGE_BATCH * image_size(judge));
    int y[JUDGE_BATCH];
    int ok = judging_create(&j, train, o->mirror, (uint64_t)o->seed) && x && tr;
    for (int i = 0; ok && i < o->iters; i++) {
        judge_batch(&j, ctx, x, y);
        const jem_stats s = jem_train_step(tr, x, y, JUDGE_BATCH);
        ok = s.status == JEM_OK;
        if ((i + 1) % 500 == 0) {
            printf("update %d of %d  CE %.4f\n", i + 1, o->iters, (double)s.ce);
            fflush(stdout);
        }
    }
    ok = ok && jem_trainer_use_average(tr, 1) == JEM_OK;
    if (!ok && jem_ok(ctx)) jem_fail(ctx, JEM_NO_MEMORY, "out of memory for the images");
    jem_trainer_free(tr);
    free(x);
    judging_free(&j);
    return ok;
}

/* Results of the judge for n images. labels (may be NULL): the intended classes. */
typedef struct verdict {
    double recognised;                             /* fraction with p(class|x) > .9 */
    double hit;                                    /* ... of the intended class */
    double passes;                                 /* fraction with p(none of these|x) < .1 */
    double classes;                             /* exp of the entropy of its answers' frequencies */
    double score;                                  /* exp mean KL(p(class|x) to its mean), as the
                                                      inception score (Salimans et al. 2016) */
} verdict;

/* Computes the verdict from logp[n][classes + 1]. */
static verdict judge_verdict(const float *logp, int n, int classes, const int *labels) {
    static double mean[JUDGE_CLASSES_MOST + 1], count[JUDGE_CLASSES_MOST + 1];
    verdict v = { 0, 0, 0, 0, 0 };
    double entropy = 0;
    memset(mean, 0, sizeof mean);
    memset(count, 0, sizeof count);
    for (int i = 0; i < n; i++) {
        const float *p = logp + (ptrdiff_t)i * (classes + 1);
        int best = 0;
        for (int k = 0; k <= classes; k++) {
            mean[k] += exp((double)p[k]) / n;
            if (p[k] > p[best]) best = k;
        }
        const int known = best < classes && p[best] > logf(.9f);
        v.recognised += (double)known / n;
        v.passes += (double)(p[classes] < logf(.1f)) / n;
        v.hit += (double)(known && labels && labels[i] == best) / n;
        count[best]++;
    }
    for (int i = 0; i < n; i++)
        for (int k = 0; k <= classes; k++) {
            const double l = (double)logp[(ptrdiff_t)i * (classes + 1) + k];
            if (mean[k] > 0) v.score += exp(l) * (l - log(mean[k])) / n;
        }
    const double real = n - count[classes];
    for (int k = 0; k < classes; k++)
        if (count[k] > 0) entropy -= count[k] / real * log(count[k] / real);
    if (real > 0) v.classes = exp(entropy);
    v.score = exp(v.score);
    return v;
}

/* Prints its results on images that were not used in training. */
static int judge_test(jem_net *judge, const judge_options *o, const data_set *test) {
    const int n = smaller(test->n, 10000);
    const int n_damaged = smaller(1000, n);
    const int k = judge->classes;
    float *x = uses_floats(n * image_size(judge));
    float *logp = uses_floats((ptrdiff_t)n * k);
    verdict intact = { 0, 0, 0, 0, 0 };
    judging j;
    int ok = judging_create(&j, test, o->mirror, (uint64_t)o->seed + 1) && x && logp;
    if (ok) data_floats(test, NULL, n, x);
    ok = ok && judge_look(judge, x, n, logp, NULL);
    if (ok) {
        intact = judge_verdict(logp, n, k - 1, test->labels);
        judge_false(&j, x, n_damaged);
        ok = judge_look(judge, x, n_damaged, logp, NULL);
    }
    if (ok) {
        const verdict damaged = judge_verdict(logp, n_damaged, k - 1, NULL);
        printf("%d test images: %.1f%% recognised, %.1f%% correctly; damaged ones: %.1f%% "
               "recognised\n", n, 100 * intact.recognised, 100 * intact.hit,
               100 * damaged.recognised);
    } else if (jem_ok(judge->ctx))
        jem_fail(judge->ctx, JEM_NO_MEMORY, "out of memory for the images");
    free(x);
    free(logp);
    judging_free(&j);
    return ok;
}

/* Checks that a judge can have the shape of the images; prints the reason if not. */
static int judge_shape_fits(const judge_options *o, const data_set *d) {
    if (judge_takes(d->h, d->w, d->classes)) return 1;
    fprintf(stderr, "jem judge: %s has images of %d x %d and %d classes; %d x %d to %d x %d and 1 "
            "to %d are possible\n", o->dataset, d->w, d->h, d->classes, JUDGE_SIDE_LEAST,
            JUDGE_SIDE_LEAST, JUDGE_SIDE_MOST, JUDGE_SIDE_MOST, JUDGE_CLASSES_MOST);
    return 0;
}

static int judge_make(const judge_options *o) {
    data_set train, test;
    data_desc desc;
    char error[512];
    if (picture_conflict(&o->pictures)) {
        fprintf(stderr, "jem judge: %s\n", picture_conflict(&o->pictures));
        return 2;
    }
    if (!may_write("jem judge", NULL, o->out)) return 2;
    memset(&desc, 0, sizeof desc);
    describe_pictures(&o->pictures, o->seed, &desc);
    memset(&test, 0, sizeof test);
    limit_memory(o->max_memory);
    limit_data(&desc, o->max_file, o->max_picture);
    desc.root = o->data;
    name_unreadable(&desc, "jem judge");
    if (!data_load(&train, o->dataset, "train", &desc, error, sizeof error)) {
        fprintf(stderr, "jem judge: %s\n", error);
        return 1;
    }
    if (!judge_shape_fits(o, &train)) {
        data_free(&train);
        return 2;
    }
    desc.channels = train.c;
    desc.height = train.h;
    desc.width = train.w;
    int ok = data_load(&test, o->dataset, "test", &desc, error, sizeof error);
    if (!ok) fprintf(stderr, "jem judge: %s\n", error);
    else mix_classes(&test);
    ok = ok && can_create("jem judge", o->out);
    jem_ctx *ctx = make_ctx(o->threads, o->precision);
    jem_net *judge = NULL;
    if (ok) {
        if (ctx) judge = judge_create(ctx, train.c, train.h, train.w, train.classes,
                                      (uint64_t)o->seed);
        ok = judge && judge_train(judge, o, &train) && judge_test(judge, o, &test) &&
             jem_save(judge, o->out) == JEM_OK;
        if (ok) printf("%s: %ld parameters\n", o->out, (long)jem_net_size(judge));
        else context_fail("jem judge", ctx);
    }
    data_free(&train);
    data_free(&test);
    jem_net_free(judge);
    jem_ctx_free(ctx);
    return !ok;
}

int judge_command(int argc, char **argv) {
    static options table;
    static judge_options values;
    char **words;
    int n = 0;
    options *o = options_begin(&table, "jem judge", judge_table, sizeof judge_table, &values);
    const int read = read_options(o, argc, argv, &words, &n, 0, 0, "jem judge [OPTIONS]: trains a "
                                  "judge of samples for jem eval MODEL samples");
    if (read >= 0) return read;
    return judge_make(&values);
}

/* ---- jem eval MODEL samples ------------------------------------------------------------------ */

enum { SAMPLES_SHOWN = 10, SAMPLES_NEAR = 200, SAMPLES_SETS = 4, SAMPLES_LEAST = 4 };

typedef struct sample_set {
    const char *name;
    int n, labelled;                               /* each has an intended class */
    float *x, *features;
    int *labels;
} sample_set;

static int samples_create(sample_set *s, const char *name, int n, ptrdiff_t size) {
    s->name = name;
    s->n = n;
    s->x = uses_floats(n * size);
    s->features = uses_floats((ptrdiff_t)n * JUDGE_FEATURES);
    s->labels = (int *)calloc((size_t)n, sizeof(int));
    return s->x && s->features && s->labels;
}
static void samples_free(sample_set *s) {
    free(s->x);
    free(s->features);
    free(s->labels);
}

/* Returns how to sample the network, with the steps of the options. */
static jem_generate_desc samples_how(const uses *s) {
    const uses_options *u = s->u;
    jem_generate_desc how = jem_net_generate_desc(s->m.net);
    if (u->fresh_steps >= 0 && how.denoise.steps > 0) how.denoise.steps = u->fresh_steps;
    if (u->walk_steps >= 0) how.walk.steps = u->walk_steps;
    if (u->fraction > 0) how.denoise.fraction = u->fraction;
    return how;
}

/* Makes n samples of a class (-1: any) as jem_sample does, with the steps of the options. */
static int samples_of(const uses *s, int label, int n, uint64_t seed, unsigned char *bytes) {
    const uses_options *u = s->u;
    jem_net *net = s->m.net;
    const jem_generate_desc how = samples_how(s);
    int labels[SAMPLE_AT_ONCE];
    const int usual = u->fresh_steps < 0 && u->walk_steps < 0 && u->fraction == 0;
    if (usual) return jem_sample(net, label, n, seed, NULL, bytes) == JEM_OK;
    for (int i = 0; i < n; i++) labels[i] = label;
    jem_sampler *sampler = jem_net_sampler(net, label < 0 ? NULL : labels, n, seed, &how);
    const int ok = sampler && jem_sampler_step(sampler, NULL) == JEM_OK &&
                   jem_floats_to_pixels(net, sampler->x, n, NULL, bytes) == JEM_OK;
    jem_sampler_free(sampler);
    return ok;
}

/* A file of samples, written after each batch: a run that was interrupted goes on with them. Its
   array KEPT_SAMPLES has the bytes (n,h,w,c) of the first n, its text KEPT_OF whatever they depend
   on. */
#define KEPT_SAMPLES "samples"
#define KEPT_OF "samples.of"
enum { KEPT_SIZE = 320 };

/* Describes the model's numbers and all options on which samples depend. */
static void kept_describe(const uses *s, int n, char text[KEPT_SIZE]) {
    const jem_generate_desc how = samples_how(s);
    unsigned long sum = 0;
    for (int i = 0; i < jem_archive_count(s->m.archive); i++) {
        const jem_entry *e = jem_archive_at(s->m.archive, i);
        sum = sum * 31 + crc32_of(0, (const unsigned char *)e->data, e->bytes);
    }
    snprintf(text, KEPT_SIZE, "%d samples of model %08lx, seed %d, %d noise-blind steps of %g, a "
             "walk of %d steps of %g, noise %g, a last step from %g, guidance %g, precision %d",
             n, sum & 0xffffffffUL, s->u->seed, how.denoise.steps, (double)how.denoise.fraction,
             how.walk.steps, (double)how.walk.step_size, (double)how.walk.noise_std,
             (double)how.last_sigma, (double)jem_net_query(s->m.net, NULL).weight,
             s->u->e.precision);
}

/* Reads the samples of a file, if it exists; returns their number, or -1 and prints the reason. */
static int kept_read(const uses *s, int n, unsigned char *bytes) {
    char of[KEPT_SIZE];
    const char *path = s->u->keep;
    const size_t size = (size_t)image_size(s->m.net);
    FILE *there = fopen(path, "rb");
    if (!there) return 0;
    fclose(there);
    jem_archive *a = jem_archive_read(s->m.ctx, path);
    if (!a) {
        model_fail("jem eval", &s->m);
        return -1;
    }
    kept_describe(s, n, of);
    const jem_entry *e = jem_archive_find(a, KEPT_SAMPLES);
    const char *kept_of = jem_archive_meta(a, KEPT_OF);
    int count = -1;
    if (!e || !kept_of || e->dtype != JEM_DTYPE_U8 || e->bytes % size ||
        e->bytes / size > (size_t)n)
        fprintf(stderr, "jem eval: --keep %s: the file has no samples of this model\n", path);
    else if (strcmp(kept_of, of))
        fprintf(stderr, "jem eval: --keep %s: the file has samples of other options or of another "
                "model; this command makes %s\n", path, of);
    else {
        count = (int)(e->bytes / size);
        memcpy(bytes, e->data, e->bytes);
    }
    jem_archive_free(a);
    return count;
}

/* Writes the first `done` of n samples to the file; returns 0 and leaves an error in the context if
   that fails. */
static int kept_write(const uses *s, int n, int done, const unsigned char *bytes) {
    char of[KEPT_SIZE];
    const jem_net *net = s->m.net;
    const int64_t shape[4] = { done, net->height, net->width, net->channels };
    jem_archive *a = jem_archive_create(s->m.ctx);
    kept_describe(s, n, of);
    const int ok = a && jem_archive_add(a, KEPT_SAMPLES, JEM_DTYPE_U8, 4, shape, bytes) == JEM_OK &&
                   jem_archive_set_meta(a, KEPT_OF, of) == JEM_OK &&
                   jem_archive_write(a, s->u->keep) == JEM_OK;
    jem_archive_free(a);
    return ok;
}

/* Makes n samples, equally many of each kind (a class; of any class, if not by_class), and goes on
   after the first `kept` of them; keep: stores them in the file --keep. bytes: (n,h,w,c). */
static int samples_make(const uses *s, int n, int kinds, int by_class, int keep, int kept,
                        unsigned char *bytes) {
    const ptrdiff_t size = image_size(s->m.net);
    uint64_t seed = (uint64_t)s->u->seed * 1000003u;
    int done = 0;
    for (int c = 0; c < kinds; c++) {
        const int end = (int)((int64_t)n * (c + 1) / kinds);
        while (done < end) {
            const int batch = smaller(end - done, SAMPLE_AT_ONCE);
            const int label = by_class ? c : -1;
            if (done + batch > kept) {
                const int ok = samples_of(s, label, batch, seed, bytes + done * size) &&
                               (!keep || kept_write(s, n, done + batch, bytes));
                if (!ok) fprintf(stderr, "\n");          /* after the progress */
                if (!ok) return 0;
            }
            seed++;
            done += batch;
            fprintf(stderr, "\r%d of %d samples ", done, n);
        }
    }
    fprintf(stderr, "\n");
    return 1;
}

/* Makes samples by jem_sample, class by class (of any class, if the network has no p(x,y)). With
   keep, it goes on with those of the file --keep, if there are any. */
static int samples_fresh(const uses *s, sample_set *to, int keep) {
    jem_net *net = s->m.net;
    const ptrdiff_t size = image_size(net);
    const ptrdiff_t pixels = (ptrdiff_t)net->height * net->width;
    const int by_class = !jem_net_meta(net, "jem.uncond");
    const int kinds = by_class ? net->classes : 1;
    unsigned char *bytes = (unsigned char *)malloc((size_t)(to->n * size));
    if (!bytes) {
        uses_no_memory();
        return 0;
    }
    if (s->u->guidance > 0) net->guidance = s->u->guidance;
    if (s->u->last_sigma > 0) net->last_sigma = s->u->last_sigma;
    to->labelled = by_class;
    const int kept = keep ? kept_read(s, to->n, bytes) : 0;
    int ok = kept >= 0;
    if (ok && !samples_make(s, to->n, kinds, by_class, keep, kept, bytes))
        ok = model_fail("jem eval", &s->m);
    for (ptrdiff_t i = 0; ok && i < to->n * size; i++) {           /* (n,h,w,c) to (n,c,h,w) */
        const ptrdiff_t k = i % size;
        const ptrdiff_t image = i / size * size;
        const ptrdiff_t at = k % net->channels * pixels + k / net->channels;
        to->x[image + at] = (float)bytes[i] / 127.5f - 1;
    }
    for (int c = 0, i = 0; c < kinds; c++)
        while (i < (int)((int64_t)to->n * (c + 1) / kinds)) to->labels[i++] = c;
    free(bytes);
    return ok;
}

/* Takes the chains of the replay buffer, random ones if there are more than to->n, and removes
   their last noise; to->n: the number of chains. */
static int samples_buffer(const uses *s, sample_set *to) {
    const jem_net *net = s->m.net;
    const ptrdiff_t size = image_size(net);
    const jem_entry *b = jem_archive_find(s->m.archive, "replay_buffer");
    if (!b || b->dtype != JEM_DTYPE_F32 || b->ndim != 4 ||
        b->bytes / sizeof(float) % (size_t)size) {
        to->n = 0;
        return 1;
    }
    const int there = (int)(b->bytes / sizeof(float) / (size_t)size);
    int *order = (int *)malloc(((size_t)there + 1) * sizeof *order);
    jem_rng rng = jem_rng_seed((uint64_t)s->u->seed);
    if (!order) {
        uses_no_memory();
        return 0;
    }
    for (int i = 0; i < there; i++) order[i] = i;
    shuffle(order, there, &rng);
    to->n = smaller(to->n, there);
    for (int i = 0; i < to->n; i++)
        memcpy(to->x + i * size, (const float *)b->data + order[i] * size,
               (size_t)size * sizeof(float));
    free(order);
    const float last_sigma = jem_net_generate_desc(net).last_sigma;
    const jem_denoise_desc last = jem_denoise_desc_clean(last_sigma);
    for (int i = 0; net->noise_hi > 0 && i < to->n && jem_ok(s->m.ctx); i += SAMPLE_AT_ONCE) {
        const int n = smaller(to->n - i, SAMPLE_AT_ONCE);
        const jem_mark mark = jem_begin(s->m.ctx);
        jem_tensor *t = jem_input(s->m.ctx, to->x + i * size, n, net->channels, net->height,
                                  net->width);
        jem_denoise(s->m.ctx, jem_logp, (void *)s->m.net, t, &last, NULL);
        jem_read(t, to->x + i * size);
        jem_end(s->m.ctx, mark);
    }
    return jem_ok(s->m.ctx) || model_fail("jem eval", &s->m);
}

/* Prints the row of a set of images, compared with `real`, training images with features. */
static int samples_row(jem_net *judge, sample_set *set, const sample_set *real) {
    float *logp = uses_floats((ptrdiff_t)set->n * judge->classes);
    char name[4 * NAME_SIZE];
    double precision, recall, distance;
    const int n = smaller(set->n, real->n);
    int ok = logp && judge_look(judge, set->x, set->n, logp, set->features) &&
             measure_frechet(set->features, set->n, real->features, real->n, JUDGE_FEATURES,
                             &distance);
    for (int i = 0; ok && i < n; i++)              /* of all classes, which are sorted */
        memmove(set->features + (ptrdiff_t)i * JUDGE_FEATURES, set->features + JUDGE_FEATURES *
                (ptrdiff_t)((int64_t)i * set->n / n), JUDGE_FEATURES * sizeof *set->features);
    ok = ok && measure_precision(set->features, real->features, n, JUDGE_FEATURES, 3, &precision,
                                 &recall);
    if (ok) {
        const verdict v = judge_verdict(logp, set->n, judge->classes - 1, set->labels);
        printf("  %s  %6d  %9.1f%%", fitted(set->name, 16, name), set->n, 100 * v.recognised);
        if (set->labelled) printf("  %7.1f%%", 100 * v.hit);
        else printf("  %8s", "-");
        printf("  %6.1f%%  %7.2f  %7.2f  %8.2f  %9.3f  %6.3f\n", 100 * v.passes, v.classes, v.score,
               distance, precision, recall);
        fflush(stdout);
    } else context_fail("jem eval", judge->ctx);
    free(logp);
    return ok;
}

/* Finds the nearest of all training images of d to x; its distance per image, root of the sum of
   squares with pixels in [0,1]. */
static int nearest_image(const data_set *d, const float *x, float *scratch, double *distance) {
    const ptrdiff_t size = (ptrdiff_t)d->c * d->h * d->w;
    int64_t least = INT64_MAX;
    int best = 0;
    int *v = (int *)(void *)scratch;               /* size of them: the image in bytes */
    for (ptrdiff_t k = 0; k < size; k++)
        v[k] = (int)lrintf((fminf(fmaxf(x[k], -1), 1) + 1) * 127.5f);
    for (int i = 0; i < d->n; i++) {
        const unsigned char *p = d->pixels + i * size;
        int64_t sum = 0;
        for (ptrdiff_t k = 0; k < size && sum < least;)            /* most exceed the bound early */
            for (const ptrdiff_t end = k + 64 < size ? k + 64 : size; k < end; k++)
                sum += (v[k] - p[k]) * (v[k] - p[k]);
        if (sum < least) {
            least = sum;
            best = i;
        }
    }
    *distance = sqrt((double)least) / 255;
    return best;
}

/* Compares the distance of samples to training images with that of test images; writes a picture of
   both. */
static int samples_nearest(const uses *s, const data_set *train, const sample_set *real,
                           const sample_set *fresh) {
    const ptrdiff_t size = image_size(s->m.net);
    const sample_set *sets[2] = { real, fresh };
    float *grid = uses_floats(4 * SAMPLES_SHOWN * size);
    float *scratch = uses_floats(size);
    const int shown = smaller(smaller(fresh->n, real->n), SAMPLES_SHOWN);
    if (!grid || !scratch) {
        uses_no_memory();
        free(grid);
        free(scratch);
        return 0;
    }
    for (int k = 0; k < 2; k++) {
        const int n = smaller(sets[k]->n, SAMPLES_NEAR);
        double sum = 0;
        double away;
        for (int i = 0; i < n; i++) {
            const int pick = (int)((int64_t)i * sets[k]->n / n);
            const float *x = sets[k]->x + pick * size;
            const int near = nearest_image(train, x, scratch, &away);
            const int column = i / (n / shown);
            sum += away / n;
            if (i % (n / shown) || column >= shown) continue;
            memcpy(grid + ((k * 2) * shown + column) * size, x, (size_t)size * sizeof *x);
            data_floats(train, &near, 1, grid + ((k * 2 + 1) * shown + column) * size);
        }
        printf("%s: the nearest of %d training images is %.2f away on average (%d images)\n",
               sets[k]->name, train->n, sum, n);
    }
    const int ok = picture_grid(s->u->out, grid, 4 * shown, shown, s->m.net->channels,
                                s->m.net->height, s->m.net->width, 3);
    if (ok) printf("%s: %s, the nearest training image of each, samples, the nearest of each\n",
                   s->u->out, uses_images(s));
    free(grid);
    free(scratch);
    return ok;
}

static int samples_judge(const uses *s, const uses *beside, jem_net *judge, const char *path,
                         const data_set *train) {
    const ptrdiff_t size = image_size(s->m.net);
    const int n = s->u->e.n;
    sample_set known, set[SAMPLES_SETS];
    memset(&known, 0, sizeof known);
    memset(set, 0, sizeof set);
    int ok = samples_create(&known, "training images", smaller(n, train->n), size) &&
             samples_create(&set[0], uses_images(s), s->n, size) &&
             samples_create(&set[1], "from noise", n, size) &&
             samples_create(&set[2], "buffer", n, size) &&
             (!beside || samples_create(&set[3], beside->name, n, size));
    int *order = (int *)malloc((size_t)train->n * sizeof *order);
    if (!ok || !order) {
        uses_no_memory();
        ok = 0;
    }
    if (ok) {
        jem_rng rng = jem_rng_seed((uint64_t)s->u->seed);
        for (int i = 0; i < train->n; i++) order[i] = i;
        shuffle(order, train->n, &rng);
        data_floats(train, order, known.n, known.x);
        memcpy(set[0].x, s->x, (size_t)(s->n * size) * sizeof *s->x);
        memcpy(set[0].labels, s->labels, (size_t)s->n * sizeof *s->labels);
        set[0].labelled = 1;
        ok = judge_look(judge, known.x, known.n, NULL, known.features) &&
             samples_fresh(s, &set[1], *s->u->keep != 0) && samples_buffer(s, &set[2]) &&
             (!beside || samples_fresh(beside, &set[3], 0));  /* also from noise */
    }
    if (ok) printf("%s, judged by %s (not an Inception network: compare only with itself); from "
                   "noise by jem_sample, independent of the walk in training\n"
                   "  %-16s  %6s  %10s  %8s  %7s  %7s  %7s  %8s  %9s  %6s\n", s->name, path, "",
                   "images", "recognised", "of class", "passes", "classes", "score", "Frechet",
                   "precision", "recall");
    for (int k = 0; ok && k < SAMPLES_SETS; k++)
        if (set[k].n >= SAMPLES_LEAST) ok = samples_row(judge, &set[k], &known);
    if (ok && set[0].n < set[1].n)
        printf("  Frechet distances fall with the number of images: --n %d compares as many "
               "samples as %s\n", set[0].n, uses_images(s));
    ok = ok && samples_nearest(s, train, &set[0], &set[1]);
    for (int k = 0; k < SAMPLES_SETS; k++) samples_free(&set[k]);
    samples_free(&known);
    free(order);
    return ok;
}

/* Checks that the judge takes images and classes of the model; prints the reason if not. */
static int judge_fits(const jem_net *judge, const jem_net *net, const char *path) {
    if (judge->channels == net->channels && judge->height == net->height &&
        judge->width == net->width && judge->classes == net->classes + 1) return 1;
    fprintf(stderr, "jem eval: %s judges (%d,%d,%d) of %d classes; the model has (%d,%d,%d) of "
            "%d\n", path, judge->channels, judge->height, judge->width, judge->classes - 1,
            net->channels, net->height, net->width, net->classes);
    return 0;
}

/* Returns the value of an option in the training of the model, if it differs from the default; or
   NULL. */
static const char *option_to_repeat(const uses *s, const char *name, const char *usual) {
    char key[64];
    snprintf(key, sizeof key, OPTION_PREFIX "%s", name);
    const char *value = jem_archive_meta(s->m.archive, key);
    if (!value && !strcmp(name, "test-split")) value = OLD_SPLIT;
    return value && strcmp(value, usual) ? value : NULL;
}

/* Prints why there is no judge, and the command that trains one for the images of the model. */
static void suggest_judge(const uses *s, const char *why) {
    static const char *const repeated[][2] = {
        { "data", "data" }, { "size", "0" }, { "crop", "off" }, { "pad", "off" },
        { "stretch", "off" }, { "grey", "off" }, { "background", "0" }, { "test-split", "name" }
    };
    const char *dataset = s->u->e.dataset;
    const size_t n = needs_folder_recipe(dataset) ? sizeof repeated / sizeof *repeated : 1;
    char word[DATA_PATH];
    fprintf(stderr, "jem eval: %s (jem judge --dataset %s", why,
            data_quoted(dataset, word, sizeof word));
    for (size_t i = 0; i < n; i++) {
        const char *name = repeated[i][0];
        const char *value = option_to_repeat(s, name, repeated[i][1]);
        if (!value) continue;
        fprintf(stderr, " --%s", name);
        if (strcmp(value, "on")) fprintf(stderr, " %s", data_quoted(value, word, sizeof word));
        if (!strcmp(value, "random")) {
            value = option_to_repeat(s, "seed", "");
            fprintf(stderr, " --seed %s", value ? value : "1");
        }
    }
    fprintf(stderr, " trains one; give it with --judge FILE)\n");
}

int eval_samples(uses *s, uses *beside) {
    data_set train;
    eval_options e = s->u->e;
    char path[OPTION_TEXT_SIZE + 64];
    jem_net *judge = NULL;
    e.split = 1;
    if (*s->u->other) snprintf(path, sizeof path, "%s", s->u->other);
    else snprintf(path, sizeof path, "examples/models/judge-%.200s.safetensors",
                  drawn_from(s->test.name));
    jem_ctx *ctx = make_ctx(s->u->e.threads, JEM_PRECISION_FAST);
    if (ctx) judge = judge_load(ctx, path);
    if (!judge) suggest_judge(s, ctx ? jem_error(ctx) : "no memory");
    int ok = judge && uses_alike(s, beside) && judge_fits(judge, s->m.net, path);
    const int loaded = ok && !data_for(&s->m, s->o, &e, &train);
    ok = loaded;
    if (ok && smaller(smaller(s->u->e.n, s->n), train.n) < SAMPLES_LEAST) {
        ok = 0;
        fprintf(stderr, "jem eval: samples needs at least %d of each: there are %d samples (--n), "
                "%d test images and %d training images\n", SAMPLES_LEAST, s->u->e.n, s->n, train.n);
    }
    ok = ok && samples_judge(s, beside, judge, path, &train);
    if (loaded) data_free(&train);
    jem_net_free(judge);
    jem_ctx_free(ctx);
    return !ok;
}
