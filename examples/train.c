/* The shortest realistic training loop: a JEM on handwritten digits.
       build/train [--iters N]         150 is a quick look; 500 gives clean digits, 1500 good ones
   Saves build/train.safetensors. Picture: build/pictures/train.png, the replay buffer. */
#define JEM_IMPLEMENTATION
#include "jem.h"

#include "count.h"
#include "tools/support/pictures.h"

enum { BATCH = 128, SHOWN = 100 };

static int train(jem_net *net, jem_trainer *tr, const digits *d, int iters) {
    static float x[BATCH * DIGIT_PIXELS];
    static int y[BATCH];
    jem_rng rng = jem_rng_seed(2);
    for (int i = 0; i < iters; i++) {
        digits_batch(d, &rng, BATCH, x, y);
        const jem_stats s = jem_train_step(tr, x, y, BATCH);
        if (s.status != JEM_OK) return 0;
        /* f = log p(x) up to a constant. Data and samples should be about equally likely; if they
           drift apart permanently, training diverges. The absolute value of f has no meaning. */
        if (i % 10 == 9 || i == iters - 1)
            printf("%5d  ce %.3f  accuracy %3.0f%%  f(x+) %+7.2f  f(x-) %+7.2f\n", i + 1,
                   (double)s.ce, 100 * (double)s.accuracy, (double)s.f_data, (double)s.f_sample);
        fflush(stdout);
    }
    printf("held-out accuracy: %.1f%%\n",
           100 * (double)jem_accuracy(net, d->test_x, d->test_y, DIGITS_TEST));

    /* Draw 100 of the persistent chains from the replay buffer: the current samples of the model.
       Recently restarted chains are still noise. */
    static float shown[SHOWN * DIGIT_PIXELS];
    int slot[SHOWN];
    return jem_buffer_draw(jem_trainer_buffer(tr), &rng, SHOWN, NULL, 0, shown, slot) == JEM_OK &&
           picture_grid("build/pictures/train.png", shown, SHOWN, 10, 1, DIGIT, DIGIT, 2) &&
           /* Lets the saved network take pictures of other sizes, and rate how familiar an image
              is (jem_answer): by images that it has not learned. */
           jem_net_fit_framing(net, d->x, DIGITS_TRAIN) == JEM_OK &&
           jem_calibrate(net, d->test_x, DIGITS_TEST, JEM_AUTO) == JEM_OK &&
           jem_save(net, "build/train.safetensors") == JEM_OK;
}

int main(int argc, char **argv) {
    int iters = 150;
    if (argc == 3 && !strcmp(argv[1], "--iters")) iters = count_of(argv[2]);
    else if (argc > 1) iters = 0;
    if (iters < 1) {
        fprintf(stderr, "usage: %s [--iters N], " COUNT_RANGE "\n", argv[0]);
        return 1;
    }
    digits d;
    if (!digits_load(DIGITS_PATH, &d)) return 1;

    jem_ctx *ctx = jem_ctx_create(NULL);
    jem_net *net = jem_convnet_create(ctx, NULL, 1);                   /* default: 28 x 28 */

    jem_train_desc how = jem_train_desc_default(); /* from the paper; changes for small networks: */
    how.lr = 1e-3f;                                /* stable with SiLU and a flat head */
    how.weights.cd = 0.1f;                               /* of log p(x) relative to log p(y|x) */
    how.sgld.steps = 10;
    how.buffer_size = 1000;
    how.schedule.kind = JEM_SCHEDULE_COSINE;
    how.schedule.total = iters;
    jem_trainer *tr = jem_trainer_create(net, &how);

    const int ok = tr && train(net, tr, &d, iters);
    const int failed = report(ctx) || !ok;
    if (!failed) printf("model: build/train.safetensors\npicture: build/pictures/train.png\n");
    jem_trainer_free(tr);
    jem_net_free(net);
    jem_ctx_free(ctx);
    digits_free(&d);
    return failed;
}
