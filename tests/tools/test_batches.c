/* The batches of `jem train`: each training image once per epoch, in a different order each time;
   never the held-out images, which are the same for every seed; moved and mirrored uniformly;
   squares hidden uniformly. */
#ifndef _DEFAULT_SOURCE
#define _DEFAULT_SOURCE
#endif
#define JEM_IMPLEMENTATION
#include "jem.h"
#include "tests/support/test.h"
#include "tests/support/common.h"
#include "tools/cli/train.c"

enum { IMAGE = 28 * 28, VALID = 700, BATCH = 32, MOVES = 20000, REACH = 2 };

/* A run as far as its data. */
static int open_run(run *r, const char *seed) {
    static options table[2];
    static train_options values[2];
    static int made;
    const char *line[] = { "jem", "train", "--dataset", "digits", "--n-valid", "700",
                           "--batch-size", "32", "--seed", seed };
    char *words[10];
    int n = 0;
    for (int i = 0; i < 10; i++) words[i] = (char *)(uintptr_t)line[i];
    const size_t bytes = (size_t)train_count * sizeof *train_table;
    options *o = options_begin(&table[made], "jem train", train_table, bytes, &values[made]);
    memset(r, 0, sizeof *r);
    r->table = o;
    r->o = &values[made++];
    r->lock = -1;
    limit_memory(0);
    return options_parse(o, 10, words, 2, &n) > 0 && train_defaults(o, r->o) && load_data(r);
}
static void close_run(run *r) {
    data_free(&r->data);
    data_free(&r->test);
    free(r->order);
    free(r->labelled);
    free(r->moved);
    free(r->starts);
    free(r->start_labels);
    free(r->x);
    free(r->x_few);
    free(r->y);
    free(r->y_few);
    free(r->all.cards);
    free(r->few.cards);
}

/* The updates of an epoch leave out what does not fill a batch. */
static void test_epochs(run *r, int *first_order) {
    const int n = r->data.n;
    const int per_epoch = r->n_train / BATCH;
    int *seen = (int *)malloc((size_t)n * sizeof *seen);
    int wrong = 0;
    int alike = 0;
    CHECK(r->n_train == n - VALID && r->per_epoch == per_epoch && r->all.n == r->n_train,
          "%d of %d", r->n_train, n);
    for (int epoch = 0; epoch < 3; epoch++) {
        int twice = 0;
        int held_out = 0;
        memset(seen, 0, (size_t)n * sizeof *seen);
        for (int k = 0; k < per_epoch; k++) {
            r->update = epoch * per_epoch + k;
            draw_batch(r, &r->all, 1, 0, r->x, r->y);
            const int *which = r->all.cards + k * BATCH;
            for (int i = 0; i < BATCH; i++) {
                const unsigned char *p = r->data.pixels + which[i] * IMAGE;
                const float *x = r->x + i * IMAGE;
                for (int at = 0; at < IMAGE; at += 13)
                    wrong += fabs((double)x[at] - (p[at] / 127.5 - 1)) > 1e-6;
                wrong += r->y[i] != r->data.labels[which[i]];
                twice += seen[which[i]]++ > 0;
                if (!epoch) first_order[k * BATCH + i] = which[i];
                else alike += first_order[k * BATCH + i] == which[i];
            }
        }
        for (int i = 0; i < VALID; i++) held_out += seen[r->order[i]];
        CHECK(twice == 0 && held_out == 0, "epoch %d: %d came twice, %d are held out", epoch, twice,
              held_out);
    }
    CHECK(wrong == 0, "%d pixels or labels are another image's", wrong);
    /* one in 8,300 by chance: 2 of two epochs */
    CHECK(alike < 20, "%d images came at the same update of another epoch", alike);
    free(seen);
}

/* Beyond the border, the way back. */
static int reflected(int i, int n) {
    if (i < 0) return -i;
    return i < n ? i : 2 * (n - 1) - i;
}

