/* data.h: every format from files written here, odd shapes, grey and colour, files to be rejected
   and their messages; then the same files cut at every length and with flipped bytes, which must
   never crash, leak or load more than their contents (make sanitize). */
#include "jem.h"
#include "tools/support/chart.h"
#include "tools/support/pictures.h"
#include "tools/support/data.c"
#include "tests/support/test.h"

#ifdef _WIN32
#define make_folder(path) _mkdir(path)
#else
#include <unistd.h>
#define make_folder(path) mkdir(path, 0777)
#endif

#define ROOT "build/test_data.tmp"

static unsigned state = 1;
static unsigned noise(void) {                      /* xorshift32 */
    state ^= state << 13;
    state ^= state >> 17;
    state ^= state << 5;
    return state;
}

/* ---- writing the files ----------------------------------------------------------------------- */

typedef struct bytes { unsigned char at[70000]; size_t n; } bytes;

static void add(bytes *b, unsigned v) {
    if (b->n < sizeof b->at) b->at[b->n++] = (unsigned char)v;
}
static void add_big(bytes *b, unsigned long v) {
    for (int k = 24; k >= 0; k -= 8) add(b, (unsigned)(v >> k) & 255);
}
static void add_little(bytes *b, unsigned long v) {
    for (int k = 0; k < 32; k += 8) add(b, (unsigned)(v >> k) & 255);
}
static void add_noise(bytes *b, int n) { while (n-- > 0) add(b, noise() >> 24); }

static char paths[4][256];
static const char *in(const char *folder, const char *name) {      /* good for four calls */
    static int turn;
    char *path = paths[turn = (turn + 1) % 4];
    snprintf(path, sizeof paths[0], ROOT "/%s%s%s", folder, *name ? "/" : "", name);
    return path;
}
static void write_bytes(const char *path, const unsigned char *p, size_t n) {
    FILE *f = fopen(path, "wb");
    size_t written = 0;
    if (f) written = fwrite(p, 1, n, f);
    CHECK(f && written == n && !fclose(f), "%s cannot be written", path);
}
static void put(const char *folder, const char *name, const bytes *b) {
    make_folder(in(folder, ""));
    write_bytes(in(folder, name), b->at, b->n);
}
static void put_text(const char *folder, const char *name, const char *text) {
    make_folder(in(folder, ""));
    write_bytes(in(folder, name), (const unsigned char *)text, strlen(text));
}
/* p[h][w][c] */
static void put_png(const char *folder, const char *name, int w, int h, int c,
                    const unsigned char *p) {
    make_folder(in(folder, ""));
    CHECK(stbi_write_png(in(folder, name), w, h, c, p, w * c), "%s/%s", folder, name);
}

/* flags as in RFC 1952; the stream is deflate's, or one stored block. */
static void gzip(bytes *to, const bytes *from, int flags, int stored) {
    static const unsigned char head[3] = { 0x1f, 0x8b, 8 };
    memset(to, 0, sizeof *to);
    for (int i = 0; i < 3; i++) add(to, head[i]);
    add(to, (unsigned)flags);
    for (int i = 0; i < 6; i++) add(to, 3);
    if (flags & 4) {
        add(to, 5);
        add(to, 0);
        add_noise(to, 5);
    }
    if (flags & 8) {
        add(to, 'n');
        add(to, 'a');
        add(to, 0);
    }
    if (flags & 16) {
        add(to, 'c');
        add(to, 0);
    }
    if (flags & 2) add_noise(to, 2);
    if (stored) {
        const unsigned n = (unsigned)from->n;
        add(to, 1);
        add(to, n & 255);
        add(to, n >> 8);
        add(to, ~n & 255);
        add(to, (~n >> 8) & 255);
        for (size_t i = 0; i < from->n; i++) add(to, from->at[i]);
    } else {                                       /* zlib's: 2 bytes before, 4 behind */
        int n = 0;
        unsigned char *z = stbi_zlib_compress((unsigned char *)from->at, (int)from->n, &n, 8);
        CHECK(z && n > 6, "stbi_zlib_compress");
        for (int i = 2; z && i < n - 4; i++) add(to, z[i]);
        stb_free(z);
    }
    add_little(to, crc32_of(0, from->at, from->n));
    add_little(to, (unsigned long)from->n);
}

/* Images of w x h, c channels (above 1: a file of 4 dimensions); labels 0, 1, .. below classes. */
static void idx(bytes *images, bytes *labels, int n, int c, int h, int w, int classes) {
    memset(images, 0, sizeof *images);
    memset(labels, 0, sizeof *labels);
    add_big(images, c > 1 ? 0x0804 : 0x0803);
    add_big(images, (unsigned long)n);
    if (c > 1) add_big(images, (unsigned long)c);
    add_big(images, (unsigned long)h);
    add_big(images, (unsigned long)w);
    add_noise(images, n * c * h * w);
    add_big(labels, 0x0801);
    add_big(labels, (unsigned long)n);
    for (int i = 0; i < n; i++) add(labels, (unsigned)(i % classes));
}
static void put_idx(const char *folder, int test, const bytes *images, const bytes *labels) {
    static const char *const of_images[2] = { "train-images-idx3-ubyte", "t10k-images-idx3-ubyte" };
    static const char *const of_labels[2] = { "train-labels-idx1-ubyte", "t10k-labels-idx1-ubyte" };
    put(folder, of_images[test], images);
    put(folder, of_labels[test], labels);
}

static unsigned hex_digit(char c) {
    if (c > '9') return (unsigned)(c - 'a' + 10);
    return (unsigned)(c - '0');
}

/* A JPEG of 13 x 11, grey (cjpeg -grayscale -quality 30 -optimize, of sines). */
static void put_jpeg(const char *folder, const char *name) {
    static const char hex[] =
        "ffd8ffe000104a46494600010100000100010000ffdb0043001b12141714111b1716171e1c1b2028422b"
        "28252528513a3d3042605565645f555d5b6a7899816a7190735b5d85b586909ea3abadab6780bcc9baa6"
        "c799a8aba4ffc0000b08000b000d01011100ffc400160001010100000000000000000000000000040306"
        "ffc4001e10000202020203000000000000000000000102041100050321061331ffda0008010100003f00"
        "4ef39c4582bc2a689182d2c0f6c66761d9392f2362d31549b17f3341aa50b09285759fffd9";
    static bytes b;
    memset(&b, 0, sizeof b);
    for (size_t i = 0; i + 1 < sizeof hex; i += 2) {
        add(&b, 16 * hex_digit(hex[i]) + hex_digit(hex[i + 1]));
    }
    put(folder, name, &b);
}

/* ---- asking ---------------------------------------------------------------------------------- */

static char error[512];

static int loads(data_set *d, const char *what, const char *split, const data_desc *desc) {
    error[0] = 0;
    const int ok = data_load(d, what, split, desc, error, sizeof error);
    CHECK(ok, "%s %s: %s", what, split, error);
    return ok;
}
/* It fails, the message holds both texts, and nothing is left in the set. */
static void refuses(const char *what, const char *split, const data_desc *desc, const char *text,
                    const char *more) {
    data_set d;
    memset(error, 0, sizeof error);
    const int ok = data_load(&d, what, split, desc, error, sizeof error);
    CHECK(!ok && strstr(error, text) && strstr(error, more), "%s: '%s' and '%s' wanted, it said %s",
          what, text, more, ok ? "nothing" : error);
    CHECK(ok || (!d.pixels && !d.labels && !d.class_names && !d.n), "%s: something is left", what);
    CHECK(!strchr(error, '\n'), "%s: more than one line", what);
    if (ok) data_free(&d);
}
/* Counts messages about pictures, each of which must name one. */
static void count_bad(void *user, const char *message) {
    CHECK(strstr(message, "/05.png: is not a picture") || strstr(message, "/06.png: is damaged"),
          "names a picture, and the reason: %s", message);
    ++*(int *)user;
}
static data_desc shaped(int channels, int height, int width, data_resize resize) {
    data_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.channels = channels;
    desc.height = height;
    desc.width = width;
    desc.resize = resize;
    desc.hold_out = DATA_EVERY_TENTH;
    return desc;
}
static int has_shape(const data_set *d, int n, int c, int h, int w, int classes) {
    return CHECK(d->n == n && d->c == c && d->h == h && d->w == w && d->classes == classes,
                 "%s: %d images (%d,%d,%d) of %d classes, not %d (%d,%d,%d) of %d", d->name, d->n,
                 d->c, d->h, d->w, d->classes, n, c, h, w, classes);
}

