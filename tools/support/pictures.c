/* Digits, image grids, films, plots of the plane. */
#include "tools/support/crc32.h"
#include "tools/support/new_file.h"
#include "tools/support/pictures.h"

int report(const jem_ctx *ctx) {
    if (ctx && jem_ok(ctx)) return 0;
    fprintf(stderr, "error: %s\n", ctx ? jem_error(ctx) : "no memory for a context");
    return 1;
}

unsigned char *picture_read(const char *path, int *w, int *h) {
    int channels;
    errno = 0;
    unsigned char *grey = stbi_load(path, w, h, &channels, 2);         /* and alpha */
    if (!grey) {
        fprintf(stderr, "%s: cannot be read: %s\n", path,
                errno ? strerror(errno) : stbi_failure_reason());
        return NULL;
    }
    for (ptrdiff_t k = 0; k < (ptrdiff_t)*w * *h; k++) {
        const int alpha = grey[2 * k + 1];
        grey[k] = (unsigned char)((grey[2 * k] * alpha + 255 * (255 - alpha) + 127) / 255);
    }
    return grey;
}

/* ---- the digits ------------------------------------------------------------------------------ */

void digits_free(digits *d) {
    free(d->x);
    free(d->test_x);
    free(d->y);
    free(d->test_y);
    memset(d, 0, sizeof *d);
}

int digits_load(const char *path, digits *d) {
    enum { ACROSS = 100, CLASSES = 10, ROWS = 10, SIDE = ACROSS * DIGIT };
    memset(d, 0, sizeof *d);
    int w = 0;
    int h = 0;
    unsigned char *sheet = picture_read(path, &w, &h);
    if (!sheet) {
        fprintf(stderr, "(the examples run in the project's directory: build/NAME)\n");
        return 0;
    }
    const int fits = w == SIDE && h == SIDE;
    if (fits) {
        d->x = (float *)malloc(DIGITS_TRAIN * DIGIT_PIXELS * sizeof *d->x);
        d->y = (int *)malloc(DIGITS_TRAIN * sizeof *d->y);
        d->test_x = (float *)malloc(DIGITS_TEST * DIGIT_PIXELS * sizeof *d->test_x);
        d->test_y = (int *)malloc(DIGITS_TEST * sizeof *d->test_y);
    }
    if (!fits || !d->x || !d->y || !d->test_x || !d->test_y) {
        if (fits) fprintf(stderr, "%s: out of memory\n", path);
        else fprintf(stderr, "%s: is %d x %d, not the sheet of %d x %d\n", path, w, h, SIDE, SIDE);
        stbi_image_free(sheet);
        digits_free(d);
        return 0;
    }
    for (int row = 0; row < ACROSS; row++)
        for (int column = 0; column < ACROSS; column++) {
            const int label = row / ROWS;
            const int held_out = row % ROWS == ROWS - 1;
            const int i = (held_out ? column : row % ROWS * ACROSS + column) * CLASSES + label;
            const unsigned char *from = sheet + (ptrdiff_t)row * DIGIT * SIDE + column * DIGIT;
            float *to = (held_out ? d->test_x : d->x) + (ptrdiff_t)i * DIGIT_PIXELS;
            (held_out ? d->test_y : d->y)[i] = label;
            for (int k = 0; k < DIGIT_PIXELS; k++)
                to[k] = (float)from[k / DIGIT * SIDE + k % DIGIT] / 127.5f - 1;
        }
    stbi_image_free(sheet);
    return 1;
}

void digits_batch(const digits *d, jem_rng *rng, int n, float *x, int *y) {
    for (int k = 0; k < n; k++) {
        const int i = jem_rng_below(rng, DIGITS_TRAIN);
        memcpy(x + k * DIGIT_PIXELS, d->x + i * DIGIT_PIXELS, DIGIT_PIXELS * sizeof *x);
        y[k] = d->y[i];
    }
}

