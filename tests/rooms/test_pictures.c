/* Conversion of pictures with 8-bit pixels to the input of a network, and back. */
#define JEM_IMPLEMENTATION
#include "jem.h"
#include "tests/support/test.h"
#include "tests/support/common.h"

static jem_net *net_of(jem_ctx *ctx, int channels, int height, int width) {
    const small_shape s = { channels, height, width, 3, 0 };
    return small_mlp(ctx, s, 1);
}
static jem_pixels_desc unit(void) {                /* to 0..1, where values are easy to tell */
    const jem_pixels_desc d = { 0, 1, 0, 0, 0, JEM_FIT_TRAINED, 0 };
    return d;
}
static int near(double a, double b) { return fabs(a - b) < 1e-6; }

static void test_sizes(jem_ctx *ctx) {
    printf("sizes: means over areas, of every width\n");
    const jem_pixels_desc d = unit();
    unsigned char pixels[40 * 40];
    jem_rng rng = jem_rng_seed(1);
    for (int side = 1; side <= 9; side++)
        for (int w = 1; w <= 40; w += 3)
            for (int h = 2; h <= 40; h += 7) {
                jem_net *net = net_of(ctx, 1, side, side);
                double all = 0;
                double sum = 0;
                for (int i = 0; i < w * h; i++) {
                    pixels[i] = (unsigned char)jem_rng_below(&rng, 256);
                    all += pixels[i] / 255.0;
                }
                float x[81];
                int did = -1;
                CHECK(jem_pixels_to_floats(net, pixels, w, h, 1, &d, x, &did) == JEM_OK, "%s",
                      jem_error(ctx));
                for (int i = 0; i < side * side; i++) sum += (double)x[i];
                /* areas cover the picture once: so the mean stays, if it is made smaller */
                if (w >= side && h >= side)
                    CHECK(fabs(sum / (side * side) - all / (w * h)) < 1e-5, "%d x %d to %d: mean",
                          w, h, side);
                CHECK(!(did & JEM_DID_RESIZE) == (w == side && h == side), "resized?");
                CHECK(!(did & JEM_DID_STRETCH) == (w == h), "stretched?");
                if (w == side && h == side)
                    for (int i = 0; i < w * h; i++)
                        CHECK(near((double)x[i], pixels[i] / 255.0), "pixel %d", i);
                jem_net_free(net);
            }
    jem_net *net = net_of(ctx, 1, 2, 2);
    const unsigned char three[9] = { 90, 30, 0, 60, 120, 60, 0, 30, 255 };
    float x[4];
    jem_pixels_to_floats(net, three, 3, 3, 1, &d, x, NULL);    /* corner, halves, a quarter */
    CHECK(near((double)x[0], (90 + 15 + 30 + 30) / 2.25 / 255), "area: %g", (double)x[0]);
    CHECK(near((double)x[3], (255 + 15 + 30 + 30) / 2.25 / 255), "area: %g", (double)x[3]);
    const unsigned char one[1] = { 51 };
    jem_pixels_to_floats(net, one, 1, 1, 1, NULL, x, NULL);    /* larger: the nearest; -1 .. 1 */
    for (int i = 0; i < 4; i++) CHECK(near((double)x[i], -0.6), "one pixel: %g", (double)x[i]);
    jem_net_free(net);
}

/* Checks pictures that are smaller than the image in one or both directions. */
static void test_nearest(jem_ctx *ctx) {
    printf("sizes: enlarged, each pixel is the nearest one\n");
    enum { CASES = 4, MOST = 13 };
    static const int cases[CASES][4] = {           /* height and width, of the image and picture */
        { 7, 5, 3, 2 }, { 5, 7, 2, 3 }, { 13, 4, 5, 1 }, { 6, 6, 6, 5 }
    };
    const jem_pixels_desc d = unit();
    for (int k = 0; k < CASES; k++) {
        const int height = cases[k][0];
        const int width = cases[k][1];
        const int h = cases[k][2];
        const int w = cases[k][3];
        unsigned char pixels[MOST * MOST];
        float x[MOST * MOST];
        int did = 0;
        for (int i = 0; i < h * w; i++) pixels[i] = (unsigned char)(10 * i + 3);
        jem_net *net = net_of(ctx, 1, height, width);
        CHECK(jem_pixels_to_floats(net, pixels, w, h, 1, &d, x, &did) == JEM_OK, "%s",
              jem_error(ctx));
        CHECK(did & JEM_DID_RESIZE, "case %d: did %d", k, did);
        for (int i = 0; i < height; i++)
            for (int j = 0; j < width; j++) {
                const int row = (2 * i + 1) * h / (2 * height);  /* that of the pixel's centre */
                const int column = (2 * j + 1) * w / (2 * width);
                CHECK(near((double)x[i * width + j], pixels[row * w + column] / 255.0),
                      "case %d, row %d, column %d: %g", k, i, j, (double)x[i * width + j]);
            }
        jem_net_free(net);
    }
}