/* ---- formats --------------------------------------------------------------------------------- */

static void test_digits(void) {
    digits known;
    data_set d;
    if (!CHECK(digits_load(DIGITS_PATH, &known), "the examples' digits")) return;
    for (int test = 0; test < 2; test++) {
        if (!loads(&d, "digits", test ? "test" : "train", NULL)) continue;
        has_shape(&d, test ? DIGITS_TEST : DIGITS_TRAIN, 1, DIGIT, DIGIT, 10);
        float *x = (float *)malloc((size_t)d.n * DIGIT_PIXELS * sizeof *x);
        float one[DIGIT_PIXELS];
        data_floats(&d, NULL, d.n, x);
        CHECK(!memcmp(x, test ? known.test_x : known.x, (size_t)d.n * DIGIT_PIXELS * sizeof *x),
              "the same digits as the examples'");
        CHECK(!memcmp(d.labels, test ? known.test_y : known.y, (size_t)d.n * sizeof(int)),
              "and labels");
        const int which = d.n - 2;
        data_floats(&d, &which, 1, one);
        CHECK(!memcmp(one, x + (ptrdiff_t)which * DIGIT_PIXELS, sizeof one), "a chosen one");
        CHECK(!strcmp(d.class_names[7], "7"), "the name of class 7");
        free(x);
        data_free(&d);
    }
    digits_free(&known);
}

/* Checks files of grey or of coloured images, plain and packed. */
static void check_idx(int colour) {
    static bytes images, labels, packed;
    data_set d;
    const char *folder = colour ? "idx3" : "idx1";
    const char *path = colour ? ROOT "/idx3" : ROOT "/idx1";
    const int c = colour ? 3 : 1;
    const int h = 5;
    const int w = 7;
    const size_t head = colour ? 20 : 16;
    idx(&images, &labels, 4, c, h, w, 6);
    put_idx(folder, 1, &images, &labels);
    idx(&images, &labels, 9, c, h, w, 3);          /* fewer classes than there are in the other */
    put_idx(folder, 0, &images, &labels);
    if (!loads(&d, path, "train", NULL)) return;
    has_shape(&d, 9, c, h, w, 4);
    CHECK(!memcmp(d.pixels, images.at + head, (size_t)(9 * c * h * w)), "pixels");
    CHECK(d.labels[0] == 0 && d.labels[5] == 2 && d.labels[8] == 2, "labels");
    CHECK(!strcmp(d.name, folder) && !strcmp(d.class_names[3], "3"), "names");
    data_free(&d);
    if (loads(&d, path, "test", NULL)) {
        has_shape(&d, 4, c, h, w, 4);
        data_free(&d);
    }
    /* Packed, with every kind of gzip header, the plain one being away. */
    remove(in(folder, "train-images-idx3-ubyte"));
    remove(in(folder, "train-labels-idx1-ubyte"));
    for (int flags = 0; flags < 32; flags += 2)
        for (int stored = 0; stored < 2; stored++) {
            gzip(&packed, &images, flags, stored);
            put(folder, "train-images-idx3-ubyte.gz", &packed);
            gzip(&packed, &labels, flags, !stored);
            put(folder, "train-labels.idx1-ubyte.gz", &packed);
            if (!loads(&d, path, "train", NULL)) continue;
            CHECK(!memcmp(d.pixels, images.at + head, (size_t)(9 * c * h * w)),
                  "unpacked pixels, flags %d, stored %d", flags, stored);
            data_free(&d);
        }
}

static void test_idx(void) {
    static bytes images, labels;
    for (int colour = 0; colour < 2; colour++) check_idx(colour);
    idx(&images, &labels, 3, 2, 4, 4, 3);
    put_idx("idx2", 0, &images, &labels);
    refuses(ROOT "/idx2", "train", NULL, "train-images", "neither grey nor colour");
    refuses(ROOT "/idx2", "test", NULL, "idx2", "t10k-images");
    refuses(ROOT "/idx1", "valid", NULL, "valid", "train or test");

    data_desc desc = shaped(0, 0, 0, DATA_AS_IS);
    desc.root = ROOT;
    idx(&images, &labels, 2, 1, 28, 27, 2);
    put_idx("mnist", 0, &images, &labels);
    refuses("mnist", "train", &desc, "27 x 28", "not mnist");
    refuses("mnist", "test", &desc, "t10k-images", "tools/get-data mnist");
    idx(&images, &labels, 12, 1, 28, 28, 12);
    put_idx("mnist", 0, &images, &labels);
    refuses("mnist", "train", &desc, "train-labels", "label 11");
    labels.n--;
    put_idx("mnist", 0, &images, &labels);
    refuses("mnist", "train", &desc, "train-labels", "tools/get-data mnist");
    idx(&images, &labels, 3, 1, 28, 28, 3);
    labels.at[7] = 2;
    labels.n--;
    put_idx("mnist", 0, &images, &labels);
    refuses("mnist", "train", &desc, "2 labels", "3 images");
    refuses("fashion-mnist", "train", &desc, ROOT "/fashion-mnist", "tools/get-data fashion-mnist");
    refuses("cifar100", "train", &desc, ROOT "/cifar100", "cifar-100-binary.tar.gz");
    make_folder(in("cifar10", ""));
    refuses("cifar10", "train", &desc, "does not contain", "DATA=" ROOT " tools/get-data cifar10");
    idx(&images, &labels, 3, 1, 28, 28, 3);
    put("cross", "train-images-idx3-ubyte", &labels);
    put("cross", "train-labels-idx1-ubyte", &images);
    refuses(ROOT "/cross", "train", NULL, "train-images", "not of images");
    /* The largest sizes that a header can name. */
    for (int dims = 3; dims <= 4; dims++)
        for (unsigned long big = 0x7fffffff; big <= 0xffffffff; big += 0x80000000) {
            memset(&images, 0, sizeof images);
            add_big(&images, 0x0800 + (unsigned long)dims);
            for (int i = 0; i < dims; i++) add_big(&images, big);
            add_noise(&images, 100);
            put("cross", "train-images-idx3-ubyte", &images);
            refuses(ROOT "/cross", "train", NULL, "train-images", "more data than it has");
        }
}

static void check_cifar10(void) {
    static bytes b, all;
    data_set d;
    char name[32];
    memset(&all, 0, sizeof all);
    for (int i = 0; i < 6; i++) {
        snprintf(name, sizeof name, i ? "data_batch_%d.bin" : "test_batch.bin", i);
        memset(&b, 0, sizeof b);
        for (int k = 0; k < 1 + i % 2; k++) {
            add(&b, (unsigned)(3 * i + k) % 10);
            add_noise(&b, 3072);
        }
        put("bin10", name, &b);
        for (size_t k = 0; i && k < b.n; k++) add(&all, b.at[k]);
    }
    if (loads(&d, ROOT "/bin10", "train", NULL)) {
        has_shape(&d, 8, 3, 32, 32, 10);
        for (int i = 0; i < 8; i++)
            CHECK(d.labels[i] == all.at[3073 * i] &&
                  !memcmp(d.pixels + 3072 * i, all.at + 3073 * i + 1, 3072), "record %d", i);
        CHECK(!strcmp(d.class_names[9], "truck"), "the name of class 9");
        data_free(&d);
    }
    if (loads(&d, ROOT "/bin10", "test", NULL)) {
        has_shape(&d, 1, 3, 32, 32, 10);
        data_free(&d);
    }
    b.at[0] = 10;
    put("bin10", "data_batch_3.bin", &b);
    refuses(ROOT "/bin10", "train", NULL, "data_batch_3.bin", "label");
    b.at[0] = 9;
    b.n--;
    put("bin10", "data_batch_3.bin", &b);
    refuses(ROOT "/bin10", "train", NULL, "data_batch_3.bin", "cut short");
    b.n = 0;
    put("bin10", "data_batch_3.bin", &b);
    refuses(ROOT "/bin10", "train", NULL, "data_batch_3.bin", "cut short");
    remove(in("bin10", "data_batch_3.bin"));
    refuses(ROOT "/bin10", "train", NULL, "data_batch_3.bin", "No such file");
}