jem_net *digits_model(jem_ctx *ctx, const char *path) {
    FILE *own = path ? NULL : fopen(MODEL_PATH, "rb");
    const int ships = !path && !own;
    if (!path) path = own ? MODEL_PATH : SHIPPED_PATH;
    if (own) fclose(own);
    jem_net *net = jem_load(ctx, path);
    if (net && net->channels == 1 && net->height == DIGIT && net->width == DIGIT &&
        net->classes == 10) {
        if (ships) printf("(the network of %s: `make demo` trains one of your own)\n", path);
        return net;
    }
    if (net) fprintf(stderr, "%s: not a network for digits\n", path);
    else report(ctx);
    fprintf(stderr, "(the examples run in the project's directory: build/NAME)\n");
    jem_net_free(net);
    return NULL;
}

int chains_film_take(chains_film *f, jem_tensor *x) {
    if (f->taken == f->shots || jem_read(x, f->all) != JEM_OK) return 1;
    for (int i = 0; i < f->chains; i++)
        memcpy(f->x + (i * f->shots + f->taken) * DIGIT_PIXELS,
               f->all + i * f->every * DIGIT_PIXELS, DIGIT_PIXELS * sizeof *f->x);
    f->taken++;
    return 0;
}
int chains_film_watch(void *user, int step, jem_tensor *x) {
    chains_film *f = (chains_film *)user;
    (void)step;                                    /* it restarts with the second sampler */
    f->step++;
    return f->taken < f->shots && f->step == f->moments[f->taken] ? chains_film_take(f, x) : 0;
}

/* ---- image files ----------------------------------------------------------------------------- */

unsigned char picture_byte(float in_0_1) {
    if (in_0_1 >= 1) return 255;
    if (in_0_1 > 0) return (unsigned char)(in_0_1 * 255 + .5f);
    return 0;                                      /* for NaN, too */
}

static void picture__bytes(void *file, void *bytes, int n) {
    new_file_put((new_file *)file, bytes, (size_t)n);      /* new_file_done reports a failure */
}

/* Compresses into a zlib stream, to be freed with stb_free. If memory runs out, stb gives up by a
   jump; returns NULL. */
static unsigned char *picture__pack(unsigned char *bytes, int n, int *packed) {
    if (setjmp(stb_out)) {
        stb_armed = 0;
        return NULL;
    }
    stb_armed = 1;
    unsigned char *data = stbi_zlib_compress(bytes, n, packed, 64);
    stb_armed = 0;
    return data;
}
static int picture__png(new_file *f, const unsigned char *bytes, int w, int h, int c) {
    if (setjmp(stb_out)) {
        stb_armed = 0;
        return 0;
    }
    stb_armed = 1;
    const int ok = stbi_write_png_to_func(picture__bytes, f, w, h, c, bytes, w * c) != 0;
    stb_armed = 0;
    return ok;
}

/* Completes a picture, or prints the reason. */
static int picture__done(new_file *n, int ok) {
    errno = 0;
    if (!ok) new_file_fail(n, "cannot be written: no memory, or too large a picture");
    if (new_file_done(n, ok)) return 1;
    fprintf(stderr, "%s\n", n->message);
    return 0;
}

int picture_write(const char *path, const unsigned char *bytes, int w, int h, int c) {
    new_file n;
    const int ok = new_file_open(&n, path) && (double)w * h * c < 1e9 &&  /* sizes are int in stb */
                   picture__png(&n, bytes, w, h, c);
    return picture__done(&n, ok);
}

enum { PICTURE_MARGIN = 2 };

int picture_grid_fits(const char *path, int n, int columns, int c, int h, int w, int zoom) {
    if (n < 1 || columns < 1 || (c != 1 && c != 3) || h < 1 || w < 1 || zoom < 1) {
        fprintf(stderr, "%s: cannot draw a grid of %d images (%d,%d,%d) in %d columns at zoom %d\n",
                path, n, c, h, w, columns, zoom);
        return 0;
    }
    if (((double)w * zoom + PICTURE_MARGIN) * columns * ((double)h * zoom + PICTURE_MARGIN) *
        ((double)n / columns + 1) * c > 1e9) {
        fprintf(stderr, "%s: %d images of %d x %d, enlarged %d times, are too much for a picture\n",
                path, n, w, h, zoom);
        return 0;
    }
    return 1;
}

/* Makes the pixels of a grid, [height][width][c], to be freed; returns NULL and prints the reason
   if that is not possible. Many parameters: those of picture_grid, and the size, a result. */