static void test_moves(run *r) {
    enum { SIDE = 28, WAYS = (2 * REACH + 1) * (2 * REACH + 1) * 2, AT = SIDE / 2 };
    float from[SIDE * SIDE], to[SIDE * SIDE];
    int count[WAYS] = { 0 };
    int wrong = 0;
    jem_rng rng = jem_rng_seed(3);
    for (int i = 0; i < SIDE * SIDE; i++) from[i] = (float)i;
    r->o->shift = REACH;
    r->o->flip = 1;
    for (int k = 0; k < MOVES; k++) {
        move_randomly(r, &rng, k % 2, from, to);
        const int is = (int)to[AT * SIDE + AT];
        const int mirror = to[AT * SIDE + AT + 1] < to[AT * SIDE + AT];
        wrong += mirror != k % 2;
        const int dy = is / SIDE - AT;
        const int dx = is % SIDE - (mirror ? SIDE - 1 - AT : AT);
        if (!CHECK(abs(dy) <= REACH && abs(dx) <= REACH, "moved by (%d,%d)", dy, dx)) return;
        count[((dy + REACH) * (2 * REACH + 1) + dx + REACH) * 2 + mirror]++;
        for (int i = 0; i < SIDE && k < 200; i++)
            for (int j = 0; j < SIDE; j++) {
                const int row = reflected(i + dy, SIDE);
                const int column = reflected((mirror ? SIDE - 1 - j : j) + dx, SIDE);
                wrong += to[i * SIDE + j] != from[row * SIDE + column];
            }
    }
    CHECK(wrong == 0, "%d pixels are not where they should be", wrong);
    for (int k = 0; k < WAYS; k++)                 /* 400 each, give or take five times 20 */
        CHECK_CLOSE(count[k], MOVES / WAYS, 100, "way %d", k);
    r->o->shift = 0;
    r->o->flip = 0;
    move_randomly(r, &rng, 0, from, to);
    CHECK(same_bits(from, to, SIDE * SIDE), "nothing is asked for, and done");
}

/* --flip shows each image from one side in an epoch and from the other in the next. */
static void test_turns(run *r) {
    enum { SIDE = 28 };
    float plain[SIDE * SIDE], mirrored[SIDE * SIDE];
    const int per_epoch = r->n_train / BATCH;
    int *side = (int *)calloc((size_t)r->data.n, sizeof *side);
    int wrong = 0;
    int sides = 0;
    r->o->shift = 0;
    r->o->flip = 1;
    for (int epoch = 0; side && epoch < 2; epoch++) {
        for (int k = 0; k < per_epoch; k++) {
            r->update = epoch * per_epoch + k;
            draw_batch(r, &r->all, 0, 0, r->x, r->y);
            for (int i = 0; i < BATCH; i++) {
                const int image = r->all.cards[k * BATCH + i];
                data_floats(&r->data, &image, 1, plain);
                move_image(plain, mirrored, 1, SIDE, SIDE, 0, 0, 1);
                const int is_plain = same_bits(r->x + i * IMAGE, plain, IMAGE);
                const int is_mirrored = same_bits(r->x + i * IMAGE, mirrored, IMAGE);
                wrong += !is_plain && !is_mirrored;
                if (is_plain == is_mirrored) continue;         /* symmetric */
                sides += !epoch && is_mirrored;
                wrong += side[image] == 1 + is_mirrored;       /* 1: plain before; 2: mirrored */
                side[image] = 1 + is_mirrored;
            }
        }
    }
    CHECK(wrong == 0, "%d images come twice from one side", wrong);
    /* half of them, within five standard deviations */
    CHECK_CLOSE(sides, per_epoch * BATCH / 2, 2.5 * sqrt(per_epoch * BATCH), "first side");
    r->o->flip = 0;
    free(side);
}

/* Checks that a batch with hidden squares is the same one otherwise. */
static void check_hidden_batch(run *r, int square) {
    int wrong = 0;
    r->o->cutout = 0;
    draw_batch(r, &r->all, 1, 0, r->x, r->y);
    r->o->cutout = square;
    float *whole = (float *)malloc(sizeof *whole * BATCH * IMAGE);
    memcpy(whole, r->x, sizeof *whole * BATCH * IMAGE);
    draw_batch(r, &r->all, 1, 1, r->x, r->y);
    int changed = 0;
    for (int i = 0; i < BATCH * IMAGE; i++) {
        wrong += r->x[i] != whole[i] && r->x[i] != 0;
        changed += r->x[i] != whole[i];
    }
    CHECK(wrong == 0 && changed > BATCH && changed <= BATCH * square * square,
          "the same batch, but for %d pixels, %d of them wrong", changed, wrong);
    r->o->cutout = 0;
    free(whole);
}

