/* QUESTION  Two networks were trained separately, one on digits, the other on clothes. Which images
             are both, and which are either?

   FORMULA   and: log p = log p1 + log p2,   or: log p = logsumexp(log p1, log p2)
             (Du, Li and Mordatch 2020, arXiv:2004.06030.) Neither network is retrained. 'And' needs
             no Z. 'Or' does: a constant added to one of the two determines how often it is chosen.
             Z is unknown; instead, we shift both to one level: log p is 0 on average for the
             samples of each.

   LOOK FOR  A row for each expression, ten chains from the same noise; both networks then judge
             the samples: on the left is the percentage that is not strange or, if a class was
             requested, that has this class. The samples are compromises: 1s like one or two
             trouser legs, 0s with the outline of a bag, 7s with the sole of a boot. 'Digit and
             clothes' gives digits or pieces of digits: the sharper density dominates, that of the
             digits. And 'or' gives only clothes, those of the second row: its gradient is that of
             the larger log p, and on noise, where chains start, clothes are ahead by 200.

   TRY       FOR_DIGITS 300.0f: all samples of 'digit or clothes' are digits. Other classes: 0..9,
             and T-shirt, trouser, pullover, dress, coat, sandal, shirt, sneaker, bag, boot. WEIGHT
             of the class 1 or 50. STEPS 1000.

   RUN       build/compose_nets          Picture: build/pictures/compose_nets.png */
#define JEM_IMPLEMENTATION
#include "jem.h"

#include "tools/support/chart.h"

enum { CHAINS = 10, STEPS = 300, ROWS = 7, ZOOM = 3, LEFT_OF = 272 };
#define WEIGHT 20
#define FOR_DIGITS 0.0f                            /* added to their log p in 'digit or clothes' */
typedef enum kind { DIGIT_NET, CLOTHES_NET, AND, OR } kind;
typedef struct asked { const char *name; kind what; int label[2]; } asked;     /* -1: any class */
static const asked rows[ROWS] = {
    { "a digit", DIGIT_NET, { -1, -1 } }, { "clothes", CLOTHES_NET, { -1, -1 } },
    { "digit or clothes", OR, { -1, -1 } }, { "digit and clothes", AND, { -1, -1 } },
    { "1 and trouser", AND, { 1, 1 } }, { "0 and bag", AND, { 0, 8 } },
    { "7 and boot", AND, { 7, 9 } }
};
typedef struct model { jem_net *net[2]; float level[2]; const asked *row; } model;

/* Returns log p(x) of a network, or of one of its classes, relative to its usual level. */
static jem_tensor *one(jem_ctx *ctx, jem_tensor *x, const model *m, int k) {
    int labels[CHAINS];
    for (int i = 0; i < CHAINS; i++) labels[i] = m->row->label[k];
    jem_query query = { m->net[k], labels, WEIGHT };
    jem_tensor *f = labels[0] < 0 ? jem_logp(ctx, x, &query) : jem_logp_guided(ctx, x, &query);
    return jem_add_constant(ctx, f, -m->level[k]);
}
static jem_tensor *both(jem_ctx *ctx, jem_tensor *x, void *user) {
    const model *m = (const model *)user;
    if (m->row->what <= CLOTHES_NET) return one(ctx, x, m, (int)m->row->what);
    jem_tensor *a = one(ctx, x, m, 0);
    jem_tensor *b = one(ctx, x, m, 1);
    if (m->row->what == AND) return jem_add(ctx, a, b);
    a = jem_add_constant(ctx, a, FOR_DIGITS);
    return jem_logsumexp(ctx, jem_concat(ctx, a, b));
}

/* Prints the mean log p of both networks on noise like that from which chains start. */
static void compare(jem_ctx *ctx, const model *m, float noise_mean, float noise_std) {
    static float x[CHAINS * DIGIT_PIXELS];
    double mean[2] = { 0, 0 };
    jem_answer a[CHAINS];
    jem_rng rng = jem_rng_seed(2);
    jem_fill_normal(ctx, &rng, x, CHAINS * DIGIT_PIXELS, noise_mean, noise_std);
    for (int k = 0; k < 2; k++) {
        if (jem_classify(m->net[k], x, CHAINS, a) != JEM_OK) return;
        for (int i = 0; i < CHAINS; i++) mean[k] += (double)a[i].log_density / CHAINS;
        mean[k] -= (double)m->level[k];
    }
    printf("on noise, log p is %.0f as digits, %.0f as clothes\n", mean[0], mean[1]);
}