static unsigned char *picture__grid(const char *path, const float *x, int n, int columns, int c,
                                    int h, int w, int zoom, int size[2]) {
    const int MARGIN = PICTURE_MARGIN;
    const int GREY = PICTURE_GREY;
    if (!picture_grid_fits(path, n, columns, c, h, w, zoom)) return NULL;
    const int cell_w = w * zoom + MARGIN;
    const int cell_h = h * zoom + MARGIN;
    const int width = columns * cell_w + MARGIN;
    const int height = (n + columns - 1) / columns * cell_h + MARGIN;
    unsigned char *bytes = (unsigned char *)malloc((size_t)width * (size_t)height * (size_t)c);
    if (!bytes) {
        fprintf(stderr, "%s: no memory for %d x %d pixels\n", path, width, height);
        return NULL;
    }
    memset(bytes, GREY, (size_t)width * (size_t)height * (size_t)c);
    for (int i = 0; i < n; i++)
        for (int k = 0; k < c; k++)
            for (int py = 0; py < h * zoom; py++)
                for (int px = 0; px < w * zoom; px++) {
                    const float v = x[(((ptrdiff_t)i * c + k) * h + py / zoom) * w + px / zoom];
                    const ptrdiff_t down = MARGIN + i / columns * cell_h + py;
                    const ptrdiff_t right = MARGIN + i % columns * cell_w + px;
                    bytes[(down * width + right) * c + k] = picture_byte((v + 1) / 2);
                }
    size[0] = width;
    size[1] = height;
    return bytes;
}

int picture_grid(const char *path, const float *x, int n, int columns, int c, int h,
                 int w, int zoom) {
    int size[2];
    unsigned char *bytes = picture__grid(path, x, n, columns, c, h, w, zoom, size);
    const int ok = bytes && picture_write(path, bytes, size[0], size[1], c);
    free(bytes);
    return ok;
}

/* ---- films ----------------------------------------------------------------------------------- */

/* Animated PNG (the APNG chapter of the PNG specification, third edition): a PNG whose first image
   is the first frame, with chunks that other readers skip. acTL: the number of frames; fcTL: the
   position and duration of a frame; fdAT: its pixels, after the first one's IDAT. */

static void picture__u32(unsigned char *to, unsigned v) {
    for (int k = 0; k < 4; k++) to[k] = (unsigned char)(v >> (24 - 8 * k));
}
/* Writes a chunk: its length, type, up to 28 bytes, then n more, and a checksum of all but the
   length. */
static void picture__chunk(new_file *f, const char *type, const unsigned char *first, int few,
                           const unsigned char *rest, int n) {
    unsigned char head[40];
    picture__u32(head, (unsigned)(few + n));
    memcpy(head + 4, type, 4);
    if (few) memcpy(head + 8, first, (size_t)few);
    const unsigned long crc = crc32_of(crc32_of(0, head + 4, (size_t)few + 4), rest, (size_t)n);
    new_file_put(f, head, (size_t)few + 8);
    if (n) new_file_put(f, rest, (size_t)n);
    picture__u32(head, (unsigned)crc);
    new_file_put(f, head, 4);
}
/* Copies rows of n bytes, which are `stride` bytes apart, each after a 0 byte (no filter). */
static void picture__rows(unsigned char *lines, const unsigned char *from, int rows, int n,
                          ptrdiff_t stride) {
    for (int i = 0; i < rows; i++) {
        unsigned char *to = lines + (ptrdiff_t)i * (n + 1);
        to[0] = 0;
        memcpy(to + 1, from + i * stride, (size_t)n);
    }
}
/* Writes the chunks of frame k, n bytes of rows, for `ms` ms. It replaces a part of the picture: at
   left and top, of a width and height. Returns 0 without memory. */