static void test_colours(jem_ctx *ctx) {
    printf("grey, alpha, colour, ink\n");
    jem_net *grey = net_of(ctx, 1, 1, 1);
    jem_net *colour = net_of(ctx, 3, 1, 1);
    static const unsigned char pixel[4] = { 255, 51, 102, 51 };        /* alpha: a fifth */
    static const double rgb[3] = { 1, .2, .4 };
    static const double luma = .299 + .587 * .2 + .114 * .4;           /* ITU-R BT.601 */
    for (int channels = 1; channels <= 4; channels++)
        for (int background = 0; background <= 255; background += 255)
            for (int invert = 0; invert < 2; invert++) {
                jem_pixels_desc d = unit();
                d.background = background;
                d.invert = invert;
                unsigned char p[4];
                for (int i = 0; i < channels; i++) p[i] = pixel[i];
                if (channels == 2) p[1] = 51;
                const double a = channels % 2 ? 1 : .2;
                const double behind = (1 - a) * background / 255.0;
                float one[1], three[3];
                int did[2];
                CHECK(jem_pixels_to_floats(grey, p, 1, 1, channels, &d, one, did) == JEM_OK &&
                      jem_pixels_to_floats(colour, p, 1, 1, channels, &d, three, did + 1) == JEM_OK,
                      "%s", jem_error(ctx));
                const double g = a * (channels > 2 ? luma : 1) + behind;
                CHECK(near((double)one[0], invert ? 1 - g : g), "%d channels to grey: %g", channels,
                      (double)one[0]);
                for (int i = 0; i < 3; i++) {
                    const double v = a * (channels > 2 ? rgb[i] : 1) + behind;
                    CHECK(near((double)three[i], invert ? 1 - v : v), "%d channels to colour: %g",
                          channels, (double)three[i]);
                }
                const int both = (channels % 2 ? 0 : JEM_DID_BLEND) | (invert ? JEM_DID_INVERT : 0);
                CHECK(did[0] == (both | (channels > 2 ? JEM_DID_GREY : 0)), "it says %d", did[0]);
                CHECK(did[1] == (both | (channels > 2 ? 0 : JEM_DID_COLOUR)), "it says %d", did[1]);
            }
    jem_net_free(grey);
    jem_net_free(colour);
}

/* Returns the value of a pixel for channel k of a network, in the order of the definition: alpha
   over the background, then grey, then inverted. */
static double value_of(const unsigned char *p, int channels, const jem_pixels_desc *d, int wanted,
                       int k) {
    const int colour = channels > 2;
    const double alpha = channels % 2 ? 1 : p[channels - 1] / 255.0;
    double c[3];
    for (int i = 0; i < 3; i++)
        c[i] = alpha * p[colour ? i : 0] / 255 + (1 - alpha) * d->background / 255;
    const double v = wanted == 1 && colour ? 0.299 * c[0] + 0.587 * c[1] + 0.114 * c[2] : c[k];
    return d->invert ? 1 - v : v;
}

/* Whole pixels are summed as bytes: the same as one by one, with transparent pixels or without. */
static void test_whole_pixels(jem_ctx *ctx) {
    printf("large pictures: sums of bytes are those of single pixels\n");
    enum { W = 97, H = 61, MOST = W * H * 4 };
    static unsigned char p[MOST];
    jem_rng rng = jem_rng_seed(4);
    for (int channels = 1; channels <= 4; channels++)
        for (int kind = 0; kind < 8; kind++) {
            const int wanted = kind & 1 ? 3 : 1;
            jem_pixels_desc d = { 0, 1, 40, kind >> 1 & 1, -1, JEM_FIT_TRAINED, 0 };
            jem_net *net = net_of(ctx, wanted, 5, 7);
            float x[3 * 35];
            for (int i = 0; i < W * H * channels; i++) {
                p[i] = (unsigned char)jem_rng_below(&rng, 256);
                const int is_alpha = channels % 2 == 0 && i % channels == channels - 1;
                if (is_alpha && (!(kind & 4) || i % 10)) p[i] = 255;
            }
            CHECK(jem_pixels_to_floats(net, p, W, H, channels, &d, x, NULL) == JEM_OK, "%s",
                  jem_error(ctx));
            for (int k = 0; k < 35 * wanted; k++) {
                const int i = k / 7 % 5;
                const int j = k % 7;
                double sum = 0;
                double area = 0;
                for (int row = 0; row < H; row++)
                    for (int col = 0; col < W; col++) {
                        const double high = fmin(row + 1, (i + 1) * H / 5.0) -
                                            fmax(row, i * H / 5.0);
                        const double wide = fmin(col + 1, (j + 1) * W / 7.0) -
                                            fmax(col, j * W / 7.0);
                        if (high <= 0 || wide <= 0) continue;
                        const unsigned char *pixel = p + (row * W + col) * channels;
                        sum += high * wide * value_of(pixel, channels, &d, wanted, k / 35);
                        area += high * wide;
                    }
                CHECK(near((double)x[k], sum / area), "%d bytes, kind %d, number %d: %g, not %g",
                      channels, kind, k, (double)x[k], sum / area);
            }
            jem_net_free(net);
        }
}

static void test_back(jem_ctx *ctx) {
    printf("there and back\n");
    jem_net *net = net_of(ctx, 3, 4, 5);
    unsigned char p[2 * 60], q[2 * 60];
    float x[2 * 60];
    jem_rng rng = jem_rng_seed(2);
    for (int invert = 0; invert < 2; invert++) {
        jem_pixels_desc d = { -2, 3, 0, 0, 0, JEM_FIT_TRAINED, 0 };
        d.invert = invert;
        for (int i = 0; i < 120; i++) p[i] = (unsigned char)jem_rng_below(&rng, 256);
        for (int i = 0; i < 2; i++)
            jem_pixels_to_floats(net, p + i * 60, 5, 4, 3, &d, x + i * 60, NULL);
        CHECK(jem_floats_to_pixels(net, x, 2, &d, q) == JEM_OK && !memcmp(p, q, 120), "%s",
              jem_error(ctx));
    }
    static const float beyond[3] = { 1e9f, -1e9f, (float)NAN };
    for (int i = 0; i < 60; i++) x[i] = beyond[i % 3];
    for (int invert = 0; invert < 2; invert++) {   /* NaN is black in both */
        jem_pixels_desc d = { -2, 3, 0, 0, 0, JEM_FIT_TRAINED, 0 };
        int bad = 0;
        d.invert = invert;
        jem_floats_to_pixels(net, x, 1, &d, q);
        for (int i = 0; i < 60; i++) {             /* q is [h][w][c], x is [c][h][w] */
            const int at = i % 3 * 20 + i / 3;
            bad += q[i] != (at % 3 == invert ? 255 : 0);
        }
        CHECK(bad == 0, "%d pixels out of range, invert = %d", bad, invert);
    }
    jem_net_free(net);
}