static void check_cifar100(void) {
    static bytes b;
    data_set d;
    memset(&b, 0, sizeof b);
    for (int i = 0; i < 3; i++) {
        add(&b, 19);
        add(&b, (unsigned)(49 * i));
        add_noise(&b, 3072);
    }
    put("bin100", "train.bin", &b);
    put_text("bin100", "fine_label_names.txt", "apple\r\nfish\n\nbaby\n");
    if (loads(&d, ROOT "/bin100", "train", NULL)) {
        has_shape(&d, 3, 3, 32, 32, 100);
        CHECK(d.labels[2] == 98 && !memcmp(d.pixels + 3072, b.at + 3074 + 2, 3072), "fine labels");
        CHECK(!strcmp(d.class_names[0], "apple") && !strcmp(d.class_names[2], "baby") &&
              !strcmp(d.class_names[3], "3"), "names, and numbers where there are none");
        data_free(&d);
    }
    static bytes names, packed;                    /* names in a gzip file end without a 0 */
    memset(&names, 0, sizeof names);
    memset(&packed, 0, sizeof packed);
    for (const char *c = "apple\nfish"; *c; c++) add(&names, (unsigned char)*c);
    gzip(&packed, &names, 0, 0);
    put("bin100", "fine_label_names.txt", &packed);
    if (loads(&d, ROOT "/bin100", "train", NULL)) {
        CHECK(!strcmp(d.class_names[1], "fish") && !strcmp(d.class_names[2], "2"), "packed names");
        data_free(&d);
    }
    data_desc grey = shaped(1, 0, 0, DATA_AS_IS);
    if (loads(&d, ROOT "/bin100", "train", &grey)) {
        has_shape(&d, 3, 1, 32, 32, 100);
        const unsigned char *p = b.at + 2 * 3074 + 2 + 55;
        const double luma = .299 * p[0] + .587 * p[1024] + .114 * p[2048];
        CHECK_CLOSE(d.pixels[2 * 1024 + 55], luma, .51, "grey of a colour");
        data_free(&d);
    }
}

static void test_cifar(void) {
    check_cifar10();
    check_cifar100();
}

/* Checks sheets whose rows are images. */
static void check_rows(const unsigned char *p) {
    enum { S = 6, N = 4 };
    data_set d;
    char name[32];
    for (int i = 0; i < 6; i++) {
        snprintf(name, sizeof name, i ? "data_batch_%d.png" : "test_batch.png", i);
        put_png("flat", name, S * S, N, 3, p + i);
    }
    put_text("flat", "train_lables.json", "[0,1,2,3, 4,5,6,7, 0,0,0,0, 1,1,1,1, 2,2,2,2]");
    put_text("flat", "test_lables.json", "[9,1,1,1]\n");
    if (loads(&d, ROOT "/flat", "train", NULL)) {
        has_shape(&d, 5 * N, 3, S, S, 10);
        for (int i = 0; i < d.n; i++)              /* pixel (2,3), green, of every image */
            CHECK(d.pixels[((i * 3 + 1) * S + 2) * S + 3] ==
                  (p + 1 + i / N)[(i % N * S * S + 2 * S + 3) * 3 + 1], "a row is an image: %d", i);
        CHECK(d.labels[7] == 7 && d.labels[19] == 2, "labels");
        data_free(&d);
    }
    if (loads(&d, ROOT "/flat", "test", NULL)) {
        has_shape(&d, N, 3, S, S, 10);
        data_free(&d);
    }
    put_text("flat", "test_lables.json", "[9,1,1]");
    refuses(ROOT "/flat", "test", NULL, "test_lables.json", "3 labels");
    put_text("flat", "test_lables.json", "[9,1,1,1,5]");
    refuses(ROOT "/flat", "test", NULL, "test_lables.json", "5 labels for 4 images");
    put_text("flat", "test_lables.json", "[9,1,cat,1]");
    refuses(ROOT "/flat", "test", NULL, "test_lables.json", "not a list of labels");
    put_text("flat", "test_lables.json", "[9,1,70000,1]");
    refuses(ROOT "/flat", "test", NULL, "test_lables.json", "not a list of labels");
    put_text("flat", "test_lables.json", "[]");
    refuses(ROOT "/flat", "test", NULL, "test_lables.json", "no labels");
    put_text("flat", "test_lables.json", "[1,1,1,1]");
    put_png("flat", "data_batch_2.png", S * S + 1, N, 3, p);
    refuses(ROOT "/flat", "train", NULL, "data_batch_2.png", "37 x 4");
    put_png("flat", "data_batch_2.png", (S + 1) * (S + 1), N, 3, p);
    refuses(ROOT "/flat", "train", NULL, "data_batch_2.png", "7 x 7");
    put_png("flat", "data_batch_2.png", S * S, N, 1, p);
    refuses(ROOT "/flat", "train", NULL, "data_batch_2.png", "channels");
}

/* Checks sheets of square tiles. */
static void check_tiles(const unsigned char *p) {
    data_set d;
    put_png("tiles", "train.png", 4 * 5, 3 * 5, 1, p); /* 4 x 3 tiles of 5 x 5, grey */
    put_text("tiles", "train.txt", "0 1 2 3\n4 5 6 7\n8 9 10 11\n");
    put_png("tiles", "test.png", 2 * 5, 5, 1, p);
    put_text("tiles", "test.txt", "12\n1\n");
    if (loads(&d, ROOT "/tiles", "train", NULL)) {
        has_shape(&d, 12, 1, 5, 5, 13);
        for (int i = 0; i < 12; i++)
            for (int k = 0; k < 25; k++)
                CHECK(d.pixels[25 * i + k] == p[(i / 4 * 5 + k / 5) * 20 + i % 4 * 5 + k % 5],
                      "tile %d pixel %d", i, k);
        data_free(&d);
    }
    remove(in("tiles", "test.txt"));
    put_text("tiles", "test.json", "[13,1]");
    if (loads(&d, ROOT "/tiles", "train", NULL)) {
        has_shape(&d, 12, 1, 5, 5, 14);
        data_free(&d);
    }
    put_text("tiles", "test.txt", "12\n1\n1\n");
    refuses(ROOT "/tiles", "test", NULL, "test.png", "not 3 square images");
}

static void test_sheets(void) {
    static unsigned char p[64 * 64 * 3];
    for (size_t i = 0; i < sizeof p; i++) p[i] = (unsigned char)(noise() >> 24);
    check_rows(p);
    check_tiles(p);
}

/* Writes 11 ants and 12 cats of 9 x 5, and loads them. */
static void check_pets(const unsigned char *p) {
    const data_desc tenth = shaped(0, 0, 0, DATA_AS_IS);
    data_set d;
    char name[64];
    make_folder(in("pets", ""));
    put_text("pets/.hidden", "a.png", "not looked at");
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < 11 + k; i++) {
            snprintf(name, sizeof name, "%02d.%s", i, i % 3 ? "png" : "PNG");
            put_png(k ? "pets/cat" : "pets/ant", name, 9, 5, 1, p + 100 * k + i);
        }
    put_text("pets/cat", "notes.txt", "not a picture, and not looked at");
    if (loads(&d, ROOT "/pets", "train", &tenth)) {
        has_shape(&d, 10 + 11, 1, 5, 9, 2);
        CHECK(d.grey == 0, "all are made grey: none is counted");
        CHECK(!strcmp(d.class_names[0], "ant") && !strcmp(d.class_names[1], "cat"), "by name");
        CHECK(d.labels[9] == 0 && d.labels[10] == 1, "labels");
        CHECK(!memcmp(d.pixels + 45 * 9, p + 10, 45), "the 10th is held out");
        CHECK(!memcmp(d.pixels + 45 * 10, p + 100, 45), "the first cat");
        data_free(&d);
    }
    if (loads(&d, ROOT "/pets/", "test", &tenth)) {
        has_shape(&d, 2, 1, 5, 9, 2);
        CHECK(!memcmp(d.pixels + 45, p + 109, 45) && d.labels[1] == 1, "the 10th cat");
        CHECK(!strcmp(d.name, "pets"), "the name is %s", d.name);
        data_free(&d);
    }
}