static int picture__frame(new_file *f, unsigned k, const int at[4], int ms, unsigned char *lines,
                          int n) {
    unsigned char c[26];
    int packed = 0;
    unsigned char *data = picture__pack(lines, n, &packed);
    memset(c, 0, sizeof c);
    picture__u32(c, k ? 2 * k - 1 : 0);            /* fcTL and fdAT share a sequence number */
    for (int i = 0; i < 4; i++) picture__u32(c + 4 + 4 * i, (unsigned)at[(i + 2) % 4]);
    c[20] = (unsigned char)(ms >> 8);
    c[21] = (unsigned char)ms;
    c[22] = 3;
    c[23] = 232;
    picture__chunk(f, "fcTL", c, 26, NULL, 0);     /* ms/1000 s; drawn over */
    picture__u32(c, 2 * k);
    if (data && k) picture__chunk(f, "fdAT", c, 4, data, packed);
    else if (data) picture__chunk(f, "IDAT", c, 0, data, packed);
    stb_free(data);
    return data != NULL;
}
/* Finds left, top, width, height of the difference of two pictures; one pixel if they are equal. */
static void picture__changed(const unsigned char *a, const unsigned char *b, int w, int h,
                             int at[4]) {
    int left = w;
    int right = -1;
    int top = h;
    int bottom = -1;
    for (int i = 0; i < h; i++)
        for (int j = 0; j < w; j++)
            if (memcmp(a + ((ptrdiff_t)i * w + j) * 3, b + ((ptrdiff_t)i * w + j) * 3, 3)) {
                if (j < left) left = j;
                if (j > right) right = j;
                if (i < top) top = i;
                bottom = i;
            }
    if (right < 0) left = right = top = bottom = 0;
    at[0] = left;
    at[1] = top;
    at[2] = right - left + 1;
    at[3] = bottom - top + 1;
}

/* Colours in 6 bits of red, green and blue each. */
enum { CELLS = 1 << 18, PALETTE = 256 };
static int picture__cell(const unsigned char *rgb) {
    return (rgb[0] >> 2) << 12 | (rgb[1] >> 2) << 6 | rgb[2] >> 2;
}

/* A cell, its number of pixels and the sum of their colours. */
typedef struct picture__count {
    ptrdiff_t pixels, sum[3];
    int cell;
} picture__count;
static int picture__more(const void *a, const void *b) {
    const picture__count *x = (const picture__count *)a;
    const picture__count *y = (const picture__count *)b;
    if (x->pixels != y->pixels) return x->pixels < y->pixels ? 1 : -1;
    return x->cell - y->cell;
}

int picture_reduce(unsigned char *rgb, ptrdiff_t n) {
    picture__count *all = (picture__count *)calloc(CELLS, sizeof *all);
    int *nearest = (int *)malloc(CELLS * sizeof *nearest);
    unsigned char colours[PALETTE][3];
    if (!all || !nearest) {
        free(all);
        free(nearest);
        fprintf(stderr, "no memory to reduce the colours of a film\n");
        return 0;
    }
    for (ptrdiff_t i = 0; i < n; i++) {
        picture__count *c = all + picture__cell(rgb + 3 * i);
        c->pixels++;
        for (int k = 0; k < 3; k++) c->sum[k] += rgb[3 * i + k];
    }
    for (int i = 0; i < CELLS; i++) all[i].cell = i;
    qsort(all, CELLS, sizeof *all, picture__more);
    int count = 0;
    for (; count < PALETTE && all[count].pixels > 0; count++) {
        for (int k = 0; k < 3; k++) {
            colours[count][k] = (unsigned char)(all[count].sum[k] / all[count].pixels);
        }
    }
    for (int i = 0; i < CELLS && all[i].pixels > 0; i++) {
        int best = 1 << 30;
        for (int c = 0; c < count; c++) {
            int far = 0;
            for (int k = 0; k < 3; k++) {
                const int d = (int)(all[i].sum[k] / all[i].pixels) - colours[c][k];
                far += d * d;
            }
            if (far >= best) continue;
            best = far;
            nearest[all[i].cell] = c;
        }
    }
    for (ptrdiff_t i = 0; i < n; i++) {
        memcpy(rgb + 3 * i, colours[nearest[picture__cell(rgb + 3 * i)]], 3);
    }
    free(all);
    free(nearest);
    return 1;
}

/* Lists the colours of n pixels and the place of each in the list, index[n]; returns how many there
   are, or 0 if there are more than 256, or no memory. */
