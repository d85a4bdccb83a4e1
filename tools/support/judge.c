/* The network that judges samples, and images of no class to train it with. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "tools/support/judge.h"

static const int judge_widths[JUDGE_CONVS] = { 16, 32, 48, 64 };

typedef struct judge_layers { jem_layer conv[JUDGE_CONVS], hidden, output; } judge_layers;

/* Computes features (n,c,h,w) -> (n,JUDGE_FEATURES,1,1). */
static jem_tensor *judge_hidden(const jem_net *judge, jem_tensor *x) {
    const judge_layers *l = (const judge_layers *)judge->user;
    for (int i = 0; i < JUDGE_CONVS; i++)
        x = jem_silu(judge->ctx, jem_apply(&l->conv[i], x, 0));
    return jem_silu(judge->ctx, jem_apply(&l->hidden, jem_flatten(judge->ctx, x), 0));
}
/* Computes logits (n,c,h,w) -> (n,classes,1,1), the last of them: none of these. */
static jem_tensor *judge_forward(jem_net *judge, jem_tensor *x, int training, void *user) {
    (void)training;
    return jem_apply(&((const judge_layers *)user)->output, judge_hidden(judge, x), 0);
}

int judge_takes(int height, int width, int classes) {
    return height >= JUDGE_SIDE_LEAST && width >= JUDGE_SIDE_LEAST && height <= JUDGE_SIDE_MOST &&
           width <= JUDGE_SIDE_MOST && classes >= 1 && classes <= JUDGE_CLASSES_MOST;
}

jem_net *judge_create(jem_ctx *ctx, int channels, int height, int width, int classes,
                      uint64_t seed) {
    jem_net *judge = jem_net_create(ctx, judge_forward, NULL, sizeof(judge_layers), channels,
                                    height, width, classes + 1, seed);
    if (!judge) return NULL;
    judge_layers *l = (judge_layers *)judge->user;
    int in = channels;
    int h = height;
    int w = width;
    char name[32], shape[64];
    for (int i = 0; i < JUDGE_CONVS; i++) {
        int kernel = 3;
        int stride = 1;
        if (i) {
            kernel = 4;
            stride = 2;
            h = (h - 2) / 2 + 1;
            w = (w - 2) / 2 + 1;
        }
        snprintf(name, sizeof name, "conv%d", i + 1);
        l->conv[i] = jem_conv_layer(judge, name, in, judge_widths[i], kernel, stride, 1);
        in = judge_widths[i];
    }
    l->hidden = jem_linear_layer(judge, "hidden", in * h * w, JUDGE_FEATURES);
    l->output = jem_linear_layer(judge, "output", JUDGE_FEATURES, classes + 1);
    snprintf(shape, sizeof shape, "%d %d %d %d", channels, height, width, classes);
    if (jem_ok(ctx) && jem_net_set_meta(judge, "judge.shape", shape) == JEM_OK) return judge;
    jem_net_free(judge);
    return NULL;
}

jem_net *judge_load(jem_ctx *ctx, const char *path) {
    int c, h, w, classes;
    jem_net *judge = NULL;
    jem_archive *a = jem_archive_read(ctx, path);
    const char *shape = NULL;
    if (a) shape = jem_archive_meta(a, "judge.shape");
    if (shape && sscanf(shape, "%d %d %d %d", &c, &h, &w, &classes) == 4 &&
        (c == 1 || c == 3) && judge_takes(h, w, classes)) {
        judge = judge_create(ctx, c, h, w, classes, 1);
    } else if (a) {
        char message[512];
        snprintf(message, sizeof message, "%.400s: holds no judge of samples", path);
        jem_fail(ctx, JEM_BAD_FILE, message);
    }
    if (judge && jem_net_load(judge, a) != JEM_OK) {
        jem_net_free(judge);
        judge = NULL;
    }
    jem_archive_free(a);
    return judge;
}

int judge_look(jem_net *judge, const float *x, int n, float *logp, float *features) {
    const ptrdiff_t size = (ptrdiff_t)judge->channels * judge->height * judge->width;
    for (int i = 0; i < n && jem_ok(judge->ctx); i += JUDGE_AT_ONCE) {
        const int now = n - i < JUDGE_AT_ONCE ? n - i : JUDGE_AT_ONCE;
        const jem_mark mark = jem_begin(judge->ctx);
        jem_tensor *t = jem_input(judge->ctx, x + i * size, now, judge->channels, judge->height,
                                  judge->width);
        t = judge_hidden(judge, jem_clamp(judge->ctx, t, -1, 1));
        if (features) jem_read(t, features + (ptrdiff_t)i * JUDGE_FEATURES);
        t = jem_apply(&((const judge_layers *)judge->user)->output, t, 0);
        if (logp) jem_read(jem_log_softmax(judge->ctx, t), logp + (ptrdiff_t)i * judge->classes);
        jem_end(judge->ctx, mark);
    }
    return jem_ok(judge->ctx);
}