static void test_refused(jem_ctx *ctx) {
    printf("what cannot be a picture\n");
    jem_net *net = net_of(ctx, 1, 4, 4);
    jem_net *two = net_of(ctx, 2, 4, 4);
    static const unsigned char p[16] = { 0 };
    unsigned char out[16];
    float x[16] = { 0 };
    jem_answer a;
    static const int wrong[][3] = { { 0, 4, 1 }, { 4, -1, 1 }, { 4, 4, 0 }, { 4, 4, 5 },
                                    { 1 << 30, 1 << 30, 4 } };
    for (int i = 0; i < 5; i++)
        CHECK(jem_classify_pixels(net, p, wrong[i][0], wrong[i][1], wrong[i][2], NULL, &a, NULL) ==
              JEM_BAD_ARGUMENT && says(ctx, "pixels: a picture of"), "case %d", i);
    CHECK(jem_classify_pixels(net, NULL, 4, 4, 1, NULL, &a, NULL) != JEM_OK && says(ctx, "NULL"),
          "no pixels");
    CHECK(jem_classify_pixels(net, p, 4, 4, 1, NULL, NULL, NULL) != JEM_OK && says(ctx, "NULL"),
          "no answer");
    CHECK(jem_classify_pixels(NULL, p, 4, 4, 1, NULL, &a, NULL) == JEM_BAD_ARGUMENT, "no network");
    CHECK(jem_classify_pixels(two, p, 4, 4, 1, NULL, &a, NULL) == JEM_BAD_SHAPE &&
          says(ctx, "has 2 channels"), "two channels");
    jem_pixels_desc d = { 1, -1, 0, 0, 0, JEM_FIT_TRAINED, 0 };
    CHECK(jem_floats_to_pixels(net, x, 1, &d, out) != JEM_OK &&
          says(ctx, "lo is 1 and desc.hi is -1"), "range");
    d = unit();
    d.background = 256;
    CHECK(jem_pixels_to_floats(net, p, 4, 4, 1, &d, x, NULL) != JEM_OK &&
          says(ctx, "background is 256"), "background");
    CHECK(jem_floats_to_pixels(net, NULL, 1, NULL, out) != JEM_OK && says(ctx, "NULL"),
          "no images");
    CHECK(jem_floats_to_pixels(net, x, -1, NULL, out) != JEM_OK && says(ctx, "n is -1"), "-1");
    x[5] = (float)NAN;
    CHECK(jem_classify(net, x, 1, &a) == JEM_BAD_ARGUMENT && says(ctx, "image 0 contains nan"),
          "NaN");
    x[5] = 1e30f;
    CHECK(jem_classify(net, x, 1, &a) == JEM_BAD_ARGUMENT && says(ctx, "1e+30"), "absurd");
    x[5] = 0;
    int label = 3;
    CHECK(jem_accuracy(net, x, &label, 1) < 0 && says(ctx, "of image 0 is not in"), "a label");
    CHECK(jem_sample(net, 3, 1, 1, NULL, out) != JEM_OK && says(ctx, "label 3"), "a class");
    CHECK(jem_sample(net, 0, 0, 1, NULL, out) != JEM_OK && says(ctx, "n is 0"), "none");
    CHECK(jem_sample(net, 0, 1, 1, NULL, NULL) != JEM_OK && says(ctx, "pixels is NULL"), "NULL");
    CHECK(jem_sample(two, 0, 1, 1, NULL, out) == JEM_BAD_SHAPE && says(ctx, "channels"),
          "channels");
    jem_net_free(net);
    jem_net_free(two);
}

/* A seven of the model that ships, as a program would have it: ink on paper, in colour, larger. */
static void test_model(jem_ctx *ctx) {
    printf("the model that ships: its own samples, enlarged, in colour and inverted\n");
    jem_net *net = jem_load(ctx, "examples/models/mnist.safetensors");
    if (!net) {
        CHECK(0, "%s", jem_error(ctx));
        return;
    }
    enum { N = 10, BIG = 3 * 28 };
    static unsigned char digits[N * 784], again[N * 784], paper[BIG * BIG * 4];
    CHECK(jem_sample(net, 7, N, 5, NULL, digits) == JEM_OK, "%s", jem_error(ctx));
    CHECK(jem_sample(net, 7, N, 5, NULL, again) == JEM_OK && !memcmp(digits, again, N * 784),
          "the same seed, the same pixels");
    int sevens = 0;
    int familiar = 0;
    int same = 0;
    for (int k = 0; k < N; k++) {
        jem_answer a, b;
        int did = 0;
        jem_classify_pixels(net, digits + k * 784, 28, 28, 1, NULL, &a, &did);
        CHECK(did == 0, "nothing is done to a picture that fits (%d)", did);
        for (int i = 0; i < BIG * BIG; i++) {
            const unsigned char ink = digits[k * 784 + i / BIG / 3 * 28 + i % BIG / 3];
            for (int c = 0; c < 3; c++) paper[4 * i + c] = (unsigned char)(255 - ink);
            paper[4 * i + 3] = 255;
        }
        jem_pixels_desc d = { 0, 0, 255, 1, -1, JEM_FIT_TRAINED, 0 };      /* the whole picture */
        CHECK(jem_classify_pixels(net, paper, BIG, BIG, 4, &d, &b, &did) == JEM_OK, "%s",
              jem_error(ctx));
        CHECK(did == (JEM_DID_RESIZE | JEM_DID_GREY | JEM_DID_BLEND | JEM_DID_INVERT), "%d", did);
        sevens += a.label == 7;
        familiar += a.familiarity > 0.01f;
        same += b.label == a.label && fabsf(a.log_density - b.log_density) < 0.01f;
    }
    CHECK(sevens >= 8 && familiar >= 8, "%d sevens, %d familiar, of %d", sevens, familiar, N);
    CHECK(same == N, "%d of %d are what they were", same, N);
    jem_net_free(net);
}

/* Draws a digit of 28 x 28, white on black, as ink on the paper of a sheet: at row and column,
   every pixel as a square of `zoom`. */