static int picture__palette(const unsigned char *rgb, ptrdiff_t n, unsigned char (*colours)[3],
                            unsigned char *index) {
    enum { SLOTS = 1024 };
    short slot[SLOTS];
    int count = 0;
    if (!index) return 0;
    for (int i = 0; i < SLOTS; i++) slot[i] = -1;
    for (ptrdiff_t i = 0; i < n; i++) {
        const unsigned char *pixel = rgb + 3 * i;
        const unsigned key = (unsigned)pixel[0] << 16 | (unsigned)pixel[1] << 8 | pixel[2];
        unsigned at = key * 2654435761u >> 22;
        while (slot[at] >= 0 && memcmp(colours[slot[at]], pixel, 3)) at = (at + 1) % SLOTS;
        if (slot[at] < 0) {
            if (count == PALETTE) return 0;
            memcpy(colours[count], pixel, 3);
            slot[at] = (short)count++;
        }
        index[i] = (unsigned char)slot[at];
    }
    return count;
}

int picture_film(const char *path, const unsigned char *rgb, int frames, int w, int h,
                 int ms, int hold) {
    static const unsigned char png[9] = "\211PNG\r\n\032\n";
    const ptrdiff_t pixels = (ptrdiff_t)w * h;
    const ptrdiff_t size = pixels * 3;
    const ptrdiff_t total = frames > 0 ? frames * pixels : 0;
    unsigned char *lines = (unsigned char *)malloc((size_t)(size + h));
    unsigned char c[13];
    unsigned char *index = (unsigned char *)malloc((size_t)total + 1);
    unsigned char colours[PALETTE][3];
    const int few = picture__palette(rgb, total, colours, index);
    const int bytes = few ? 1 : 3;
    const unsigned char *from = few ? index : rgb;
    new_file p;
    int ok = new_file_open(&p, path) && lines && frames > 0;
    if (ok) {
        new_file_put(&p, png, 8);
        memset(c, 0, sizeof c);
        picture__u32(c, (unsigned)w);
        picture__u32(c + 4, (unsigned)h);
        c[8] = 8;
        c[9] = few ? 3 : 2;
        picture__chunk(&p, "IHDR", c, 13, NULL, 0);               /* 8 bits, palette or RGB */
        picture__u32(c, (unsigned)frames);
        memset(c + 4, 0, 4);                                       /* for ever */
        picture__chunk(&p, "acTL", c, 8, NULL, 0);
        if (few) picture__chunk(&p, "PLTE", c, 0, colours[0], 3 * few);
    }
    for (int k = 0; k < frames && ok; k++) {
        int at[4] = { 0, 0, w, h };
        if (k) picture__changed(rgb + (k - 1) * size, rgb + k * size, w, h, at);
        const int n = at[2] * bytes;
        picture__rows(lines, from + (k * pixels + (ptrdiff_t)at[1] * w + at[0]) * bytes, at[3], n,
                      (ptrdiff_t)w * bytes);
        ok = picture__frame(&p, (unsigned)k, at, k == frames - 1 ? hold : ms, lines,
                            (n + 1) * at[3]);
    }
    if (ok) picture__chunk(&p, "IEND", NULL, 0, NULL, 0);
    free(lines);
    free(index);
    return picture__done(&p, ok);
}

/* ---- films that grow ------------------------------------------------------------------------- */

/* Before each frame is a chunk of four bytes, its number, which other readers skip. */
static const char *const picture__number = "jeUp";

static unsigned picture__read_u32(const unsigned char *from) {
    return (unsigned)from[0] << 24 | (unsigned)from[1] << 16 | (unsigned)from[2] << 8 | from[3];
}

/* Reads a whole file, to be freed; NULL: it is not there, or no memory. */
static unsigned char *picture__read(const char *path, size_t *size) {
    FILE *file = fopen(path, "rb");
    unsigned char *bytes = NULL;
    long end = -1;
    if (file && fseek(file, 0, SEEK_END) == 0) end = ftell(file);
    if (end > 0) bytes = (unsigned char *)malloc((size_t)end);
    if (bytes) {
        rewind(file);
        *size = fread(bytes, 1, (size_t)end, file);
    }
    if (file) fclose(file);
    return bytes;
}

/* Finds the frames of a film of this size that have a number below `number`: the bytes from *from
   to *to. Returns how many; 0 if it is another film. */