/* ---- other images: none of these ------------------------------------------------------------- */

/* Takes the mean over 3 x 3 pixels `times` times; scratch[h * w]. Black around the image. */
static void judge_blur(float *x, int channels, int h, int w, int times, float *scratch) {
    for (; times > 0; times--)
        for (int c = 0; c < channels; c++) {
            float *p = x + (ptrdiff_t)c * h * w;
            memcpy(scratch, p, (size_t)(h * w) * sizeof *p);
            for (int i = 0; i < h * w; i++) {
                float sum = 0;
                for (int k = 0; k < 9; k++) {
                    const int y = i / w + k / 3 - 1;
                    const int z = i % w + k % 3 - 1;
                    const int inside = y >= 0 && y < h && z >= 0 && z < w;
                    if (inside) sum += scratch[y * w + z];
                    else sum -= 1;
                }
                p[i] = sum / 9;
            }
        }
}

/* Draws up to four random curved strokes on black. */
static void judge_strokes(jem_rng *rng, float *x, int channels, int h, int w) {
    const float from = .2f;
    const float range = .6f;
    for (ptrdiff_t i = 0; i < (ptrdiff_t)channels * h * w; i++) x[i] = -1;
    for (int strokes = 1 + jem_rng_below(rng, 4); strokes > 0; strokes--) {
        float y = (float)h * (from + range * jem_rng_uniform(rng));
        float z = (float)w * (from + range * jem_rng_uniform(rng));
        float angle = 6.2831853f * jem_rng_uniform(rng);
        const float bend = .6f * (jem_rng_uniform(rng) - .5f);
        for (int length = 4 + jem_rng_below(rng, h - 3); length > 0; length--) {
            for (int k = 0; k < 4; k++) {
                const int a = (int)y + k / 2;
                const int b = (int)z + k % 2;
                const float ink = 1 - .8f * jem_rng_uniform(rng);
                for (int c = 0; c < channels && a >= 0 && a < h && b >= 0 && b < w; c++) {
                    float *p = x + ((ptrdiff_t)c * h + a) * w + b;
                    if (*p < ink) *p = ink;
                }
            }
            z += cosf(angle);
            y += sinf(angle);
            angle += bend;
        }
    }
}

/* Many parameters: three images, and the shape of one. */
void judge_damage(jem_rng *rng, int kind, const float *a, const float *b, int channels,
                  int h, int w, float *x, float *scratch) {
    const int pixels = h * w;
    const int tile = h / 4 ? h / 4 : 1;
    const int wide = w / 4 ? w / 4 : 1;
    const float share = .3f + .4f * jem_rng_uniform(rng);
    const float grey = 2.4f * jem_rng_uniform(rng) - 1.2f;
    const int blurs = 5 + jem_rng_below(rng, 4);
    const int thin = jem_rng_below(rng, 2);
    for (int i = 0; i < channels * pixels; i++) {
        const int plane = i / pixels * pixels;
        const int y = i % pixels / w;
        const int z = i % w;
        const int at = y / tile % 4 * 4 + z / wide % 4;
        const int from = (at * 5 + 3) % 16;
        const int source = from / 4 * tile + y % tile;
        const int source_z = from % 4 * wide + z % wide;
        switch (kind) {
        case 0: x[i] = 2 * jem_rng_uniform(rng) - 1; break;                  /* noise */
        case 1: x[i] = share * a[i] + (1 - share) * b[i]; break;             /* two, blended */
        case 2: x[i] = a[i] > b[i] ? a[i] : b[i]; break;                     /* two, on another */
        case 3: x[i] = a[plane + jem_rng_below(rng, pixels)]; break;         /* random pixels */
        case 4: x[i] = a[i]; break;                                          /* blurred below */
        case 5: x[i] = y < h / 2 ? a[i] : b[plane + (y - h / 2) * w + z]; break; /* two tops */
        case 6: x[i] = -a[i]; break;                                         /* inverted */
        case 7: x[i] = grey; break;
        case 8: x[i] = (z / wide + y / tile) % 2 ? a[i] : -1; break;         /* a chessboard */
        case 9: x[i] = a[plane + source % h * w + source_z % w]; break;      /* tiles shuffled */
        case 10: x[i] = a[i] + (.7f + share) * jem_rng_normal(rng); break;   /* mostly noise */
        default: break;
        }
    }
    if (kind == 11) judge_strokes(rng, x, channels, h, w);
    if (kind == 4) judge_blur(x, channels, h, w, blurs, scratch);
    if (kind == 11) judge_blur(x, channels, h, w, thin, scratch);
}