enum { SHEET_W = 230, SHEET_H = 190 };
static void draw_ink(unsigned char *sheet, const unsigned char *digit, int row, int col, int zoom) {
    memset(sheet, 235, SHEET_W * SHEET_H);
    for (int i = 0; i < 28 * zoom; i++)
        for (int j = 0; j < 28 * zoom; j++) {
            const int y = row + i;
            const int x = col + j;
            if (y < 0 || x < 0 || y >= SHEET_H || x >= SHEET_W) continue;
            const int ink = digit[i / zoom * 28 + j / zoom];
            sheet[y * SHEET_W + x] = (unsigned char)(235 - 200 * ink / 255);
        }
}

/* Two samples of each digit, as pixels and as values; a sheet of paper, and its image. */
enum { DIGITS = 20 };
typedef struct framing {
    unsigned char digits[DIGITS * 784], sheet[SHEET_W * SHEET_H];
    float x[DIGITS * 784], framed[784];
} framing;

/* Fits the framing of the digits, or, if `negative`, of the same ones dark on bright ground. */
static jem_status fit_digits(jem_net *net, framing *t, int negative) {
    for (int i = 0; negative && i < DIGITS * 784; i++) t->x[i] = -t->x[i];
    const jem_status s = jem_net_fit_framing(net, t->x, DIGITS);
    for (int i = 0; negative && i < DIGITS * 784; i++) t->x[i] = -t->x[i];
    return s;
}

/* Checks that digits of several sizes, anywhere on a sheet, are read like the digits alone. */
static void check_places(jem_net *net, framing *t) {
    enum { PLACES = 4 };
    static const int place[PLACES][3] = {
        { 2, 150, 2 }, { 90, 5, 3 }, { -5, 10, 7 }, { 10, 20, 6 }
    };
    int right[2] = { 0, 0 };
    for (int k = 0; k < DIGITS; k++)
        for (int p = 0; p < PLACES; p++) {
            jem_answer plain, a, b;
            jem_pixels_desc d = { 0, 0, 0, 1, -1, JEM_FIT_TRAINED, 0 };
            int did = 0;
            draw_ink(t->sheet, t->digits + k * 784, place[p][0], place[p][1], place[p][2]);
            jem_classify(net, t->x + k * 784, 1, &plain);
            jem_classify_pixels(net, t->sheet, SHEET_W, SHEET_H, 1, &d, &a, &did);
            CHECK(!(did & JEM_DID_FRAME), "framed unasked");
            right[0] += a.label == plain.label;
            jem_classify_pixels(net, t->sheet, SHEET_W, SHEET_H, 1, NULL, &b, &did);
            CHECK(did == (JEM_DID_FRAME | JEM_DID_RESIZE | JEM_DID_INVERT), "did %d", did);
            right[1] += b.label == plain.label;
        }
    printf("    of %d: %d as they are, %d framed\n", DIGITS * PLACES, right[0], right[1]);
    CHECK(right[1] >= 0.95 * DIGITS * PLACES && right[0] < right[1], "%d of %d framed, %d plain",
          right[1], DIGITS * PLACES, right[0]);
}

/* A photo of a sheet of paper, which is darker towards one corner and has grain. */
typedef struct photo {
    int width, height, zoom;                       /* zoom: the side of a digit's pixel */
    unsigned char *paper, *pixels;
} photo;

static void draw_paper(photo *p, jem_rng *rng) {
    for (int y = 0; y < p->height; y++)
        for (int x = 0; x < p->width; x++) {
            const int shade = 30 * (x + y) / (p->width + p->height);
            const int grain = jem_rng_below(rng, 11) - 5;
            p->paper[(ptrdiff_t)y * p->width + x] = (unsigned char)(225 - shade + grain);
        }
}

/* Draws a digit in the bright corner of the paper. */
static void draw_on_paper(const photo *p, const unsigned char *digit) {
    memcpy(p->pixels, p->paper, (size_t)p->width * (size_t)p->height);
    for (int i = 0; i < 28 * p->zoom; i++)
        for (int j = 0; j < 28 * p->zoom; j++) {
            unsigned char *pixel = p->pixels + (ptrdiff_t)(i + 10) * p->width + j + 12;
            *pixel = (unsigned char)(*pixel - 150 * digit[i / p->zoom * 28 + j / p->zoom] / 255);
        }
}

/* Checks that the shades of a sheet of paper do not outweigh a digit, small or large. */
static void check_photo(jem_net *net, const framing *t, photo *p, jem_rng *rng) {
    int right = 0;
    int familiar = 0;
    draw_paper(p, rng);
    for (int k = 0; k < DIGITS; k++) {
        jem_answer plain, framed;
        int did = 0;
        draw_on_paper(p, t->digits + k * 784);
        jem_classify(net, t->x + k * 784, 1, &plain);
        jem_classify_pixels(net, p->pixels, p->width, p->height, 1, NULL, &framed, &did);
        CHECK(did == (JEM_DID_FRAME | JEM_DID_RESIZE | JEM_DID_INVERT), "did %d", did);
        right += framed.label == plain.label;
        familiar += framed.familiarity > 0.01f;
    }
    printf("    of %d photos of %d x %d, digits of %d pixels: %d right, %d not strange\n", DIGITS,
           p->width, p->height, 28 * p->zoom, right, familiar);
    CHECK(right >= 0.9 * DIGITS && familiar >= 0.9 * DIGITS, "of %d photos %d are right, %d not "
          "strange", DIGITS, right, familiar);
}

/* Checks photos, also ones of which framing reads only a part of the pixels. */
static void check_photos(jem_net *net, const framing *t, jem_rng *rng) {
    enum { SIZES = 4, MOST = 2000 * 1500 };
    static const int size[SIZES][3] = {            /* width, height, zoom */
        { 640, 480, 2 }, { 1920, 1080, 2 }, { 1920, 1080, 20 }, { 2000, 1500, 9 }
    };
    static unsigned char paper[MOST];
    static unsigned char pixels[MOST];
    for (int i = 0; i < SIZES; i++) {
        photo p = { size[i][0], size[i][1], size[i][2], NULL, NULL };
        p.paper = paper;
        p.pixels = pixels;
        check_photo(net, t, &p, rng);
    }
}