static unsigned picture__frames(const unsigned char *film, size_t size, const unsigned char *head,
                                unsigned number, size_t *from, size_t *to) {
    unsigned frames = 0;
    size_t at = 33;                                /* after the signature and IHDR */
    if (!film || size < 33 || memcmp(film, head, 33)) return 0;
    for (*from = 0; size - at >= 12; ) {
        const size_t length = picture__read_u32(film + at);
        const unsigned char *type = film + at + 4;
        if (length > size - at - 12) return 0;     /* incomplete */
        const int is_end = !memcmp(type, "IEND", 4);
        const int is_number = length == 4 && !memcmp(type, picture__number, 4);
        if (is_number && !*from) *from = at;
        if (is_end || (is_number && picture__read_u32(film + at + 8) >= number)) {
            *to = at;
            return frames;
        }
        frames += (unsigned)is_number;
        at += length + 12;
    }
    return 0;
}

/* Writes the chunks of one frame, the whole picture, as number k of the film. */
static int picture__add(new_file *p, const unsigned char *bytes, const int size[2], int c,
                        unsigned number, unsigned k, int ms) {
    const int n = size[0] * c;
    const int at[4] = { 0, 0, size[0], size[1] };
    unsigned char *lines = (unsigned char *)malloc((size_t)(n + 1) * (size_t)size[1]);
    unsigned char head[4];
    if (!lines) return 0;
    picture__rows(lines, bytes, size[1], n, n);
    picture__u32(head, number);
    picture__chunk(p, picture__number, head, 4, NULL, 0);
    const int ok = picture__frame(p, k, at, ms, lines, (n + 1) * size[1]);
    free(lines);
    return ok;
}

/* Many parameters: those of picture_grid, and of the film. */
int picture_film_add(const char *path, const float *x, int n, int columns, int c, int h, int w,
                     int zoom, unsigned number, int ms) {
    static const unsigned char png[9] = "\211PNG\r\n\032\n";
    unsigned char head[33], acts[8];
    int size[2];
    size_t old_size = 0;
    size_t from = 0;
    size_t to = 0;
    new_file p;
    unsigned char *bytes = picture__grid(path, x, n, columns, c, h, w, zoom, size);
    if (!bytes) return 0;
    memset(head, 0, sizeof head);
    memcpy(head, png, 8);
    picture__u32(head + 8, 13);
    memcpy(head + 12, "IHDR", 4);
    picture__u32(head + 16, (unsigned)size[0]);
    picture__u32(head + 20, (unsigned)size[1]);
    head[24] = 8;
    head[25] = (unsigned char)(c == 1 ? 0 : 2);    /* grey or RGB, 8 bits */
    picture__u32(head + 29, (unsigned)crc32_of(0, head + 12, 17));
    unsigned char *old = picture__read(path, &old_size);
    const unsigned frames = picture__frames(old, old_size, head, number, &from, &to);
    int ok = new_file_open(&p, path) && new_file_put(&p, head, sizeof head);
    picture__u32(acts, frames + 1);
    picture__u32(acts + 4, 0);                     /* for ever */
    if (ok) picture__chunk(&p, "acTL", acts, 8, NULL, 0);
    if (ok && frames) ok = new_file_put(&p, old + from, to - from);
    ok = ok && picture__add(&p, bytes, size, c, number, frames, ms);
    if (ok) picture__chunk(&p, "IEND", NULL, 0, NULL, 0);
    free(old);
    free(bytes);
    return picture__done(&p, ok);
}

/* ---- plots of the plane ---------------------------------------------------------------------- */

void plot_free(plot *p) {
    free(p->rgb);
    free(p->values);
    p->rgb = NULL;
    p->values = NULL;
}

int plot_create(plot *p, int w, int h, float x0, float x1, float y0, float y1) {
    const size_t pixels = (size_t)w * (size_t)h;
    p->w = w;
    p->h = h;
    p->x0 = x0;
    p->x1 = x1;
    p->y0 = y0;
    p->y1 = y1;
    p->failed = 0;
    p->rgb = (unsigned char *)malloc(pixels * 3);
    p->values = (float *)calloc(pixels, sizeof *p->values);
    if (p->rgb && p->values) {
        memset(p->rgb, 255, pixels * 3);           /* white paper */
        return 1;
    }
    fprintf(stderr, "no memory for a plot of %d x %d pixels\n", w, h);
    plot_free(p);
    return 0;
}

