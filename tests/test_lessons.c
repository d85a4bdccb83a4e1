/* The worlds of the lessons: their samples come from the density that they claim; a grid adds up to
   Z. With arguments FILE WIDTH HEIGHT it looks at a picture instead: is it of that size, and is there
   something on it? (tests/run.sh asks, after it has run the examples.) */
#define JEM_IMPLEMENTATION
#include "jem.h"
#include "test.h"

#include "../examples/worlds.h"

/* A count of pixels that are not like the one to their left: lines, dots, slopes; of 0 on blank
   paper. */
static int look_at(const char *path, int width, int height) {
    int w = 0, h = 0, edges = 0;
    unsigned char *p = picture_read(path, &w, &h);
    if (!p) return 1;
    for (int i = 0; i < h; i++)
        for (int j = 1; j < w; j++) edges += p[i * w + j] != p[i * w + j - 1];
    stbi_image_free(p);
    const double share = (double)edges / w / h;
    const int ok = w == width && h == height && share > 0.01;
    if (!ok) printf("%s is %d x %d (%d x %d is wanted), %.3f%% of it edges\n", path, w, h, width,
                    height, 100 * share);
    return !ok;
}

static void test_world(world_kind kind) {
    enum { POINTS = 20000 };
    static float x[2 * POINTS], logp[POINTS];
    static int y[POINTS];
    const char *name = worlds[kind].name;
    plot p;
    if (!CHECK(plot_create(&p, 300, 300, -WORLD_BOX, WORLD_BOX, -WORLD_BOX, WORLD_BOX), "memory"))
        return;
    plot_truth(&p, kind);
    const double area = pow(2 * (double)WORLD_BOX / p.w, 2);
    double mean = 0, square = 0, expected = 0, spread = 0, cells[9] = { 0 };
    CHECK_CLOSE(plot_log_z(&p), 0, 2e-3, "%s: the density adds up to 1", name);
    for (int k = 0; k < p.w * p.h; k++) {
        const double q = exp((double)p.values[k]) * area;
        cells[k / p.w * 3 / p.h * 3 + k % p.w * 3 / p.w] += q;
        expected += q * (double)p.values[k];
    }
    jem_rng rng = jem_rng_seed(1);
    world_sample(kind, &rng, POINTS, x, y);
    world_truth(kind, POINTS, x, logp);
    int counts[9] = { 0 }, outside = 0, labels[8] = { 0 };
    for (int i = 0; i < POINTS; i++) {
        mean += (double)logp[i] / POINTS, square += (double)(logp[i] * logp[i]) / POINTS;
        const int row = (int)((WORLD_BOX - x[2 * i + 1]) / (2 * WORLD_BOX) * 3);
        const int column = (int)((WORLD_BOX + x[2 * i]) / (2 * WORLD_BOX) * 3);
        if (row < 0 || row > 2 || column < 0 || column > 2) outside++;
        else counts[row * 3 + column]++;
        labels[y[i]]++;
    }
    spread = sqrt(fmax(square - mean * mean, 0) / POINTS);
    CHECK(fabs(mean - expected) < 4.5 * spread + 0.01, "%s: mean log p %.4f, its entropy %.4f", name,
          mean, -expected);
    CHECK(outside < POINTS / 1000, "%s: %d are outside of the box", name, outside);
    for (int k = 0; k < 9; k++) {
        const double q = cells[k], off = (double)counts[k] / POINTS - q;
        CHECK(fabs(off) < 4.5 * sqrt((q + 1e-4) / POINTS) + 0.002, "%s: cell %d has %d, not %.0f",
              name, k, counts[k], q * POINTS);
    }
    for (int c = 0; c < worlds[kind].classes; c++)
        CHECK(abs(labels[c] - POINTS / worlds[kind].classes) <= 1, "%s: class %d", name, c);
    plot_free(&p);
}

/* A histogram of uniform points is flat; it counts every point once. */
static void test_histogram(void) {
    printf("histograms\n");
    enum { POINTS = 50000 };
    static float x[2 * POINTS];
    plot p;
    jem_rng rng = jem_rng_seed(2);
    for (int i = 0; i < 2 * POINTS; i++) x[i] = WORLD_BOX * (2 * jem_rng_uniform(&rng) - 1);
    if (!CHECK(plot_create(&p, 60, 60, -WORLD_BOX, WORLD_BOX, -WORLD_BOX, WORLD_BOX), "memory"))
        return;
    plot_histogram(&p, POINTS, x, 10);
    CHECK_CLOSE(plot_log_z(&p), 0, 1e-4, "it adds up to 1");
    float worst = 0;
    for (int k = 0; k < 60 * 60; k++) worst = fmaxf(worst, fabsf(p.values[k] - logf(1 / 36.0f)));
    CHECK(worst < 0.15f, "and is flat: off by %g", (double)worst);
    plot_free(&p);
}

int main(int argc, char **argv) {
    if (argc == 4) return look_at(argv[1], atoi(argv[2]), atoi(argv[3]));
    printf("worlds: samples and densities agree\n");
    for (int k = 0; k < WORLDS; k++) test_world((world_kind)k);
    CHECK(world_find("spirals") == SPIRALS && world_find("nowhere") == WORLDS, "by name");
    test_histogram();
    return test_report();
}