/* Loads them with one that has colours, or is transparent. */
static void check_colours(const unsigned char *p) {
    data_desc other = shaped(0, 0, 0, DATA_AS_IS);
    data_set d;
    put_png("pets/cat", "04.png", 9, 5, 3, p);     /* one is in colour */
    if (loads(&d, ROOT "/pets", "train", &other)) {
        has_shape(&d, 21, 3, 5, 9, 2);
        CHECK(!memcmp(d.pixels, p, 45) && !memcmp(d.pixels + 90, p, 45), "grey made colour");
        CHECK(d.pixels[135 * 14 + 45 + 7] == p[7 * 3 + 1], "green of the cat in colour");
        data_free(&d);
    }
    put_png("pets/cat", "04.png", 9, 5, 4, p);     /* transparent: on black */
    if (loads(&d, ROOT "/pets", "train", &other)) {
        CHECK_CLOSE(d.pixels[135 * 14 + 90 + 7], p[7 * 4 + 2] * p[7 * 4 + 3] / 255.0, .51, "blue");
        CHECK(d.blended == 1 && d.blank == 0, "%d transparent, %d blank", d.blended, d.blank);
        data_free(&d);
    }
    static unsigned char ink[45 * 4];              /* black, opaque or not */
    for (int i = 0; i < 45; i++) ink[4 * i + 3] = i % 5 ? 0 : 255;
    put_png("pets/cat", "04.png", 9, 5, 4, ink);
    for (int on_white = 0; on_white < 2; on_white++) {
        other.background = on_white ? 255 : 0;
        if (!loads(&d, ROOT "/pets", "train", &other)) continue;
        CHECK(d.blended == 1 && d.blank == !on_white, "%d transparent, %d blank", d.blended,
              d.blank);
        CHECK(d.c == 3 && d.grey == d.n, "black ink has no colours: %d of %d", d.grey, d.n);
        data_free(&d);
    }
    put_png("pets/cat", "04.png", 9, 5, 4, p);
    other.background = 255;                        /* on white */
    if (loads(&d, ROOT "/pets", "train", &other)) {
        const double alpha = p[7 * 4 + 3] / 255.0;
        CHECK_CLOSE(d.pixels[135 * 14 + 90 + 7], p[7 * 4 + 2] * alpha + 255 * (1 - alpha), .51,
                    "blue on white");
        CHECK(d.grey == d.n - 1, "all but that one are grey: %d of %d", d.grey, d.n);
        for (int i = 0; d.paths && i < d.n; i++) {
            const int is_blue = !strcmp(d.paths[i], ROOT "/pets/cat/04.png");
            CHECK(data_is_grey(&d, i) != is_blue, "%s", d.paths[i]);
        }
        CHECK(d.paths != NULL, "a folder has paths");
        data_free(&d);
    }
}

/* Holds out test pictures at random, by the seed. */
static void check_seeds(const unsigned char *p) {
    data_set d;
    data_desc other = shaped(1, 0, 0, DATA_AS_IS);
    int places = 0;
    other.hold_out = DATA_AT_RANDOM;
    for (other.seed = 1; other.seed <= 20; other.seed++) {     /* test pictures at random */
        data_set t;
        if (!loads(&d, ROOT "/pets", "train", &other)) break;
        if (!loads(&t, ROOT "/pets", "test", &other)) break;
        has_shape(&d, 10 + 11, 1, 5, 9, 2);
        has_shape(&t, 2, 1, 5, 9, 2);
        for (int i = 0; i < 11; i++)
            if (!memcmp(t.pixels, p + i, 45)) places |= 1 << i;
        for (int i = 0; i < 10; i++)
            CHECK(memcmp(t.pixels, d.pixels + 45 * i, 45) != 0, "in one half only");
        data_free(&d);
        data_free(&t);
    }
    int many = 0;
    for (int i = 0; i < 11; i++) many += places >> i & 1;
    CHECK(many >= 6, "20 seeds hold out %d different pictures of 11", many);
}

enum { MANY_PETS = 120 };

/* Loads test pictures whose first pixels are their numbers, and marks these in held. Returns how
   many there are. */
static int held_out_pets(unsigned char held[256]) {
    data_set d;
    memset(held, 0, 256);
    if (!loads(&d, ROOT "/many", "test", NULL)) return 0;
    const int n = d.n;
    for (int i = 0; i < n; i++) held[d.pixels[(size_t)i * 4]] = 1;
    data_free(&d);
    return n;
}

static void put_numbered(int i) {
    unsigned char pixels[4] = { 0, 0, 0, 0 };
    char name[64];
    pixels[0] = (unsigned char)i;
    snprintf(name, sizeof name, "%03d.png", (i * 37) % MANY_PETS);      /* not in their order */
    put_png("many/pet", name, 2, 2, 1, pixels);
}

/* Holds out test pictures by their names: further pictures change nothing for the others. */
static void check_names(void) {
    unsigned char before[256], after[256];
    data_set d;
    int moved = 0;
    make_folder(in("many", ""));
    for (int i = 0; i < 9; i++) put_numbered(i);
    refuses(ROOT "/many", "test", NULL, "many", "remain for testing");
    for (int i = 9; i < 60; i++) put_numbered(i);
    const int fewer = held_out_pets(before);
    for (int i = 60; i < MANY_PETS; i++) put_numbered(i);
    const int all = held_out_pets(after);
    for (int i = 0; i < 60; i++) moved += before[i] != after[i];
    CHECK(!moved, "%d of 60 pictures changed sides", moved);
    CHECK(fewer >= 1 && fewer <= 14 && all > fewer && all <= 25, "%d of 60, %d of %d", fewer, all,
          MANY_PETS);
    if (!loads(&d, ROOT "/many", "train", NULL)) return;
    CHECK(d.n == MANY_PETS - all, "the others are for training: %d", d.n);
    for (int i = 0; i < d.n; i++) CHECK(!after[d.pixels[(size_t)i * 4]], "in one half only");
    data_free(&d);
}