void plot_blend(plot *p, int i, int j, unsigned colour, float opacity) {
    unsigned char *at = p->rgb + ((ptrdiff_t)i * p->w + j) * 3;
    for (int k = 0; k < 3; k++) {
        const float ink = (float)((colour >> (16 - 8 * k)) & 255);
        const float paper = (float)at[k];
        at[k] = picture_byte((paper + (ink - paper) * opacity) / 255);
    }
}

void plot_digit(plot *p, int left, int top, int zoom, const float *x) {
    for (int i = 0; i < DIGIT * zoom; i++)
        for (int j = 0; j < DIGIT * zoom; j++) {
            const unsigned grey = picture_byte((x[i / zoom * DIGIT + j / zoom] + 1) / 2);
            plot_blend(p, top + i, left + j, grey * 0x10101u, 1);
        }
}

void plot_put(plot *p, int left, int top, const plot *from) {
    for (int i = 0; i < from->h; i++)
        memcpy(p->rgb + ((ptrdiff_t)(top + i) * p->w + left) * 3,
               from->rgb + (ptrdiff_t)i * from->w * 3, (size_t)from->w * 3);
}

void plot_line(plot *p, float ax, float ay, float bx, float by, float width,
               unsigned colour) {
    const float sx = (float)p->w / (p->x1 - p->x0);
    const float sy = (float)p->h / (p->y1 - p->y0);
    const float r = width / 2;
    const float m = r + 1;
    ax = (ax - p->x0) * sx;
    bx = (bx - p->x0) * sx;                    /* now in pixels */
    ay = (p->y1 - ay) * sy;
    by = (p->y1 - by) * sy;
    const float length2 = (bx - ax) * (bx - ax) + (by - ay) * (by - ay);
    const float w = (float)p->w;
    const float h = (float)p->h;
    const int left = (int)fminf(fmaxf(fminf(ax, bx) - m, 0), w);
    const int right = (int)fminf(fmaxf(fmaxf(ax, bx) + m, 0), w);
    const int top = (int)fminf(fmaxf(fminf(ay, by) - m, 0), h);
    const int bottom = (int)fminf(fmaxf(fmaxf(ay, by) + m, 0), h);
    for (int i = top; i < bottom; i++)
        for (int j = left; j < right; j++) {
            const float x = (float)j + .5f - ax;
            const float y = (float)i + .5f - ay;
            float t = 0;                                               /* nearest: a + t(b-a) */
            if (length2 > 0) t = (x * (bx - ax) + y * (by - ay)) / length2;
            if (t < 0) t = 0;
            if (t > 1) t = 1;
            const float cover = r + .5f - hypotf(x - t * (bx - ax), y - t * (by - ay));
            if (cover > 0) plot_blend(p, i, j, colour, fminf(cover, 1));
        }
}

void plot_dot(plot *p, float x, float y, float width, unsigned colour) {
    plot_line(p, x, y, x, y, width, colour);
}
void plot_dots(plot *p, const float *xy, int n, float width, unsigned colour) {
    for (int i = 0; i < n; i++) plot_dot(p, xy[2 * i], xy[2 * i + 1], width, colour);
}
void plot_way(plot *p, const float *xy, int n, float width, unsigned colour) {
    for (int i = 1; i < n; i++, xy += 2) plot_line(p, xy[0], xy[1], xy[2], xy[3], width, colour);
}

jem_status plot_function(plot *p, jem_ctx *ctx, jem_logp_fn fn, void *user) {
    float *points = (float *)malloc((size_t)p->w * 2 * sizeof *points);
    if (!points) return jem_fail(ctx, JEM_NO_MEMORY, "plot_function: no memory");
    for (int i = 0; i < p->h && jem_ok(ctx); i++) {
        for (int j = 0; j < p->w; j++) {
            points[2 * j] = p->x0 + (p->x1 - p->x0) * ((float)j + .5f) / (float)p->w;
            points[2 * j + 1] = p->y1 - (p->y1 - p->y0) * ((float)i + .5f) / (float)p->h;
        }
        const jem_mark mark = jem_begin(ctx);
        jem_read(fn(ctx, jem_input(ctx, points, p->w, 2, 1, 1), user),
                 p->values + (ptrdiff_t)i * p->w);
        jem_end(ctx, mark);
    }
    free(points);
    return jem_error_status(ctx);
}