static void draw(jem_ctx *ctx, model *m, int row, int steps, plot *paper) {
    static float x[CHAINS * DIGIT_PIXELS];
    static const char *const as[2] = { "digits", "clothes" };
    jem_answer a[2][CHAINS];
    jem_rng rng = jem_rng_seed(1);
    char label[64];
    int seen[2] = { 0, 0 };
    m->row = rows + row;
    jem_fill_uniform(ctx, &rng, x, CHAINS * DIGIT_PIXELS, -1, 1);
    jem_tensor *t = jem_input(ctx, x, CHAINS, 1, DIGIT, DIGIT);
    jem_sgld_desc how = jem_sgld_desc_default();
    jem_generate_desc fresh = jem_generate_desc_default();  /* for networks that learned a score */
    how.steps = fresh.denoise.steps = steps;
    fresh.walk.steps = 2 * steps;
    fresh.mean = m->net[0]->mean;
    if (rows[row].what == OR) compare(ctx, m, fresh.mean, fresh.denoise.sigma_max);
    if (m->net[0]->noise_hi > 0 && m->net[1]->noise_hi > 0)
        jem_generate(ctx, both, m, t, &fresh, &rng);
    else jem_sgld(ctx, both, m, t, &how, &rng);
    if (jem_read(t, x) != JEM_OK) return;
    for (int k = 0; k < 2; k++) {
        const int wanted = rows[row].label[k];
        if (jem_classify(m->net[k], x, CHAINS, a[k]) != JEM_OK) return;
        for (int i = 0; i < CHAINS; i++) {
            seen[k] += wanted < 0 ? a[k][i].familiarity > 0.01f : a[k][i].label == wanted;
            if (row == k) m->level[k] += a[k][i].log_density / CHAINS;
        }
    }
    snprintf(label, sizeof label, "%s: as digits %d%%, as clothes %d%%",
             rows[row].label[0] < 0 ? "not strange" : "of the class",
             100 * seen[0] / CHAINS, 100 * seen[1] / CHAINS);
    printf("%-18s %s\n", rows[row].name, label);
    fflush(stdout);
    const int top = 10 + row * (DIGIT * ZOOM + 6);
    text(paper, 10, (float)top + 4, 3, 0x000000, rows[row].name);
    for (int k = 0; k < 2; k++) {
        snprintf(label, sizeof label, "as %s %d%%", as[k], 100 * seen[k] / CHAINS);
        text(paper, 10, (float)(top + 33 + 25 * k), 2.7f, 0x333333, label);
    }
    for (int i = 0; i < CHAINS; i++)
        plot_digit(paper, LEFT_OF + i * (DIGIT * ZOOM + 6), top, ZOOM, x + i * DIGIT_PIXELS);
    jem_reset(ctx);
}

int main(int argc, char **argv) {
    const int cell = DIGIT * ZOOM + 6;
    const int width = LEFT_OF + 6 + CHAINS * cell;
    const int height = 14 + ROWS * cell;
    plot paper;
    model m;
    memset(&m, 0, sizeof m);
    if (!plot_create(&paper, width, height, 0, (float)width, (float)height, 0)) return 1;
    jem_ctx *ctx = jem_ctx_create(NULL);
    m.net[0] = jem_load(ctx, SHIPPED_PATH);
    m.net[1] = jem_load(ctx, "examples/models/fashion-mnist.safetensors");
    for (int row = 0; row < ROWS && jem_ok(ctx); row++)
        draw(ctx, &m, row, argc > 1 && !strcmp(argv[1], "--quick") ? 5 : STEPS, &paper);
    const int failed = report(ctx) || !plot_write(&paper, "build/pictures/compose_nets.png");
    if (!failed) printf("picture: build/pictures/compose_nets.png\n");
    jem_net_free(m.net[0]);
    jem_net_free(m.net[1]);
    plot_free(&paper);
    jem_ctx_free(ctx);
    return failed;
}