/* Makes pictures of one size of others. */
static void check_sizes(const unsigned char *p) {
    data_set d;
    data_desc desc = shaped(0, 0, 0, DATA_AS_IS);
    put_png("pets/cat", "04.png", 5, 9, 1, p);
    refuses(ROOT "/pets", "train", &desc, "cat/04.png: is 5 x 9", "ant/00.PNG is 9 x 5: --size N");
    desc = shaped(1, 7, 7, DATA_FIT);
    desc.shape = DATA_REFUSE;
    refuses(ROOT "/pets", "train", &desc, "pictures have other proportions than 7 x 7",
            "has 9 x 5 (width x height): --crop");
    for (int pad = 0; pad < 2; pad++) {            /* 9 x 9 with margins, or 5 x 5 of the middle */
        const int side = pad ? 9 : 5;
        const int margin = pad ? 2 : 0;
        data_desc square = shaped(1, side, side, DATA_FIT);
        square.shape = pad ? DATA_PAD : DATA_CROP;
        square.background = 77;
        if (!loads(&d, ROOT "/pets", "train", &square)) continue;
        CHECK(d.stretched == 0, "nothing is stretched");
        for (int i = 0; i < 5; i++)
            for (int j = 0; j < 5; j++) {
                const int at = (i + margin) * side + j + margin;
                CHECK(d.pixels[at] == p[i * 9 + j + 2], "pixel %d, %d of the first", i, j);
            }
        if (pad) CHECK(d.pixels[0] == 77 && d.pixels[80] == 77, "margins");
        const unsigned char *upright = d.pixels + 14 * side * side;
        CHECK(upright[margin] == p[pad ? 0 : 10], "a picture of other proportions");
        data_free(&d);
    }
    desc = shaped(0, 4, 3, DATA_AREA);
    if (loads(&d, ROOT "/pets", "train", &desc)) {
        has_shape(&d, 21, 1, 4, 3, 2);
        data_free(&d);
    }
    desc = shaped(3, 40, 33, DATA_BILINEAR);
    if (loads(&d, ROOT "/pets", "train", &desc)) {
        has_shape(&d, 21, 3, 40, 33, 2);
        data_free(&d);
    }
    desc = shaped(0, 9, 9, DATA_AS_IS);
    put_png("pets/cat", "04.png", 9, 5, 1, p);
    refuses(ROOT "/pets", "train", &desc, "00.PNG: is 9 x 5", "not 9 x 9");
    desc = shaped(2, 0, 0, DATA_AS_IS);
    refuses(ROOT "/pets", "train", &desc, "pets", "2 channels");
    desc = shaped(0, 0, 0, DATA_AREA);
    refuses(ROOT "/pets", "train", &desc, "pets", "0 x 0");
    desc = shaped(0, 9, 0, DATA_AS_IS);
    refuses(ROOT "/pets", "train", &desc, "pets", "0 x 9");
}

/* Checks damaged pictures, files that are not pictures, folders that are not data sets. */
static void check_bad_pictures(const unsigned char *p) {
    put_text("pets/cat", "05.png", "this is not a picture");
    data_desc desc = shaped(0, 0, 0, DATA_AS_IS);
    refuses(ROOT "/pets", "train", &desc, "cat/05.png", "not a picture");
    put_text("pets/cat", "07.WebP", "a format that cannot be read");
    remove(in("pets/cat", "05.png"));
    refuses(ROOT "/pets", "train", &desc, "cat/07.WebP", "not a picture");
    remove(in("pets/cat", "07.WebP"));
    put_text("pets/cat", "05.png", "this is not a picture");
    put_png("pets/cat", "06.png", 9, 5, 1, p);
    FILE *f = fopen(in("pets/cat", "06.png"), "r+b");
    CHECK(f && fseek(f, 41, SEEK_SET) == 0 && putc(0, f) == 0 && fclose(f) == 0, "damaged pixels");
    int bad = 0;
    desc = shaped(0, 9, 9, DATA_AREA);
    desc.bad = count_bad;
    desc.user = &bad;
    refuses(ROOT "/pets", "train", &desc, "pets: 2 of ", "pictures cannot be read");
    CHECK(bad == 2, "all are named: %d of 2", bad);
    remove(in("pets/cat", "05.png"));
    bad = 0;
    refuses(ROOT "/pets", "train", &desc, "pets: 1 of ", "pictures cannot be read");
    CHECK(bad == 1, "one whose pixels are damaged: %d", bad);
    remove(in("pets/cat", "06.png"));
    make_folder(in("pets/dog", ""));
    refuses(ROOT "/pets", "train", NULL, "pets/dog", "no pictures");
    refuses(ROOT "/pets/dog", "train", NULL, "pets/dog", "is not a data set");
    refuses(ROOT "/nothing", "train", NULL, ROOT "/nothing", "no such folder");
    refuses(ROOT "/pets/ant/00.PNG", "train", NULL, "00.PNG", "is a file, but no table");
    char deep[1100];                               /* the same folder, by a very long name */
    snprintf(deep, sizeof deep, ROOT "/pets");
    while (strlen(deep) < 1018) snprintf(deep + strlen(deep), 3, "/.");
    refuses(deep, "train", NULL, "too long", "too long");
}

/* Checks folders that are split into train and test, or have few pictures. */
static void check_split(const unsigned char *p) {
    data_set d;
    make_folder(in("split", ""));
    make_folder(in("split/train", ""));
    put_png("split/train/a", "1.png", 3, 2, 1, p);
    put_png("split/train/b", "1.bmp.png", 3, 2, 1, p);
    refuses(ROOT "/split", "test", NULL, "split", "no folder test");
    make_folder(in("split/test", ""));
    put_png("split/test/b", "x.png", 3, 2, 1, p + 9);
    if (loads(&d, ROOT "/split", "train", NULL)) {
        has_shape(&d, 2, 1, 2, 3, 2);
        data_free(&d);
    }
    if (loads(&d, ROOT "/split", "test", NULL)) {
        has_shape(&d, 1, 1, 2, 3, 2);
        CHECK(d.labels[0] == 1 && !memcmp(d.pixels, p + 9, 6), "b is class 1 here, too");
        data_free(&d);
    }
    put_png("split/test/c", "x.png", 3, 2, 1, p);
    refuses(ROOT "/split", "test", NULL, "split/test/c", "no such class");

    make_folder(in("cars", ""));                   /* one class of them is called train */
    put_png("cars/car", "1.png", 3, 2, 1, p);
    put_png("cars/train", "1.png", 3, 2, 1, p);
    if (loads(&d, ROOT "/cars", "train", NULL)) {
        has_shape(&d, 2, 1, 2, 3, 2);
        data_free(&d);
    }

    make_folder(in("few", ""));
    put_png("few/a", "1.png", 3, 2, 1, p);
    refuses(ROOT "/few", "test", NULL, "few", "remain for testing");
}

/* Checks the split of all images, undivided folders, and files that are not read. */
static void check_whole(const unsigned char *p) {
    data_set d;
    data_desc whole = shaped(0, 0, 0, DATA_AS_IS);
    whole.whole = 1;
    make_folder(in("whole", ""));
    put_png("whole/a", "1.png", 3, 2, 1, p);
    put_png("whole/b", "2.png", 3, 2, 1, p + 9);
    put_text("whole/b", "notes.txt", "no picture");
    if (loads(&d, ROOT "/whole", "all", NULL)) {
        has_shape(&d, 2, 1, 2, 3, 2);
        CHECK(d.skipped == 1 && !strcmp(d.first_skipped, "b/notes.txt"), "not read: %d, %s",
              d.skipped, d.first_skipped);
        data_free(&d);
    }
    make_folder(in("whole/b/more", ""));
    if (loads(&d, ROOT "/whole", "test", &whole)) {
        CHECK(d.n == 2 && d.skipped == 2, "undivided: %d images, %d not read", d.n, d.skipped);
        data_free(&d);
    }
    refuses(ROOT "/whole/b", "train", NULL, "whole/b", "has no pictures");
    if (loads(&d, ROOT "/whole/a", "test", &whole)) {
        has_shape(&d, 1, 1, 2, 3, 1);
        CHECK(!strcmp(d.class_names[0], "a"), "a folder without classes: %s", d.class_names[0]);
        data_free(&d);
    }
    make_folder(in("both", ""));
    make_folder(in("both/train", ""));
    make_folder(in("both/test", ""));
    put_png("both/train/a", "1.png", 3, 2, 1, p);
    put_png("both/train/b", "1.png", 3, 2, 1, p);
    put_png("both/test/b", "2.png", 3, 2, 1, p + 9);
    if (loads(&d, ROOT "/both", "all", NULL)) {
        has_shape(&d, 3, 1, 2, 3, 2);
        CHECK(d.labels[2] == 1 && !memcmp(d.pixels + 12, p + 9, 6), "train, then test");
        data_free(&d);
    }
    if (loads(&d, "digits", "all", NULL)) {
        CHECK(d.n == 10000, "digits for training and testing: %d", d.n);
        data_free(&d);
    }
    refuses("digits", "half", NULL, "half", "use train or test (or all)");
}