/* Checks pictures that need no frame or have none: of the network's size, noise, blank ones. */
static void check_no_frame(jem_net *net, framing *t, jem_rng *rng) {
    int did = 0;
    jem_pixels_to_floats(net, t->digits, 28, 28, 1, NULL, t->framed, &did);
    CHECK(did == 0 && t->framed[400] == t->x[400], "a picture of the network's size stays");
    jem_pixels_desc all = { 0, 0, 0, 0, 0, JEM_FIT_TRAINED, 1 };
    unsigned char corner[784];                     /* half as large, at the top left */
    for (int i = 0; i < 784; i++) {
        const int row = i / 28 * 2;
        const int col = i % 28 * 2;
        corner[i] = row < 28 && col < 28 ? t->digits[row * 28 + col] : t->digits[0];
    }
    jem_pixels_to_floats(net, corner, 28, 28, 1, &all, t->framed, &did);
    float from_canvas[784];
    unsigned char canvas_of_corner[30 * 30];
    memset(canvas_of_corner, t->digits[0], sizeof canvas_of_corner);
    for (int i = 0; i < 28; i++) memcpy(canvas_of_corner + 30 * i, corner + 28 * i, 28);
    CHECK(did == JEM_DID_FRAME, "unless frame_all is 1: did %d", did);
    jem_pixels_to_floats(net, canvas_of_corner, 30, 30, 1, NULL, from_canvas, &did);
    CHECK(!memcmp(t->framed, from_canvas, sizeof from_canvas), "as on a larger canvas");
    all.frame_all = 2;
    CHECK(jem_pixels_to_floats(net, corner, 28, 28, 1, &all, t->framed, &did) != JEM_OK &&
          strstr(jem_error(net->ctx), "frame_all is 2"), "%s", jem_error(net->ctx));
    jem_clear_error(net->ctx);
    for (int i = 0; i < SHEET_W * SHEET_H; i++) {
        t->sheet[i] = (unsigned char)jem_rng_below(rng, 256);
    }
    jem_pixels_to_floats(net, t->sheet, SHEET_W, SHEET_H, 1, NULL, t->framed, &did);
    CHECK(!(did & JEM_DID_FRAME), "noise has no ground");
    memset(t->sheet, 9, sizeof t->sheet);
    jem_pixels_to_floats(net, t->sheet, SHEET_W, SHEET_H, 1, NULL, t->framed, &did);
    CHECK(did & JEM_DID_BLANK && !(did & JEM_DID_FRAME), "no ink: %d", did);
    jem_answer a;
    CHECK(jem_classify_pixels(net, t->sheet, SHEET_W, SHEET_H, 1, NULL, &a, NULL) == JEM_OK &&
          a.reason == JEM_REASON_BLANK, "no ink: %s", jem_reason_name(a.reason));
    static unsigned char canvas[40 * 40 * 2];      /* black ink, the rest is transparent */
    memset(canvas, 0, sizeof canvas);
    for (int i = 8; i < 32; i++) canvas[2 * (i * 40 + 20) + 1] = 255;
    for (int background = 0; background <= 255; background += 255) {
        const jem_pixels_desc over = { 0, 0, background, 0, 0, JEM_FIT_TRAINED, 0 };
        jem_pixels_to_floats(net, canvas, 40, 40, 2, &over, t->framed, &did);
        CHECK(did & JEM_DID_FRAME && !(did & JEM_DID_BLANK), "ink over %d: %d", background, did);
        CHECK(!(did & JEM_DID_OPPOSITE) == (background > 0), "over %d: did %d", background, did);
    }
}

/* Checks that the rim shows the ground of a subject that covers most of the picture. */
static void check_large_subject(jem_net *net, framing *t) {
    static unsigned char canvas[40 * 40];
    int did = 0;
    for (int bright = 0; bright < 2; bright++) {
        memset(canvas, bright ? 240 : 10, sizeof canvas);
        for (int i = 5; i < 36; i++) memset(canvas + i * 40 + 4, bright ? 10 : 240, 32);
        for (int i = 0; i < 9; i++) canvas[i] = 120;           /* less than a quarter of the rim */
        jem_pixels_to_floats(net, canvas, 40, 40, 1, NULL, t->framed, &did);
        CHECK(did & JEM_DID_FRAME && !(did & JEM_DID_INVERT) == !bright, "bright ground %d: did %d",
              bright, did);
        CHECK(t->framed[0] < -.9f && t->framed[14 * 28 + 14] > .9f, "bright ground %d: %g in %g",
              bright, (double)t->framed[14 * 28 + 14], (double)t->framed[0]);
    }
}

/* Checks a square of ink with frames of several sizes, and ranges and sizes that are refused. */
static void check_square(jem_net *net, framing *t) {
    jem_ctx *ctx = net->ctx;
    float *framed = t->framed;
    int did = 0;
    const jem_pixels_desc whole = { 0, 0, 0, 0, 1, JEM_FIT_TRAINED, 0 };
    memset(t->sheet, 0, sizeof t->sheet);
    for (int i = 20; i < 60; i++) memset(t->sheet + i * SHEET_W + 20, 255, 40);
    jem_pixels_to_floats(net, t->sheet, SHEET_W, SHEET_H, 1, &whole, framed, &did);
    CHECK(did & JEM_DID_FRAME && did & JEM_DID_BLANK, "a square that fills the image: %d", did);
    jem_pixels_desc large = { 0, 0, 0, 0, 3, JEM_FIT_TRAINED, 0 };
    jem_pixels_desc endless = { -INFINITY, 1, 0, 0, 0, JEM_FIT_TRAINED, 0 };
    CHECK(jem_pixels_to_floats(net, t->sheet, 9, 9, 1, &endless, framed, &did) != JEM_OK &&
          says(ctx, "-inf"), "an infinite range");
    const jem_pixels_desc large_ink = { 0, 0, 0, 0, 0.7f, JEM_FIT_TRAINED, 0 };
    CHECK(fit_digits(net, t, 1) == JEM_OK &&
          jem_pixels_to_floats(net, t->sheet, SHEET_W, SHEET_H, 1, &large_ink, framed, &did) ==
              JEM_OK,
          "%s", jem_error(ctx));
    CHECK(framed[0] == 1 && framed[14 * 28 + 14] == -1 && did & JEM_DID_INVERT,
          "dark ink on bright ground, as in training: %g, %g", (double)framed[0],
          (double)framed[14 * 28 + 14]);
    CHECK(fit_digits(net, t, 0) == JEM_OK, "%s", jem_error(ctx));
    CHECK(jem_pixels_to_floats(net, t->sheet, 9, 9, 1, &large, framed, &did) != JEM_OK &&
          says(ctx, "subject is 3"), "too large");
}