void plot_heat(plot *p, float lo, float hi) {
    static const unsigned colours[] = {
        0x000004, 0x1d1147, 0x51127c, 0x832681, 0xb73779, 0xe75263, 0xfc8961, 0xfec488, 0xfcfdbf
    };                             /* matplotlib's magma, by Smith and van der Walt (CC0) */
    const int last = (int)(sizeof colours / sizeof *colours) - 1;
    for (int k = 0; k < p->w * p->h; k++) {
        const float t = floorf((p->values[k] - lo) / (hi - lo) * (float)(6 * last) + .5f) / 6;
        int c = 0;
        if (t >= (float)last) c = last - 1;
        else if (t > 0) c = (int)t;
        plot_blend(p, k / p->w, k % p->w, colours[c], 1);
        plot_blend(p, k / p->w, k % p->w, colours[c + 1], fminf(fmaxf(t - (float)c, 0), 1));
    }
}

void plot_contour(plot *p, float level, float width, unsigned colour) {
    const float dx = (p->x1 - p->x0) / (float)p->w;
    const float dy = (p->y1 - p->y0) / (float)p->h;
    for (int i = 0; i + 1 < p->h; i++)
        for (int j = 0; j + 1 < p->w; j++) {
            const float *v = p->values + (ptrdiff_t)i * p->w + j;
            const int above = v[0] > level;
            const float x = p->x0 + dx * (float)(j + 1);
            const float y = p->y1 - dy * (float)(i + 1);
            if (above != (v[1] > level) || above != (v[p->w] > level))
                plot_dot(p, x, y, width, colour);
        }
}

int plot_write(const plot *p, const char *path) {
    if (p->failed) return 0;
    stbi_write_force_png_filter = 0;               /* few colours: smaller without a filter */
    const int ok = picture_write(path, p->rgb, p->w, p->h, 3);
    stbi_write_force_png_filter = -1;
    return ok;
}

/* ---- digits and other images ----------------------------------------------------------------- */

int digits_draw(const float (*line)[4], int n, float width, float *x) {
    plot p;
    if (!plot_create(&p, DIGIT, DIGIT, 0, DIGIT, 0, DIGIT)) return 0;
    memset(p.rgb, 0, DIGIT_PIXELS * 3);
    for (int i = 0; i < n; i++)
        plot_line(&p, line[i][0], line[i][1], line[i][2], line[i][3], width, 0xffffff);
    for (int k = 0; k < DIGIT_PIXELS; k++) x[k] = (float)p.rgb[3 * k] / 127.5f - 1;
    plot_free(&p);
    return 1;
}

int digits_and_others(jem_ctx *ctx, float (*x)[DIGIT_PIXELS]) {
    static const float letter[4][4] = {
        { 6, 5, 6, 22 }, { 6, 22, 14, 10 }, { 14, 10, 22, 22 }, { 22, 22, 22, 5 }
    };
    static const float shirt[6][4] = {
        { 14, 6, 14, 20 }, { 9, 20, 19, 20 }, { 11, 6, 11, 20 }, { 17, 6, 17, 20 },
        { 5, 17, 9, 21 }, { 23, 17, 19, 21 }
    };
    digits d;
    jem_rng rng = jem_rng_seed(1);
    if (!digits_load(DIGITS_PATH, &d)) return 0;
    const float *four = d.test_x + 14 * DIGIT_PIXELS;               /* number i is a digit i % 10 */
    for (int k = 0; k < DIGIT_PIXELS; k++) {
        x[0][k] = four[k];
        x[1][k] = four[DIGIT_PIXELS - 1 - k];
        x[2][k] = -four[k];
    }
    digits_free(&d);
    jem_fill_uniform(ctx, &rng, x[3], DIGIT_PIXELS, -1, 1);
    return digits_draw(letter, 4, 2.2f, x[4]) && digits_draw(shirt, 6, 5, x[5]);
}