static void test_folders(void) {
    static unsigned char p[32 * 32 * 4];
    for (size_t i = 0; i < sizeof p; i++) p[i] = (unsigned char)(noise() >> 24);
    check_pets(p);
    check_colours(p);
    check_seeds(p);
    check_names();
    check_sizes(p);
    check_bad_pictures(p);
    check_split(p);
    check_whole(p);
}

static void test_one_image(void) {
    static unsigned char p[7 * 6 * 3];
    data_set d;
    int was[3];
    for (size_t i = 0; i < sizeof p; i++) p[i] = (unsigned char)(noise() >> 24);
    make_folder(in("one", ""));
    put_png("one", "x.png", 7, 6, 3, p);
    data_desc desc = shaped(1, 3, 7, DATA_AREA);
    if (CHECK(data_load_image(&d, in("one", "x.png"), &desc, was, error, sizeof error), "%s",
              error)) {
        CHECK(d.n == 1 && d.c == 1 && d.h == 3 && d.w == 7, "shape");
        CHECK(was[0] == 3 && was[1] == 6 && was[2] == 7, "what it was");
        data_free(&d);
    }
    CHECK(!data_load_image(&d, in("one", "y.png"), NULL, NULL, error, sizeof error) &&
          strstr(error, "one/y.png"), "%s", error);
    refuses(ROOT "/one", "train", NULL, "one", "is not a data set");
}

/* Checks which grey is behind a transparent picture of blue ink, black ink, or nothing. */
static void test_behind(void) {
    static const int by[3] = { 0, 1, 3 };          /* off, by greys, by colours */
    static const int behind[3][3] = { { 0, 255, 0 }, { 0, 255, 255 }, { 0, 0, 0 } };
    static const int blank[3][3] = { { 0, 0, 0 }, { 1, 0, 0 }, { 1, 1, 1 } };
    make_folder(in("one", ""));
    for (int ink = 0; ink < 3; ink++) {
        unsigned char p[7 * 6 * 4] = { 0 };
        for (int i = 0; i < 7 * 6; i++) {
            p[4 * i + 2] = ink == 0 ? 255 : 0;
            p[4 * i + 3] = ink < 2 && i % 4 == 0 ? 255 : 0;
        }
        put_png("one", "ink.png", 7, 6, 4, p);
        for (int k = 0; k < 3; k++) {
            data_desc desc = shaped(0, 0, 0, DATA_AS_IS);
            data_set d;
            desc.opposite = by[k];
            if (!CHECK(data_load_image(&d, in("one", "ink.png"), &desc, NULL, error,
                                       sizeof error), "%s", error)) continue;
            CHECK(d.behind == behind[ink][k], "ink %d, %d: behind %d", ink, k, d.behind);
            CHECK(d.blank == blank[ink][k], "ink %d, %d: blank %d", ink, k, d.blank);
            CHECK(d.pixels[1] == behind[ink][k] && d.pixels[0] == 0, "ink %d, %d: pixels %d %d",
                  ink, k, d.pixels[0], d.pixels[1]);
            desc = shaped(3, 3, 7, DATA_FIT);
            if (CHECK(data_fit_image(&d, "ink.png", &desc, error, sizeof error), "%s", error))
                CHECK(d.behind == behind[ink][k] && d.blended == 1, "fitted: behind %d", d.behind);
            data_free(&d);
        }
    }
}

/* stb_image 2.27 reads other PNMs than these, but not right. */
static void test_pnm(void) {
    static const char *const wrong[] = {
        "P5 2 2 100\nabcd", "P5\n2 2\n65535\nabcdefgh", "P5\n2 2\n255\nabc",
        "P6 2 2 255\nabcdefghijk", "P5 2 2", "P5 -2 2 255\nabcd"
    };
    static const char right[] = "P5\n# 2 2 9\n2 2 # two\n255\nabcd";
    data_set d;
    put_text("one", "right.pgm", right);
    if (CHECK(data_load_image(&d, in("one", "right.pgm"), NULL, NULL, error, sizeof error), "%s",
              error)) {
        CHECK(d.c == 1 && d.h == 2 && d.w == 2 && !memcmp(d.pixels, "abcd", 4), "its pixels");
        data_free(&d);
    }
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        put_text("one", "wrong.pgm", wrong[i]);
        CHECK(!data_load_image(&d, in("one", "wrong.pgm"), NULL, NULL, error, sizeof error) &&
              strstr(error, "whose maximum is not 255"), "%s: %s", wrong[i], error);
    }
}

static void add_to(void *user, void *data, int n) {
    for (int i = 0; i < n; i++) add((bytes *)user, ((unsigned char *)data)[i]);
}
/* Adds an Exif segment with an orientation, after another field. */
static void add_exif(bytes *b, int little, unsigned orientation) {
    static const unsigned field[2][4] = { { 0x10f, 2, 1, 0 }, { 0x112, 3, 1, 0 } };
    const unsigned head[4] = { 0xff, 0xe1, 0, 2 + 6 + 8 + 2 + 24 };
    for (int k = 0; k < 4; k++) add(b, head[k]);
    for (int k = 0; k < 6; k++) add(b, (unsigned)"Exif\0"[k]);
    const unsigned start[2][10] = { { 'M', 'M', 0, 42, 0, 0, 0, 8, 0, 2 },
                                    { 'I', 'I', 42, 0, 8, 0, 0, 0, 2, 0 } };
    for (int k = 0; k < 10; k++) add(b, start[little][k]);
    for (int k = 0; k < 2; k++) {
        const unsigned value = k ? orientation : 'x';
        const unsigned pair[2][2] = { { field[k][0] >> 8, field[k][0] & 255 }, { 0, field[k][1] } };
        for (int i = 0; i < 2; i++) {
            add(b, pair[i][little]);
            add(b, pair[i][!little]);
        }
        if (little) add_little(b, 1);
        else add_big(b, 1);
        add(b, little ? value : 0);
        add(b, little ? 0 : value);
        add(b, 0);
        add(b, 0);
    }
}
/* Checks that a folder of turned pictures loads, and that one does not whose pictures have the same
   size only as they are stored. */
static void check_turned_folder(const bytes *turned, const bytes *plain) {
    data_set d;
    make_folder(in("phone", ""));
    put("phone/cat", "1.jpg", turned);
    put("phone/cat", "2.jpg", turned);
    if (CHECK(data_load(&d, ROOT "/phone", "all", NULL, error, sizeof error), "%s", error)) {
        CHECK(d.n == 2 && d.h == 24 && d.w == 16, "%d of %d x %d", d.n, d.w, d.h);
        data_free(&d);
    }
    put("phone/cat", "2.jpg", plain);
    CHECK(!data_load(&d, ROOT "/phone", "all", NULL, error, sizeof error) &&
          strstr(error, "is 24 x 16"), "%s", error);
}

/* Checks that a JPEG is turned upright by its Exif orientation: its brightest corner is known. */
static void test_orientation(void) {
    enum { W = 24, H = 16 };
    static const int corner[9][2] = { { 0, 0 }, { 0, 0 }, { 0, 1 }, { 1, 1 }, { 1, 0 },
                                      { 0, 0 }, { 0, 1 }, { 1, 1 }, { 1, 0 } };
    unsigned char p[W * H];
    for (int i = 0; i < W * H; i++) {
        p[i] = 10;
        if (i % W < W / 2) p[i] = i / W < H / 2 ? 240 : 100;
    }
    for (unsigned how = 0; how < 20; how++) {
        static bytes plain;
        static bytes b;
        const unsigned o = how % 10;               /* 0 and 9 are not valid */
        const int is_turned = o >= 5 && o <= 8;
        data_set d;
        memset(&plain, 0, sizeof plain);
        memset(&b, 0, sizeof b);
        CHECK(stbi_write_jpg_to_func(add_to, &plain, W, H, 1, p, 95), "a JPEG");
        add_to(&b, plain.at, 2);
        add_exif(&b, how >= 10, o);
        add_to(&b, plain.at + 2, (int)plain.n - 2);
        put("one", "turned.jpg", &b);
        if (!CHECK(data_load_image(&d, in("one", "turned.jpg"), NULL, NULL, error, sizeof error),
                   "%s", error)) continue;
        const int *c = corner[o == 9 ? 1 : o];
        const int w = is_turned ? H : W;
        const int h = is_turned ? W : H;
        CHECK(d.w == w && d.h == h, "orientation %u: %d x %d", o, d.w, d.h);
        const int rows[2] = { 2, h - 3 };
        const int columns[2] = { 2, w - 3 };
        const int bright = d.pixels[rows[c[0]] * w + columns[c[1]]];
        const int at = rows[c[0] ^ !is_turned] * w + columns[c[1] ^ is_turned];    /* was below */
        CHECK(bright > 220, "orientation %u: corner %d", o, bright);
        CHECK(abs(d.pixels[at] - 100) < 20, "orientation %u: beside it %d", o, d.pixels[at]);
        data_free(&d);
        for (size_t cut = 1; cut < 60 && b.n > cut; cut++) {       /* never reads beyond the end */
            unsigned char *part = (unsigned char *)malloc(cut);
            if (part) memcpy(part, b.at, cut);
            const int any = part ? data__orientation(part, cut) : 1;
            CHECK(any == 1 || any == (int)o, "cut at %d: %d", (int)cut, any);
            free(part);
        }
        if (o == 6) check_turned_folder(&b, &plain);
    }
}