/* A box of ink on a sheet. */
typedef struct box { int high, wide, row, col; } box;

/* Checks that a box gets half of an image's side, in the middle: its pixels are all ink, and all
   others ground. */
static void check_box(const jem_net *net, framing *t, box b) {
    const jem_pixels_desc half = { 0, 0, 0, 0, 0.5f, JEM_FIT_TRAINED, 0 };
    const int longer = b.high > b.wide ? b.high : b.wide;
    const int top = 14 - 7 * b.high / longer;
    const int left = 14 - 7 * b.wide / longer;
    int did = 0;
    int wrong = 0;
    memset(t->sheet, 0, sizeof t->sheet);
    for (int i = 0; i < b.high; i++)
        memset(t->sheet + (b.row + i) * SHEET_W + b.col, 255, (size_t)b.wide);
    CHECK(jem_pixels_to_floats(net, t->sheet, SHEET_W, SHEET_H, 1, &half, t->framed, &did) ==
          JEM_OK, "%s", jem_error(net->ctx));
    CHECK(did == (JEM_DID_FRAME | JEM_DID_RESIZE), "did %d", did);
    for (int i = 0; i < 28; i++)
        for (int j = 0; j < 28; j++) {
            const int inside = i >= top && i < 28 - top && j >= left && j < 28 - left;
            wrong += fabsf(t->framed[i * 28 + j] - (inside ? 1.0f : -1.0f)) > 1e-5f;
        }
    CHECK(wrong == 0, "a box of %d x %d: %d pixels are wrong", b.high, b.wide, wrong);
}

static void check_boxes(const jem_net *net, framing *t) {
    static const box boxes[] = {
        { 40, 40, 20, 20 }, { 40, 40, 3, 160 }, { 16, 28, 90, 100 }, { 70, 10, 100, 5 }
    };
    for (size_t i = 0; i < sizeof boxes / sizeof *boxes; i++) check_box(net, t, boxes[i]);
}

/* Checks that a file keeps the framing, and that hostile ones are rejected. */
static void check_framing_in_files(const jem_net *net) {
    jem_ctx *ctx = net->ctx;
    jem_archive *a = jem_archive_create(ctx);
    CHECK(jem_net_to_archive(net, a) == JEM_OK, "%s", jem_error(ctx));
    jem_net *back = jem_net_from_archive(ctx, a);
    CHECK(back && !strcmp(jem_net_meta(back, "jem.framing"), jem_net_meta(net, "jem.framing")),
          "a file keeps it");
    jem_net_free(back);
    static const char *const bad[] = { "", "0 .7 .5", "2 .7 .5 .5", "0 0 .5 .5", "0 .7 .5 2", "x",
                                      "0 .7 .5 .5 0", "0 .7 .5 .5 1 1", "0 .7 .5 .5 1 -1",
                                      "1 .7 .5 .5 -1 1", "0 .7 .5 .5 -1 1 1" };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        jem_archive_set_meta(a, "jem.framing", bad[i]);
        CHECK(!jem_net_from_archive(ctx, a) && says(ctx, "jem.framing"), "\"%s\"", bad[i]);
    }
    jem_archive_free(a);
}

/* Checks that ground and ink are as in the training images: here, from -1 (or 1) to .2. */
static void check_weak_ink(jem_net *net, framing *t) {
    for (int bright = 0; bright < 2; bright++) {
        const float ground = bright ? 0.8f : -0.9f;
        const float ink = 0.2f;
        float f[6];
        int did = 0;
        for (int i = 0; i < DIGITS * 784; i++)
            t->x[i] = ground + (ink - ground) * (float)t->digits[i] / 255;
        CHECK(jem_net_fit_framing(net, t->x, DIGITS) == JEM_OK, "%s", jem_error(net->ctx));
        CHECK(jem__framing_parse(jem_net_meta(net, "jem.framing"), f) && f[0] == (float)bright &&
              fabsf(f[4] - ground) < 0.01f && fabsf(f[5] - ink) < 0.01f, "ground %g: %s",
              (double)ground, jem_net_meta(net, "jem.framing"));
        draw_ink(t->sheet, t->digits, 20, 20, 3);
        CHECK(jem_pixels_to_floats(net, t->sheet, SHEET_W, SHEET_H, 1, NULL, t->framed, &did) ==
              JEM_OK && did & JEM_DID_FRAME, "%s", jem_error(net->ctx));
        float inked = ground;                      /* the value that differs most from the ground */
        for (int i = 0; i < 784; i++)
            if (fabsf(t->framed[i] - ground) > fabsf(inked - ground)) inked = t->framed[i];
        CHECK(fabsf(inked - ink) < 0.05f && fabsf(t->framed[0] - ground) < 0.05f,
              "ground %g: %g, ink %g", (double)ground, (double)t->framed[0], (double)inked);
        check_framing_in_files(net);
    }
}

