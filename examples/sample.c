/* Digits out of noise, from the network that `make demo` trained.
       build/sample          whatever it likes, from p(x)    -> build/pictures/sample.png
       build/sample 7        sevens, from p(x|y = 7)         -> build/pictures/sample_7.png
   and how the first ten of them came about                  -> build/pictures/sample_chains.png */
#define JEM_IMPLEMENTATION
#include "../jem.h"

#include "pictures.h"

enum { CHAINS = 100, STEPS = 300, FILMED = 10, SHOTS = 13 };

/* The first chains at SHOTS moments. Most happens early, so that is where we look more often. */
static const int moment[SHOTS] = { 0, 1, 3, 6, 10, 15, 20, 30, 50, 80, 130, 200, STEPS };
typedef struct film {
    float x[CHAINS][DIGIT_PIXELS], shot[FILMED][SHOTS][DIGIT_PIXELS];
    int taken;
} film;

static int film_take(film *f, jem_tensor *x) {
    if (jem_read(x, f->x[0]) != JEM_OK) return 1;
    for (int i = 0; i < FILMED; i++)
        memcpy(f->shot[i][f->taken], f->x[i], sizeof f->x[i]);
    f->taken++;
    return 0;
}

/* The sampler calls this after every step, with the chains as they are; nonzero would stop it. */
static int film_watch(void *user, int step, jem_tensor *x) {
    film *f = (film *)user;
    return step + 1 == moment[f->taken] ? film_take(f, x) : 0;
}

static int sample(jem_net *net, int label, const char *path) {
    static film f;
    jem_ctx *ctx = net->ctx;
    jem_rng rng = jem_rng_seed(label < 0 ? 100 : (uint64_t)label);

    /* Chains begin as the training's did: uniform noise. */
    jem_fill_uniform(ctx, &rng, f.x[0], CHAINS * DIGIT_PIXELS, -1, 1);
    jem_tensor *x = jem_input(ctx, f.x[0], CHAINS, 1, DIGIT, DIGIT);
    film_take(&f, x);

    jem_sgld_desc walk = jem_sgld_desc_default();  /* step 1, noise .01, as in training */
    walk.steps = STEPS;
    walk.watch = film_watch, walk.watch_user = &f;
    if (label < 0) {
        jem_sgld(ctx, jem_logp, net, x, &walk, &rng);                  /* uphill on log p(x) */
    } else {                                       /* on log p(x,y): the logit of the label */
        int labels[CHAINS];
        for (int i = 0; i < CHAINS; i++) labels[i] = label;
        jem_class_of of = { net, labels };
        jem_sgld(ctx, jem_logp_class, &of, x, &walk, &rng);
    }
    if (jem_read(x, f.x[0]) != JEM_OK) return 0;

    /* What does the classifier in the same network make of them? */
    jem_answer answer[CHAINS];
    int count[10] = { 0 };
    if (jem_classify(net, f.x[0], CHAINS, answer) != JEM_OK) return 0;
    for (int i = 0; i < CHAINS; i++) count[answer[i].label]++;
    printf("%d samples, classified:", CHAINS);
    for (int c = 0; c < 10; c++) if (count[c]) printf("  %d: %d", c, count[c]);
    printf("\n");

    const char *chains = "build/pictures/sample_chains.png";
    if (!picture_grid(path, f.x[0], CHAINS, 10, 1, DIGIT, DIGIT, 2) ||
        !picture_grid(chains, f.shot[0][0], FILMED * SHOTS, SHOTS, 1, DIGIT, DIGIT, 2)) return 0;
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
    jem_net *net = digits_model(ctx);              /* build/digits.safetensors, or says how */
    int failed = !net || !sample(net, label, path);
    if (net) failed = report(ctx) || failed;
    jem_net_free(net);
    jem_ctx_free(ctx);
    return failed;
}