/* A Huffman table of 17 * 16 codes, for which stb_image 2.27 has no space. */
static void test_jpeg_tables(void) {
    data_set d;
    for (int repeated = 0; repeated < 2; repeated++) {
        static bytes b;
        memset(&b, 0, sizeof b);
        for (int i = 0; i <= repeated; i++) add(&b, 0xff);
        add(&b, 0xd8);
        add(&b, 0xff);
        add(&b, 0xc4);
        add(&b, 3);
        add(&b, 0);
        add(&b, 0);
        for (int i = 0; i < 16; i++) add(&b, 17);
        add_noise(&b, 1000);
        put("one", "tables.jpg", &b);
        CHECK(!data_load_image(&d, in("one", "tables.jpg"), NULL, NULL, error, sizeof error) &&
              strstr(error, "is damaged"), "%d: %s", repeated, error);
    }
}

/* ---- resizing: known answers ----------------------------------------------------------------- */

static void test_resize(void) {
    const unsigned char square[16] = { 0, 4, 8, 12, 0, 4, 8, 12, 100, 104, 200, 204, 0, 0, 0, 255 };
    const unsigned char row[3] = { 0, 90, 240 };
    unsigned char to[64], flat[63], back[64 * 64], same[63];
    data__area(to, 2, 2, square, 4, 4);
    CHECK(to[0] == 2 && to[1] == 10 && to[2] == 51 && to[3] == 165, "means of 2 x 2: %d %d %d %d",
          to[0], to[1], to[2], to[3]);
    data__area(to, 1, 2, row, 1, 3);               /* 1 1/2 pixels each */
    CHECK(to[0] == 30 && to[1] == 190, "(0 + 90/2) / 1.5 and (90/2 + 240) / 1.5: %d %d", to[0],
          to[1]);
    data__bilinear(to, 1, 6, row, 1, 3);           /* at -1/4 1/4 3/4 5/4 7/4 9/4 */
    CHECK(to[0] == 0 && to[1] == 23 && to[2] == 68 && to[3] == 128 && to[4] == 203 && to[5] == 240,
          "between: %d %d %d %d %d %d", to[0], to[1], to[2], to[3], to[4], to[5]);
    for (int i = 0; i < 63; i++) {
        flat[i] = 200;
        same[i] = (unsigned char)(noise() >> 24);
    }
    for (int h = 1; h < 40; h += 3)
        for (int w = 1; w < 40; w += 4)
            for (int kind = 0; kind < 2; kind++) {
                (kind ? data__area : data__bilinear)(back, h, w, flat, 7, 9);
                int off = 0;
                for (int i = 0; i < h * w; i++) off += back[i] != 200;
                CHECK(!off, "a grey wall stays one at %d x %d", h, w);
            }
    data__area(back, 7, 9, same, 7, 9);
    CHECK(!memcmp(back, same, 63), "area of the same size");
    data__bilinear(back, 7, 9, same, 7, 9);
    CHECK(!memcmp(back, same, 63), "bilinear of the same size");
}

/* ---- damage ---------------------------------------------------------------------------------- */

/* Loads; whatever comes must be whole: every pixel and label is read. */
static int survives(const char *what) {
    data_set d;
    unsigned sum = 0;
    error[0] = 0;
    if (!data_load(&d, what, "train", NULL, error, sizeof error)) {
        CHECK(error[0] && !strchr(error, '\n'), "%s: a message of one line: '%s'", what, error);
        return 0;
    }
    for (ptrdiff_t i = 0; i < (ptrdiff_t)d.n * d.c * d.h * d.w; i++) sum += d.pixels[i];
    for (int i = 0; i < d.n; i++)
        if (!CHECK(d.labels[i] >= 0 && d.labels[i] < d.classes, "label %d", d.labels[i])) break;
    CHECK(sum < 4000000000u && d.class_names[d.classes - 1], "names");
    data_free(&d);
    return 1;
}

/* The good file, cut at every length (all must be refused, unless `cut_loads`), then with bytes
   turned over. */
static void damage(const char *folder, const char *name, int cut_loads, int flips) {
    static bytes good, bad;
    char what[256];
    snprintf(what, sizeof what, "%s", in(folder, ""));
    FILE *f = fopen(in(folder, name), "rb");
    memset(&good, 0, sizeof good);
    if (!CHECK(f != NULL, "%s/%s", folder, name)) return;
    good.n = fread(good.at, 1, sizeof good.at, f);
    fclose(f);
    CHECK(survives(what), "%s before: %s", what, error);
    int loaded = 0;
    int unnamed = 0;
    for (size_t n = 0; n < good.n; n++) {
        if (good.n > 3000 && n > 300 && n + 300 < good.n && n % 97) continue;
        write_bytes(in(folder, name), good.at, n);
        const int ok = survives(what);
        loaded += ok;
        unnamed += !ok && !strstr(error, cut_loads ? what : name);
    }
    CHECK(cut_loads || !loaded, "%s/%s: %d cut ones load", folder, name, loaded);
    CHECK(!unnamed, "%s/%s: %d messages do not name it", folder, name, unnamed);
    for (int i = 0; i < flips; i++) {
        bad = good;
        for (unsigned k = noise() % 3 + 1; k--; ) {
            const size_t at = noise() % (i % 2 || good.n < 64 ? good.n : 64);
            const unsigned bit = noise() % 8;
            const unsigned other = noise();
            const unsigned one_bit = noise() % 5;
            bad.at[at] ^= (unsigned char)(one_bit ? 1u << bit : other);
        }
        if (i % 7 == 3) bad.n = noise() % (good.n + 1);
        write_bytes(in(folder, name), bad.at, bad.n);
        survives(what);
    }
    write_bytes(in(folder, name), good.at, good.n);
    CHECK(survives(what), "%s after: %s", what, error);
}