static void test_framing(jem_ctx *ctx) {
    printf("framing: small in a corner, or as large as the sheet: a digit is read all the same\n");
    static framing t;
    jem_net *net = jem_load(ctx, "examples/models/mnist.safetensors");
    if (!CHECK(net != NULL, "%s", jem_error(ctx))) return;
    for (int label = 0; label < 10; label++)
        jem_sample(net, label, 2, 3, NULL, t.digits + 2 * label * 784);
    for (int i = 0; i < DIGITS * 784; i++) t.x[i] = (float)t.digits[i] / 127.5f - 1;
    CHECK(fit_digits(net, &t, 0) == JEM_OK, "%s", jem_error(ctx));
    float f[6];
    CHECK(jem__framing_parse(jem_net_meta(net, "jem.framing"), f), "stored");
    CHECK(f[0] == 0 && fabsf(f[1] - 20 / 28.f) < 0.05f && fabsf(f[2] - 0.5f) < 0.03f &&
          fabsf(f[3] - 0.5f) < 0.03f, "dark, 20 of 28, in the middle: %s",
          jem_net_meta(net, "jem.framing"));
    jem_rng rng = jem_rng_seed(1);
    check_places(net, &t);
    check_photos(net, &t, &rng);
    check_no_frame(net, &t, &rng);
    check_large_subject(net, &t);
    check_square(net, &t);
    check_boxes(net, &t);
    check_framing_in_files(net);
    check_weak_ink(net, &t);
    for (int i = 0; i < DIGITS * 784; i++) t.x[i] = jem_rng_normal(&rng);
    CHECK(jem_net_fit_framing(net, t.x, DIGITS) == JEM_OK && !jem_net_meta(net, "jem.framing"),
          "noise has no framing");
    CHECK(jem_net_fit_framing(net, t.x, 0) != JEM_OK && says(ctx, "0 images"), "no images");
    jem_clear_error(ctx);
    for (int i = 0; i < DIGITS * 784; i++) t.x[i] = i < 784 ? 1.f : -1.f;
    CHECK(jem_net_fit_framing(net, t.x, DIGITS) == JEM_OK && !jem_net_meta(net, "jem.framing"),
          "blank images, except for one that has one colour, have no framing");
    jem_net_free(net);
}

/* Checks that a transparent picture gets the opposite background only if it shows on no other. */
static void test_opposite(jem_ctx *ctx) {
    printf("transparent pictures, on the background on which they show\n");
    jem_net *net = net_of(ctx, 3, 4, 4);
    unsigned char pixels[4 * 4 * 4];
    float x[48];
    for (int k = 0; k < 3; k++) {                  /* black ink; ink that shows; opaque black */
        const jem_pixels_desc d = unit();
        int did = 0;
        memset(pixels, 0, sizeof pixels);
        for (int i = 0; i < 16; i++) {
            if (k == 1) pixels[4 * i] = 200;
            if (k == 2 || i < 5) pixels[4 * i + 3] = 255;
        }
        CHECK(jem_pixels_to_floats(net, pixels, 4, 4, 4, &d, x, &did) == JEM_OK, "%s",
              jem_error(ctx));
        CHECK(!(did & JEM_DID_OPPOSITE) == (k > 0), "case %d: did %d", k, did);
        CHECK(!(did & JEM_DID_BLANK) == (k < 2), "case %d: did %d", k, did);
        CHECK(near((double)x[15], k == 0), "case %d: the background is %g", k, (double)x[15]);
        CHECK(near((double)x[0], k == 1 ? 200 / 255.0 : 0), "case %d: ink %g", k, (double)x[0]);
    }
    jem_net *grey = net_of(ctx, 1, 4, 4);
    memset(pixels, 0, sizeof pixels);
    for (int i = 0; i < 5; i++) {                  /* blue ink, as a grey 29 */
        pixels[4 * i + 2] = 255;
        pixels[4 * i + 3] = 255;
    }
    for (int colour = 0; colour < 2; colour++) {
        int did = 0;
        CHECK(jem_pixels_to_floats(colour ? net : grey, pixels, 4, 4, 4, NULL, x, &did) == JEM_OK,
              "%s", jem_error(ctx));
        CHECK(((did & JEM_DID_OPPOSITE) == 0) == colour, "blue, %d channels: %d", 1 + 2 * colour,
              did);
    }
    jem_net_free(grey);
    jem_net_free(net);
}

/* Checks each way to fit a picture whose columns (or rows) are 0, 10, 20, .. */
static void check_fit(const jem_net *net, int tall, jem_fit fit, const int (*bytes)[4], int flag) {
    jem_pixels_desc d = unit();
    unsigned char pixels[8 * 4];
    float x[16];
    int did = 0;
    d.background = 100;
    d.fit = fit;
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 8; j++)
            pixels[tall ? j * 4 + i : i * 8 + j] = (unsigned char)(10 * j);
    CHECK(jem_pixels_to_floats(net, pixels, tall ? 4 : 8, tall ? 8 : 4, 1, &d, x, &did) == JEM_OK,
          "%s", jem_error(net->ctx));
    CHECK(did == (JEM_DID_RESIZE | flag), "fit %d: did %d", (int)fit, did);
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++)
            CHECK(near((double)x[tall ? j * 4 + i : i * 4 + j], bytes[i][j] / 255.0),
                  "fit %d, tall %d, (%d,%d): %g", (int)fit, tall, i, j,
                  (double)x[tall ? j * 4 + i : i * 4 + j]);
}

static void test_fit(jem_ctx *ctx) {
    static const int stretched[4][4] = {
        { 5, 25, 45, 65 }, { 5, 25, 45, 65 }, { 5, 25, 45, 65 }, { 5, 25, 45, 65 }
    };
    static const int cropped[4][4] = {
        { 20, 30, 40, 50 }, { 20, 30, 40, 50 }, { 20, 30, 40, 50 }, { 20, 30, 40, 50 }
    };
    static const int padded[4][4] = {
        { 100, 100, 100, 100 }, { 5, 25, 45, 65 }, { 5, 25, 45, 65 }, { 100, 100, 100, 100 }
    };
    printf("pictures of other proportions: stretched, cropped, with margins, as in training\n");
    jem_net *net = net_of(ctx, 1, 4, 4);
    for (int tall = 0; tall < 2; tall++) {
        check_fit(net, tall, JEM_FIT_TRAINED, stretched, JEM_DID_STRETCH);
        check_fit(net, tall, JEM_FIT_CROP, cropped, JEM_DID_CROP);
        check_fit(net, tall, JEM_FIT_PAD, padded, JEM_DID_PAD);
        CHECK(jem_net_set_fit(net, JEM_FIT_PAD) == JEM_OK, "%s", jem_error(ctx));
        check_fit(net, tall, JEM_FIT_TRAINED, padded, JEM_DID_PAD);
        check_fit(net, tall, JEM_FIT_STRETCH, stretched, JEM_DID_STRETCH);
        CHECK(jem_net_set_fit(net, JEM_FIT_TRAINED) == JEM_OK && !jem_net_meta(net, "jem.fit"),
              "removed");
    }
    jem_net_free(net);
}