/* --cutout hides a square, which the border may cut; every pixel is its centre equally often. */
static void test_squares(run *r) {
    enum { SIDE = 28, SQUARE = 5, HALF = SQUARE / 2, TIMES = 20000 };
    float image[SIDE * SIDE];
    int wrong = 0;
    int middles = 0;
    jem_rng rng = jem_rng_seed(4);
    r->o->cutout = SQUARE;
    for (int t = 0; t < TIMES; t++) {
        int top = SIDE;
        int bottom = -1;
        int left = SIDE;
        int right = -1;
        int hidden = 0;
        for (int i = 0; i < SIDE * SIDE; i++) image[i] = 1;
        hide_randomly(r, &rng, image);
        for (int i = 0; i < SIDE * SIDE; i++) {
            const int y = i / SIDE;
            const int x = i % SIDE;
            if (image[i] == 1) continue;
            wrong += image[i] != 0;
            top = y < top ? y : top;
            bottom = y > bottom ? y : bottom;
            left = x < left ? x : left;
            right = x > right ? x : right;
            hidden++;
        }
        const int h = bottom - top + 1;
        const int w = right - left + 1;
        const int cut_y = top == 0 || bottom == SIDE - 1;
        const int cut_x = left == 0 || right == SIDE - 1;
        wrong += hidden != h * w || h > SQUARE || w > SQUARE || h <= HALF || w <= HALF;
        wrong += (h < SQUARE && !cut_y) || (w < SQUARE && !cut_x);
        middles += top >= 7 && bottom < 21 && left >= 7 && right < 21;
    }
    CHECK(wrong == 0, "%d squares are wrong", wrong);
    /* centres in 10 x 10 of 28 x 28 pixels: 2551, give or take five times 47 */
    CHECK_CLOSE(middles, TIMES * 100 / (SIDE * SIDE), 240, "squares in the middle");
    check_hidden_batch(r, SQUARE);
}

/* An image and its mirror image are evaluated alike. */
static void test_mirrored(run *r) {
    enum { N = 300 };                              /* more than one batch of evaluate */
    evaluation plain, mirrored, again;
    data_set turned = r->data;
    jem_ctx *ctx = jem_ctx_create(NULL);
    jem_net *net = jem_load(ctx, "examples/models/mnist.safetensors");
    turned.pixels = (unsigned char *)malloc((size_t)N * IMAGE);
    for (int i = 0; i < N * IMAGE; i++)
        turned.pixels[i] = r->data.pixels[i / 28 * 28 + 27 - i % 28];
    CHECK(net && evaluate(net, &r->data, NULL, N, 0, &plain) &&
          evaluate(net, &r->data, NULL, N, EVALUATE_MIRRORED, &mirrored) &&
          evaluate(net, &turned, NULL, N, EVALUATE_MIRRORED, &again), "%s", jem_error(ctx));
    CHECK(mirrored.nll == again.nll && mirrored.accuracy == again.accuracy, "%g and %g",
          mirrored.nll, again.nll);
    CHECK(plain.nll < mirrored.nll, "mirrored digits are harder: %g, %g", plain.nll, mirrored.nll);
    free(turned.pixels);
    jem_net_free(net);
    jem_ctx_free(ctx);
}

int main(int argc, char **argv) {
    static run a, b;
    (void)train_command;                           /* tested in test_divergence.c, cli.sh */
    test_begin(argc, argv);
    if (!CHECK(open_run(&a, "1") && open_run(&b, "2"), "digits")) return test_report();
    if (test_wants("test_epochs")) {
        int *order = (int *)malloc((size_t)a.data.n * sizeof *order);
        test_epochs(&a, order);
        CHECK(memcmp(a.order, b.order, VALID * sizeof *order) == 0, "other images are held out");
        b.update = 0;
        draw_batch(&b, &b.all, 1, 0, b.x, b.y);
        CHECK(memcmp(order, b.all.cards, BATCH * sizeof *order) != 0, "another seed and order");
        free(order);
    }
    if (test_wants("test_moves")) test_moves(&a);
    if (test_wants("test_turns")) test_turns(&a);
    if (test_wants("test_squares")) test_squares(&a);
    if (test_wants("test_mirrored")) test_mirrored(&a);
    close_run(&a);
    close_run(&b);
    return test_report();
}
