/* Samples digits from noise, with the network that `make demo` trained or, before that, with
   examples/models/mnist.safetensors.
       build/sample          any digits, from p(x)           -> build/pictures/sample.png
       build/sample 7        sevens                          -> build/pictures/sample_7.png
   and how the first ten of them form                        -> build/pictures/sample_chains.png */
#define JEM_IMPLEMENTATION
#include "jem.h"

#include "tools/support/pictures.h"

enum { CHAINS = 100, FILMED = 10, SHOTS = 13 };

static float x[CHAINS][DIGIT_PIXELS], shots[FILMED][SHOTS][DIGIT_PIXELS];

/* Samples from p(x) (label < 0) or of one class. A network that has learned a score (`make demo`)
   is denoised from Gaussian noise, then walked; other networks are walked from uniform noise, as in
   training. */
static jem_status draw(jem_net *net, int label, jem_tensor *t, jem_rng *rng) {
    jem_ctx *ctx = net->ctx;
    int labels[CHAINS];
    for (int i = 0; i < CHAINS; i++) labels[i] = label;
    jem_query query = jem_net_query(net, labels);
    jem_logp_fn logp = label < 0 ? jem_logp : jem_logp_guided;  /* log p(x) + weight log p(y|x) */
    jem_generate_desc how = jem_net_generate_desc(net);
    const int steps = how.denoise.steps + how.walk.steps;
    int moments[SHOTS];                            /* densest at the start, where most changes */
    for (int k = 0; k < SHOTS; k++) {
        const float way = (float)k / (SHOTS - 1);
        moments[k] = 1 + k + (int)((float)(steps - SHOTS) * way * way * way);
    }
    chains_film film = { moments, SHOTS, FILMED, 1, x[0], shots[0][0], 0, 0 };
    how.denoise.watch = how.walk.watch = chains_film_watch;
    how.denoise.watch_user = how.walk.watch_user = &film;
    return jem_generate(ctx, logp, &query, t, &how, rng);
}

static int sample(jem_net *net, int label, const char *path) {
    jem_rng rng = jem_rng_seed(label < 0 ? 100 : (uint64_t)label);
    jem_tensor *t = jem_zeros(net->ctx, CHAINS, 1, DIGIT, DIGIT);      /* filled by the sampler */
    if (!t || draw(net, label, t, &rng) != JEM_OK || jem_read(t, x[0]) != JEM_OK) return 0;

    /* Classify the samples with the same network. */
    jem_answer answer[CHAINS];
    int count[10] = { 0 };
    if (jem_classify(net, x[0], CHAINS, answer) != JEM_OK) return 0;
    for (int i = 0; i < CHAINS; i++) count[answer[i].label]++;
    printf("%d samples, classified:", CHAINS);
    for (int c = 0; c < 10; c++) if (count[c]) printf("  %d: %d", c, count[c]);
    printf("\n");

    const char *chains = "build/pictures/sample_chains.png";
    if (!picture_grid(path, x[0], CHAINS, 10, 1, DIGIT, DIGIT, 2) ||
        !picture_grid(chains, shots[0][0], FILMED * SHOTS, SHOTS, 1, DIGIT, DIGIT, 2)) return 0;
    printf("pictures: %s %s\n", path, chains);
    return 1;
}

int main(int argc, char **argv) {
    char path[64] = "build/pictures/sample.png";
    int label = -1;
    if (argc > 1) {
        if (argc > 2 || argv[1][0] < '0' || argv[1][0] > '9' || argv[1][1]) {
            fprintf(stderr, "usage: %s [digit, 0 to 9]\n", argv[0]);
            return 1;
        }
        label = argv[1][0] - '0';
        snprintf(path, sizeof path, "build/pictures/sample_%d.png", label);
    }
    jem_ctx *ctx = jem_ctx_create(NULL);
    jem_net *net = digits_model(ctx, NULL);       /* explains a failure */
    int failed = !net || !sample(net, label, path);
    if (net) failed = report(ctx) || failed;
    jem_net_free(net);
    jem_ctx_free(ctx);
    return failed;
}