static void test_fit_in_files(jem_ctx *ctx) {
    printf("the fit in a file\n");
    jem_net *net = net_of(ctx, 1, 4, 4);
    jem_archive *a = jem_archive_create(ctx);
    jem_pixels_desc d = unit();
    const unsigned char pixel = 0;
    float x[16];
    CHECK(jem_net_set_fit(net, JEM_FIT_CROP) == JEM_OK && jem_net_to_archive(net, a) == JEM_OK,
          "%s", jem_error(ctx));
    jem_net *back = jem_net_from_archive(ctx, a);
    CHECK(back && !strcmp(jem_net_meta(back, "jem.fit"), "crop"), "a file keeps it");
    jem_net_free(back);
    jem_archive_set_meta(a, "jem.fit", "trim");
    CHECK(!jem_net_from_archive(ctx, a) && says(ctx, "jem.fit"), "not a fit");
    jem_archive_free(a);
    CHECK(jem_net_set_fit(net, (jem_fit)(JEM_FIT_PAD + 1)) != JEM_OK && says(ctx, "4 is not"),
          "out of range");
    d.fit = (jem_fit)(JEM_FIT_PAD + 1);
    CHECK(jem_pixels_to_floats(net, &pixel, 1, 1, 1, &d, x, NULL) != JEM_OK && says(ctx, "fit is"),
          "out of range");
    jem_net_free(net);
}

/* Checks that transparent pixels are blended as those of the training pictures. */
static void test_background(jem_ctx *ctx) {
    printf("the background of the training pictures, also in a file\n");
    static const unsigned char pixels[8] = { 0, 0, 80, 255, 80, 255, 130, 255 };   /* grey, alpha */
    jem_net *net = net_of(ctx, 1, 2, 2);
    jem_archive *a = jem_archive_create(ctx);
    jem_pixels_desc d = unit();
    float x[4];
    d.subject = -1;
    for (int grey = 0; grey <= 255; grey += 51) {
        const float value = (float)grey / 255;
        CHECK(jem_net_set_background(net, grey) == JEM_OK && !jem_net_meta(net, "jem.background") ==
              !grey, "%s", jem_error(ctx));
        CHECK(jem_pixels_to_floats(net, pixels, 2, 2, 2, &d, x, NULL) == JEM_OK, "%s",
              jem_error(ctx));
        CHECK_CLOSE(x[0], value, 1e-6, "the network's %d", grey);
        d.background = 7;
        jem_pixels_to_floats(net, pixels, 2, 2, 2, &d, x, NULL);
        CHECK_CLOSE(x[0], 7.f / 255, 1e-6, "the desc's own, not %d", grey);
        d.background = 0;
    }
    CHECK(jem_net_to_archive(net, a) == JEM_OK, "%s", jem_error(ctx));
    jem_net *back = jem_net_from_archive(ctx, a);
    CHECK(back && !strcmp(jem_net_meta(back, "jem.background"), "255"), "a file keeps it");
    jem_net_free(back);
    static const char *const bad[] = { "256", "-1", "0", "white", "", "1 2" };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        jem_archive_set_meta(a, "jem.background", bad[i]);
        CHECK(!jem_net_from_archive(ctx, a) && says(ctx, "jem.background"), "'%s'", bad[i]);
    }
    jem_archive_free(a);
    CHECK(jem_net_set_background(net, 256) != JEM_OK && says(ctx, "256 is not"), "out of range");
    CHECK(jem_net_set_background(net, -1) != JEM_OK && says(ctx, "-1 is not"), "out of range");
    jem_net_free(net);
}

/* Checks that each field's error names it, and that a NULL is named. */
static void test_named(jem_ctx *ctx) {
    printf("messages that name the field\n");
    jem_net *net = net_of(ctx, 1, 2, 2);
    const unsigned char pixel = 0;
    jem_answer answer;
    float x[4];
    for (int k = 0; k < 3; k++) {
        static const char *const name[3] = { "desc.lo", "desc.background", "desc.invert" };
        jem_pixels_desc d = unit();
        if (k == 0) d.lo = 2;
        if (k == 1) d.background = 256;
        if (k == 2) d.invert = 2;
        CHECK(jem_pixels_to_floats(net, &pixel, 1, 1, 1, &d, x, NULL) != JEM_OK &&
              says(ctx, name[k]), "%s", name[k]);
    }
    CHECK(jem_pixels_to_floats(net, &pixel, 1, 1, 1, NULL, NULL, NULL) != JEM_OK &&
          says(ctx, "x is NULL"), "no x");
    CHECK(jem_classify_pixels(net, NULL, 1, 1, 1, NULL, &answer, NULL) != JEM_OK &&
          says(ctx, "pixels (could the file"), "no pixels");
    CHECK(jem_classify_pixels(net, &pixel, 1, 1, 1, NULL, NULL, NULL) != JEM_OK &&
          says(ctx, "answer is NULL"), "no answer");
    jem_net_free(net);
}

int main(int argc, char **argv) {
    static const test_case all[] = {
        TEST_IN(test_sizes), TEST_IN(test_nearest), TEST_IN(test_colours),
        TEST_IN(test_whole_pixels), TEST_IN(test_back), TEST_IN(test_refused), TEST_IN(test_model),
        TEST_IN(test_framing), TEST_IN(test_opposite), TEST_IN(test_fit),
        TEST_IN(test_fit_in_files), TEST_IN(test_background), TEST_IN(test_named)
    };
    return run_in_ctx(argc, argv, all, TEST_COUNT(all), NULL);
}