static void test_damage(void) {
    static bytes images, labels, packed;
    static unsigned char p[40 * 40 * 3];
    for (size_t i = 0; i < sizeof p; i++) p[i] = (unsigned char)(noise() >> 28);
    idx(&images, &labels, 3, 1, 5, 6, 3);
    put_idx("bad_idx", 0, &images, &labels);
    damage("bad_idx", "train-images-idx3-ubyte", 0, 1000);
    damage("bad_idx", "train-labels-idx1-ubyte", 0, 1000);
    for (int stored = 0; stored < 2; stored++) {
        gzip(&packed, &images, stored ? 30 : 8, stored);
        remove(in("bad_idx", "train-images-idx3-ubyte"));
        put("bad_idx", "train-images-idx3-ubyte.gz", &packed);
        damage("bad_idx", "train-images-idx3-ubyte.gz", 0, 2000);
    }
    memset(&images, 0, sizeof images);
    for (int i = 0; i < 2; i++) {
        add(&images, 0);
        add(&images, 5);
        add_noise(&images, 3072);
    }
    put("bad_bin", "train.bin", &images);
    damage("bad_bin", "train.bin", 1, 50);         /* cut between two records */
    put_png("bad_tiles", "train.png", 20, 10, 3, p);
    put_text("bad_tiles", "train.txt", "0\n1");
    damage("bad_tiles", "train.png", 1, 1500);     /* stb does not miss a file's last bytes */
    damage("bad_tiles", "train.txt", 1, 300);
    make_folder(in("bad_folder", ""));
    put_png("bad_folder/a", "1.png", 13, 11, 4, p);
    put_jpeg("bad_folder/a", "2.jpg");
    CHECK(stbi_write_bmp(in("bad_folder/a", "3.bmp"), 13, 11, 3, p), "bmp");
    CHECK(stbi_write_tga(in("bad_folder/a", "4.tga"), 13, 11, 3, p), "tga");
    damage("bad_folder", "a/1.png", 1, 1000);
    damage("bad_folder", "a/2.jpg", 1, 1000);
    damage("bad_folder", "a/3.bmp", 1, 500);
    damage("bad_folder", "a/4.tga", 1, 500);
}

/* ---- the real one, where it is --------------------------------------------------------------- */

/* The pixels and labels of CIFAR-10, whatever form they are in, written as records, are the files
   of its authors: CRC-32 of those whose SHA-256 tools/get-data has. */
static void test_cifar10_itself(void) {
    static const unsigned long crc[6] = {
        0xb3220c1f, 0xc439a348, 0x8c6f54f0, 0x6a83637e, 0x2f355afd, 0x19777d49
    };
    struct stat s;
    data_set d;
    if (stat("data/cifar10/test_lables.json", &s) && stat("data/cifar10/test_batch.bin", &s)) {
        printf("data/cifar10 is not there: not tested\n");
        return;
    }
    enum { RECORD = 3073, COUNT = 10000 };
    unsigned char *records = (unsigned char *)malloc((size_t)RECORD * COUNT);
    for (int file = 0; records && file < 6; file++) {
        if (file % 5 == 0 && !loads(&d, "cifar10", file ? "test" : "train", NULL)) break;
        for (int i = 0; i < COUNT; i++) {
            const ptrdiff_t k = (file == 5 ? 0 : file * COUNT) + i;
            records[(ptrdiff_t)i * RECORD] = (unsigned char)d.labels[k];
            memcpy(records + (ptrdiff_t)i * RECORD + 1, d.pixels + k * 3072, 3072);
        }
        CHECK(crc32_of(0, records, (size_t)RECORD * COUNT) == crc[file], "file %d", file);
        if (file >= 4) data_free(&d);
    }
    free(records);
}

/* ---- cleaning up ----------------------------------------------------------------------------- */

static void remove_all(const char *path) {
    char inner[1024];
    DIR *dir = opendir(path);
    for (const struct dirent *e; dir && (e = readdir(dir)) != NULL; ) {
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        const int n = snprintf(inner, sizeof inner, "%s/%s", path, e->d_name);
        if (n > 0 && n < (int)sizeof inner && remove(inner)) remove_all(inner);
    }
    if (dir) {
        closedir(dir);
        remove(path);
    }
}

/* Checks a gzip file with a claimed size of 50 MB. */
static void check_packed_limit(void) {
    static bytes b;
    static const unsigned char head[10] = { 0x1f, 0x8b, 8 };
    data_desc desc;
    for (int i = 0; i < 10; i++) add(&b, head[i]);
    add_noise(&b, 60000);
    add_little(&b, 0);
    add_little(&b, 50000000);
    put("limits_gz", "train-images-idx3-ubyte.gz", &b);
    put_text("limits_gz", "train-labels-idx1-ubyte", "");
    memset(&desc, 0, sizeof desc);
    desc.file_mb = 40;
    refuses(ROOT "/limits_gz", "train", &desc, "ubyte.gz: is larger than 40 MB", "--max-file");
    desc.file_mb = 60;
    refuses(ROOT "/limits_gz", "train", &desc, "ubyte.gz: ", "damaged");
}

/* What a few bytes say they hold: refused before there is memory for it, by the limit's name. */
static void test_limits(void) {
    static unsigned char p[4 * 40 * 30];
    static bytes b;
    for (size_t i = 0; i < sizeof p; i++) p[i] = (unsigned char)noise();
    make_folder(in("limits", ""));
    make_folder(in("limits/a", ""));
    put_png("limits/a", "x.png", 40, 30, 3, p);
    data_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.picture_mb = .003;
    refuses(ROOT "/limits", "train", &desc, "x.png: is 40 x 30, which takes 1 MB", "--max-picture");
    desc.picture_mb = .0037;
    desc.file_mb = .0001;
    refuses(ROOT "/limits", "train", &desc, "x.png: is larger than 0 MB", "--max-file");
    desc.file_mb = 0;
    desc.memory_mb = .003;
    refuses(ROOT "/limits", "train", &desc, "1 images of 40 x 30 take 1 MB", "--max-memory");
    data_set d;
    desc.memory_mb = .0037;
    if (CHECK(loads(&d, ROOT "/limits", "train", &desc), "within all limits")) data_free(&d);

    FILE *f = fopen(in("limits/a", "x.png"), "rb");    /* 16000 x 16000, and not absurdly packed */
    b.n = f ? fread(b.at, 1, sizeof b.at, f) : 0;
    if (f) fclose(f);
    CHECK(b.n > 100 && b.n < 10000, "%d", (int)b.n);
    add(&b, 255);                                  /* what follows a picture does not matter */
    put("limits/a", "x.png", &b);
    if (CHECK(loads(&d, ROOT "/limits", "train", NULL), "a byte behind")) data_free(&d);
    b.at[33] = 0x7d;                               /* pixels of 2 GB in so small a file */
    put("limits/a", "x.png", &b);
    refuses(ROOT "/limits", "train", NULL, "x.png", "is damaged");
    b.at[33] = 0;
    for (int i = 16; i < 24; i += 4) {
        b.at[i + 2] = 0x3e;
        b.at[i + 3] = 0x80;
    }
    while (b.n < 60000) add(&b, 0);
    put("limits/a", "x.png", &b);
    refuses(ROOT "/limits", "train", NULL, "x.png: is 16000 x 16000, which takes 768 MB",
            "more than 400");
    check_packed_limit();
}

/* Draws a panel; the letters below it end before the picture does. */
static void test_chart(void) {
    enum { BOTTOM = 160 };
    static const float x[2] = { 0, 1 };
    const curve line = { "", 0, x, x, 2, 1.8f };
    const panel q = { "", "(gjpqy), [Q]", 40, 60, 290, BOTTOM, 0, 1, &line, 1 };
    plot p;
    int last = 0;
    if (!CHECK(plot_create(&p, 300, BOTTOM + PANEL_BELOW, 0, 300, BOTTOM + PANEL_BELOW, 0),
               "no memory")) return;
    draw_panel(&p, &q);
    for (int i = 0; i < 3 * p.w * p.h; i++) if (p.rgb[i] < 255) last = i / (3 * p.w);
    CHECK(last > BOTTOM + 40 && last < p.h - 2, "row %d of %d", last, p.h);
    plot_free(&p);
}

int main(int argc, char **argv) {
    static const test_case all[] = {
        TEST(test_digits), TEST(test_idx), TEST(test_cifar), TEST(test_sheets),
        TEST(test_folders), TEST(test_one_image), TEST(test_behind), TEST(test_pnm),
        TEST(test_orientation), TEST(test_jpeg_tables), TEST(test_resize), TEST(test_limits),
        TEST(test_damage), TEST(test_chart), TEST(test_cifar10_itself)
    };
    test_begin(argc, argv);
    make_folder("build");
    remove_all(ROOT);
    make_folder(ROOT);
    test_run(all, TEST_COUNT(all), NULL);
    remove_all(ROOT);
    return test_report();
}
