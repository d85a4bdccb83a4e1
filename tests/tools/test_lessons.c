/* The worlds of the lessons: their samples follow their stated density; a grid sums to Z. Films
   play, frame by frame. Pictures of shapes are identified; a digit is found on any paper. With
   arguments FILE WIDTH HEIGHT it checks size and contents of a picture instead. (tests/run.sh
   calls it after it has run the examples.) */
#define JEM_IMPLEMENTATION
#include "jem.h"
#include "tests/support/test.h"
#include "tests/support/common.h"

#define main hello_main
#include "tools/support/stb.c"
#include "tools/support/pictures.c"
#include "examples/hello.c"
#undef main
#include "examples/shapes.h"

/* A count of pixels that are not like the one to their left: lines, dots, slopes; of 0 on blank
   paper. */
static int look_at(const char *path, int width, int height) {
    int w = 0;
    int h = 0;
    int edges = 0;
    unsigned char *p = picture_read(path, &w, &h);
    if (!p) return 1;
    for (int i = 0; i < h; i++)
        for (int j = 1; j < w; j++) edges += p[i * w + j] != p[i * w + j - 1];
    stbi_image_free(p);
    const double share = (double)edges / w / h;
    const int ok = w == width && h == height && share > 0.01;
    if (!ok) printf("%s is %d x %d, not %d x %d, or has too few edges: %.3f%%\n", path, w, h, width,
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
    double mean = 0;
    double square = 0;
    double expected = 0;
    double spread = 0;
    double cells[9] = { 0 };
    CHECK_CLOSE(plot_log_z(&p), 0, 2e-3, "%s: the density adds up to 1", name);
    for (int k = 0; k < p.w * p.h; k++) {
        const double q = exp((double)p.values[k]) * area;
        cells[k / p.w * 3 / p.h * 3 + k % p.w * 3 / p.w] += q;
        expected += q * (double)p.values[k];
    }
    jem_rng rng = jem_rng_seed(1);
    world_sample(kind, &rng, POINTS, x, y);
    world_truth(kind, POINTS, x, logp);
    int counts[9] = { 0 };
    int outside = 0;
    int labels[8] = { 0 };
    for (int i = 0; i < POINTS; i++) {
        mean += (double)logp[i] / POINTS;
        square += (double)(logp[i] * logp[i]) / POINTS;
        const int row = (int)((WORLD_BOX - x[2 * i + 1]) / (2 * WORLD_BOX) * 3);
        const int column = (int)((WORLD_BOX + x[2 * i]) / (2 * WORLD_BOX) * 3);
        if (row < 0 || row > 2 || column < 0 || column > 2) outside++;
        else counts[row * 3 + column]++;
        labels[y[i]]++;
    }
    spread = sqrt(fmax(square - mean * mean, 0) / POINTS);
    CHECK(fabs(mean - expected) < 4.5 * spread + 0.01, "%s: mean log p %.4f, its entropy %.4f",
          name, mean, -expected);
    CHECK(outside < POINTS / 1000, "%s: %d are outside of the box", name, outside);
    for (int k = 0; k < 9; k++) {
        const double q = cells[k];
        const double off = (double)counts[k] / POINTS - q;
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
    double worst = 0;
    for (int k = 0; k < 60 * 60; k++)
        worst = most_of(worst, fabs((double)p.values[k] - log(1 / 36.0)));
    CHECK(worst < 0.15, "and is flat: off by %g", worst);
    plot_free(&p);
}

/* ---- films ----------------------------------------------------------------------------------- */

static unsigned number(const unsigned char *b) {
    return (unsigned)b[0] << 24 | (unsigned)b[1] << 16 | (unsigned)b[2] << 8 | b[3];
}
static unsigned char *put(unsigned char *to, unsigned v) {
    for (int k = 0; k < 4; k++) to[k] = (unsigned char)(v >> (24 - 8 * k));
    return to + 4;
}

/* Appends a chunk without a checksum: stb does not read them. */
static unsigned char *put_chunk(unsigned char *to, const char *type, const unsigned char *data,
                                unsigned n) {
    to = put(to, n);
    memcpy(to, type, 4);
    if (n) memcpy(to + 4, data, n);
    return to + 4 + n + 4;
}

/* One frame's pixels by stb_image: as a PNG of its own, of w x h with this palette and data. */
static unsigned char *decode(const unsigned char *header, const unsigned char *palette,
                             unsigned w, unsigned h, const unsigned char *data, unsigned n) {
    unsigned char *png = (unsigned char *)malloc(n + 1000);
    unsigned char *at = png;
    int x, y, c;
    memcpy(at, "\211PNG\r\n\032\n", 8);
    at = put(at + 8, 13);
    memcpy(at, "IHDR", 4);
    at += 4;
    at = put(put(at, w), h);
    memcpy(at, header + 8, 5);
    at += 5 + 4;
    if (palette) at = put_chunk(at, "PLTE", palette, number(palette - 8));
    at = put_chunk(put_chunk(at, "IDAT", data, n), "IEND", NULL, 0);
    unsigned char *rgb = stbi_load_from_memory(png, (int)(at - png), &x, &y, &c, 3);
    free(png);
    CHECK(rgb && x == (int)w && y == (int)h && c == (header[9] ? 3 : 1), "a frame of %u x %u", w,
          h);
    CHECK((header[9] == 3) == (palette != NULL), "a palette, or none");
    return rgb;
}

/* Draws a frame over a canvas of width w; rect: width, height, column, row. */
static void draw_over(unsigned char *canvas, unsigned w, const unsigned char *rgb,
                      const unsigned rect[4]) {
    const unsigned row = rect[0] * 3;
    for (unsigned i = 0; i < rect[1]; i++)
        memcpy(canvas + ((rect[3] + i) * w + rect[2]) * 3, rgb + i * row, row);
}

/* Plays it as the specification says: each frame is drawn over the last, in its rectangle. */
static void play(const unsigned char *file, unsigned size, const unsigned char *wanted, int frames,
                 unsigned w, unsigned h, int hold) {
    const unsigned char *header = NULL;
    const unsigned char *palette = NULL;
    unsigned char *canvas = (unsigned char *)calloc(w * h, 3);
    unsigned at = 8;
    unsigned next = 0;
    unsigned rect[4] = { 0, 0, 0, 0 };
    unsigned bytes = w * h * 3;
    int shown = 0;
    int said = 0;
    int ended = 0;
    CHECK(size > 8 && !memcmp(file, "\211PNG\r\n\032\n", 8), "a PNG");
    while (at + 12 <= size && !ended) {
        const unsigned n = number(file + at);
        const unsigned char *type = file + at + 4;
        const unsigned char *data = type + 4;
        if (!CHECK(n < size && at + 12 + n <= size, "a chunk of %u", n)) break;
        /* stb's checksum, which did not write it */
        CHECK(number(data + n) == stbiw__crc32((unsigned char *)(uintptr_t)type, (int)n + 4),
              "the checksum of %.4s", (const char *)type);
        if (!memcmp(type, "IHDR", 4)) header = data;
        if (!memcmp(type, "PLTE", 4)) palette = data;
        if (!memcmp(type, "acTL", 4)) said = (int)number(data);
        if (!memcmp(type, "fcTL", 4)) {
            CHECK(n == 26 && number(data) == next++, "frames are numbered");
            for (int k = 0; k < 4; k++) rect[k] = number(data + 4 + 4 * k);
            CHECK(rect[0] && rect[1] && rect[2] + rect[0] <= w && rect[3] + rect[1] <= h, "inside");
            const int ms = (data[20] << 8 | data[21]) * 1000 / (data[22] << 8 | data[23]);
            CHECK(ms == (shown == frames - 1 ? hold : 50), "%d ms", ms);
            CHECK(!data[24] && !data[25], "drawn over what there is");
        }
        const int first = !memcmp(type, "IDAT", 4);
        const int later = !memcmp(type, "fdAT", 4);
        if (later) CHECK(number(data) == next++, "and so is their data");
        if ((first || later) && CHECK(header && shown < frames && said == frames, "in order")) {
            const unsigned skip = later ? 4 : 0;
            unsigned char *rgb = decode(header, palette, rect[0], rect[1], data + skip, n - skip);
            if (rgb) draw_over(canvas, w, rgb, rect);
            stbi_image_free(rgb);
            CHECK(!memcmp(canvas, wanted + (unsigned)shown * bytes, bytes), "frame %d", shown);
            shown++;
        }
        ended = !memcmp(type, "IEND", 4);
        at += 12 + n;
    }
    CHECK(shown == frames && ended && at == size, "%d of %d frames", shown, frames);
    free(canvas);
}

static void test_film(void) {
    printf("films\n");
    enum { W = 70, H = 40, FRAMES = 6, BYTES = W * H * 3 };
    static unsigned char frames[FRAMES][BYTES], file[FRAMES * BYTES];
    jem_rng rng = jem_rng_seed(8);
    const char *path = "build/test_film.png";
    for (int k = 0; k < FRAMES; k++) {
        if (k) memcpy(frames[k], frames[k - 1], BYTES);                /* frame 3 is frame 2 */
        for (int i = 0; i < BYTES; i++) {
            const int row = i / (W * 3);
            const int column = i / 3 % W;
            const int inside = row > 9 * k && row < 30 && column > 20 && column < 40 + k;
            if (k == 0 || k == 5 || (k == 4 && i == BYTES - 1) || (k < 3 && inside))
                frames[k][i] ^= (unsigned char)(1 + jem_rng_below(&rng, 255));
        }
    }
    CHECK(picture_film(path, frames[0], FRAMES, W, H, 50, 700), "written");
    FILE *f = fopen(path, "rb");
    const size_t size = f ? fread(file, 1, sizeof file, f) : 0;
    if (f) fclose(f);
    play(file, (unsigned)size, frames[0], FRAMES, W, H, 700);
    int w, h, c;
    unsigned char *rgb = stbi_load(path, &w, &h, &c, 3);               /* a reader without films */
    CHECK(rgb && w == W && h == H && !memcmp(rgb, frames[0], BYTES), "is its first frame");
    stbi_image_free(rgb);
    remove(path);
    CHECK(!picture_film(path, frames[0], 0, W, H, 1, 1) && !(f = fopen(path, "rb")), "no frames");
}

/* Adds a grid of random images to a film, and stores its pixels as RGB. */
static int add_frame(const char *path, jem_rng *rng, int c, unsigned at, unsigned char *rgb,
                     int *w, int *h) {
    enum { N = 5, EDGE = 6 };
    float x[N * 3 * EDGE * EDGE];
    int channels;
    for (int i = 0; i < N * 3 * EDGE * EDGE; i++) x[i] = 2 * jem_rng_uniform(rng) - 1;
    if (!picture_grid("build/test_grid.png", x, N, 3, c, EDGE, EDGE, 2)) return 0;
    unsigned char *grid = stbi_load("build/test_grid.png", w, h, &channels, 3);
    if (grid) memcpy(rgb, grid, (size_t)(*w * *h * 3));
    stbi_image_free(grid);
    return grid && picture_film_add(path, x, N, 3, c, EDGE, EDGE, 2, at, 50);
}

/* A film grows by a frame at a time; a resumed run drops frames of later updates; a film that is
   damaged, or of other pictures, is replaced. */
static void test_growing_film(void) {
    printf("films that grow\n");
    enum { MOST = 20000, FRAMES = 4 };
    static unsigned char frames[FRAMES][MOST], grey[MOST], file[16 * MOST];
    const char *path = "build/test_growing.png";
    jem_rng rng = jem_rng_seed(9);
    int w = 0;
    int h = 0;
    remove(path);
    for (int round = 0; round < 3; round++) {
        int shown = FRAMES;
        for (int k = 0; k < FRAMES; k++)
            CHECK(add_frame(path, &rng, 3, 10 * (unsigned)k, frames[k], &w, &h), "frame %d", k);
        if (round == 1) {                          /* resumed after update 15 */
            shown = 3;
            CHECK(add_frame(path, &rng, 3, 20, frames[2], &w, &h), "resumed");
        }
        if (round == 2) {
            shown = 1;
            FILE *damaged = fopen(path, "wb");     /* file has the film of the last round */
            CHECK(damaged && fwrite(file, 1, 1000, damaged) == 1000, "%s", path);
            if (damaged) fclose(damaged);
            CHECK(add_frame(path, &rng, 3, 90, frames[0], &w, &h), "replaced");
        }
        FILE *f = fopen(path, "rb");
        const size_t size = f ? fread(file, 1, sizeof file, f) : 0;
        if (f) fclose(f);
        for (int k = 1; k < shown; k++)            /* side by side, as play expects them */
            memmove(frames[0] + k * w * h * 3, frames[k], (size_t)(w * h * 3));
        play(file, (unsigned)size, frames[0], shown, (unsigned)w, (unsigned)h, 50);
    }
    CHECK(add_frame(path, &rng, 1, 100, grey, &w, &h), "grey pictures");
    FILE *f = fopen(path, "rb");
    const size_t size = f ? fread(file, 1, sizeof file, f) : 0;
    if (f) fclose(f);
    play(file, (unsigned)size, grey, 1, (unsigned)w, (unsigned)h, 50);
    remove(path);
    remove("build/test_grid.png");
}

/* A film of few colours has a palette, and is exact; more colours become 256, close to them. */
static void test_palette(void) {
    enum { W = 64, H = 48, FRAMES = 3, PIXELS = FRAMES * W * H };
    static unsigned char frames[PIXELS][3], before[PIXELS][3], file[3 * PIXELS];
    const char *path = "build/test_palette.png";
    jem_rng rng = jem_rng_seed(5);
    for (int i = 0; i < PIXELS; i++) {
        const int shade = jem_rng_below(&rng, 256);
        for (int k = 0; k < 3; k++) frames[i][k] = (unsigned char)((shade * (k + 3)) & 255);
    }
    CHECK(picture_film(path, frames[0], FRAMES, W, H, 50, 700), "written");
    FILE *f = fopen(path, "rb");
    const size_t size = f ? fread(file, 1, sizeof file, f) : 0;
    if (f) fclose(f);
    CHECK(size > 33 && file[25] == 3, "256 colours: a palette");
    play(file, (unsigned)size, frames[0], FRAMES, W, H, 700);
    remove(path);
    for (int i = 0; i < PIXELS; i++) {                         /* thousands of them */
        for (int k = 0; k < 3; k++) frames[i][k] = (unsigned char)(i * (k + 1) / 80 + i % 7);
    }
    memcpy(before, frames, sizeof before);
    CHECK(picture_reduce(frames[0], PIXELS), "reduced");
    int count = 0;
    int worst = 0;
    for (int i = 0; i < PIXELS; i++) {
        int known = 0;
        for (int j = 0; j < i && !known; j++) known = !memcmp(frames[i], frames[j], 3);
        count += !known;
        for (int k = 0; k < 3; k++) {
            const int off = abs((int)frames[i][k] - (int)before[i][k]);
            worst = off > worst ? off : worst;
        }
    }
    CHECK(count <= 256, "%d colours", count);
    CHECK(worst <= 16, "a colour is off by %d", worst);
}

/* ---- shapes ---------------------------------------------------------------------------------- */

/* 'red or left, and not small': of all 3 3 2 2 scenes, those. */
static void test_words(void) {
    printf("words\n");
    WORD(red, COLOUR, RED);
    WORD(left, PLACE, LEFT);
    WORD(small, SIZE, SMALL);
    JOIN(either, OR, &red, &left);
    JOIN(not_small, NOT, &small, NULL);
    JOIN(all, AND, &either, &not_small);
    int count = 0;
    for (int k = 0; k < 36; k++) {
        const scene s = { { k % 3, k / 3 % 3, k / 9 % 2, k / 18 }, 0, 0, 0 };
        const int want = (s.is[COLOUR] == RED || s.is[PLACE] == LEFT) && s.is[SIZE] != SMALL;
        CHECK(words_hold(&all, &s) == want, "scene %d", k);
        count += words_hold(&all, &s);
    }
    CHECK(count == 12, "%d scenes", count);
}

/* Drawn scenes are identified, also with slight noise; other pictures are rejected. */
static void test_shapes(void) {
    printf("shapes\n");
    enum { SCENES = 60 };
    float x[SHAPE_NUMBERS], other[SHAPE_NUMBERS];
    jem_rng rng = jem_rng_seed(9);
    int counts[FACTORS][3] = { { 0 } };
    for (int i = 0; i < SCENES; i++) {
        scene found;
        const scene s = scene_random(&rng);
        scene_draw(&s, x);
        const float clean = scene_nearest(x, &found);
        CHECK(clean > 0.9f && !memcmp(s.is, found.is, sizeof s.is), "%d: %g", i, (double)clean);
        for (int k = 0; k < SHAPE_NUMBERS; k++) x[k] += 0.1f * jem_rng_normal(&rng);
        const float noisy = scene_nearest(x, &found);
        CHECK(noisy > SHAPE_SEEN && !memcmp(s.is, found.is, sizeof s.is), "noisy %d: %g", i,
              (double)noisy);
        scene two = scene_random(&rng);            /* one on either side, however small */
        if (two.is[PLACE] == s.is[PLACE]) two.x = SIDE - two.x;
        scene_draw(&s, x);
        scene_draw(&two, other);
        for (int k = 0; k < SHAPE_NUMBERS; k++) x[k] = fmaxf(x[k], other[k]);
        const float both = scene_nearest(x, &found);
        CHECK(both < SHAPE_SEEN, "two at once: %g", (double)both);
        for (int k = 0; k < SHAPE_NUMBERS; k++) x[k] = -1 + 0.15f * jem_rng_normal(&rng);
        CHECK(scene_nearest(x, &found) < 0.1f, "nothing but noise");
        for (int k = 0; k < FACTORS; k++) counts[k][s.is[k]]++;
    }
    for (int k = 0; k < FACTORS; k++)
        for (int v = 0; v < factors[k].values; v++)
            CHECK(counts[k][v] > 8, "%s: %d of %d", factors[k].value[v], counts[k][v], SCENES);
}

enum { ZOOM = 8, WIDE = 400, HIGH = 300, LEFT_EDGE = 150, UPPER_EDGE = 40 };

/* Draws a digit, enlarged: white on black, in pencil, and into the opacity of a black sheet. */
static void draw_digit(const float *x, unsigned char *white, unsigned char *pencil,
                       unsigned char *clear) {
    for (int k = 0; k < HIGH * WIDE; k++) {
        const int row = (k / WIDE - UPPER_EDGE) / ZOOM;
        const int column = (k % WIDE - LEFT_EDGE) / ZOOM;
        const int on = k / WIDE >= UPPER_EDGE && k % WIDE >= LEFT_EDGE && row < DIGIT &&
                       column < DIGIT;
        const float ink = on ? (x[row * DIGIT + column] + 1) / 2 : 0;
        white[k] = picture_byte(ink);
        pencil[k] = (unsigned char)(240.5f - 100 * ink);
        clear[4 * k + 3] = white[k];
    }
}

/* Checks the centre of mass of an image against the network's framing. */
static void check_centre(const jem_net *net, const float *x) {
    const char *framing = jem_net_meta(net, "jem.framing");
    double down = 0;
    double across = 0;
    double y_mass = 0;
    double x_mass = 0;
    double mass = 0;
    for (int k = 0; k < DIGIT_PIXELS; k++) {
        const double ink = ((double)x[k] + 1) / 2;
        mass += ink;
        y_mass += ink * (k / DIGIT + .5);
        x_mass += ink * (k % DIGIT + .5);
    }
    if (!CHECK(framing && sscanf(framing, "0 %*f %lf %lf", &down, &across) == 2, "a framing"))
        return;
    CHECK(fabs(y_mass / mass - DIGIT * down) < 0.1 && fabs(x_mass / mass - DIGIT * across) < 0.1,
          "its centre of mass is at %.2f, %.2f", y_mass / mass, x_mass / mass);
}

/* Checks that a picture of 28 x 28 is not framed. */
static void check_same_size(const jem_net *net, const float *x) {
    unsigned char bytes[DIGIT_PIXELS];
    float same[DIGIT_PIXELS];
    for (int k = 0; k < DIGIT_PIXELS; k++) bytes[k] = picture_byte((x[k] + 1) / 2);
    CHECK(to_digit(net, "a digit", bytes, DIGIT, DIGIT, 1, same), "a digit");
    CHECK(largest_gap(x, same, DIGIT_PIXELS) < 0.01, "28 x 28: off by %g",
          largest_gap(x, same, DIGIT_PIXELS));
}

/* A digit as someone would bring it: large, off the centre, in pencil on grey paper, or black or
   white on a transparent sheet, as drawing programs save it. */
static void test_hello(void) {
    printf("a custom digit\n");
    static unsigned char white[HIGH * WIDE], pencil[HIGH * WIDE], clear[HIGH * WIDE * 4];
    static const char *const path = "build/test_hello.png";
    float as_white[DIGIT_PIXELS], other[DIGIT_PIXELS];
    int w = 0;
    int h = 0;
    int channels = 0;
    digits d;
    new_file n;
    jem_ctx *ctx = jem_ctx_create(NULL);
    const jem_convnet_desc shape = jem_convnet_desc_default();
    jem_net *net = jem_convnet_create(ctx, &shape, 1);
    if (!CHECK(net && digits_load(DIGITS_PATH, &d), "digits")) return;
    draw_digit(d.test_x + 14 * DIGIT_PIXELS, white, pencil, clear);
    CHECK(jem_net_fit_framing(net, d.x, DIGITS_TRAIN) == JEM_OK, "%s", jem_error(ctx));
    check_same_size(net, d.test_x);
    digits_free(&d);
    CHECK(to_digit(net, "a picture", white, WIDE, HIGH, 1, as_white), "white on black");
    check_centre(net, as_white);
    CHECK(to_digit(net, "a picture", pencil, WIDE, HIGH, 1, other), "in pencil");
    CHECK(largest_gap(as_white, other, DIGIT_PIXELS) < 0.03, "in pencil: off by %g",
          largest_gap(as_white, other, DIGIT_PIXELS));
    const int written = new_file_open(&n, path) && picture__png(&n, clear, WIDE, HIGH, 4);
    CHECK(picture__done(&n, written), "a transparent sheet");
    unsigned char *read = stbi_load(path, &w, &h, &channels, 0);
    if (CHECK(read && w == WIDE && h == HIGH &&
              to_digit(net, "a picture", read, w, h, channels, other), "read again"))
        CHECK(largest_gap(as_white, other, DIGIT_PIXELS) < 0.03, "transparent: off by %g",
              largest_gap(as_white, other, DIGIT_PIXELS));
    stbi_image_free(read);
    remove(path);
    for (int k = 0; k < HIGH * WIDE; k++) memset(clear + 4 * k, 255, 3);
    CHECK(to_digit(net, "a picture", clear, WIDE, HIGH, 4, other), "white on a transparent sheet");
    CHECK(largest_gap(as_white, other, DIGIT_PIXELS) < 0.03, "white, transparent: off by %g",
          largest_gap(as_white, other, DIGIT_PIXELS));
    memset(white, 200, sizeof white);
    CHECK(!to_digit(net, "a picture", white, WIDE, HIGH, 1, other), "paper without ink");
    jem_net_free(net);
    jem_ctx_free(ctx);
}

int main(int argc, char **argv) {
    static const test_case all[] = {
        TEST(test_histogram), TEST(test_film), TEST(test_growing_film), TEST(test_palette),
        TEST(test_words), TEST(test_shapes), TEST(test_hello)
    };
    if (argc == 4) return look_at(argv[1], atoi(argv[2]), atoi(argv[3]));
    test_begin(argc, argv);
    if (test_all()) printf("worlds: samples and densities agree\n");
    for (int k = 0; k < WORLDS; k++)
        if (test_wants(worlds[k].name)) test_world((world_kind)k);
    CHECK(world_find("spirals") == SPIRALS && world_find("nowhere") == WORLDS, "by name");
    test_run(all, TEST_COUNT(all), NULL);
    return test_report();
}
