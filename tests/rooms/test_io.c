/* >>io, >>checkpoint: written values are read back bit for bit; damaged files give an error
   message. */
#ifndef _XOPEN_SOURCE
#define _XOPEN_SOURCE 700                          /* lstat, symlink */
#endif
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* The system's calls as jem.h calls them here: each can be made to fail, and to let something
   happen before. */
static struct {
    int calls;                                     /* so far */
    int fail_at, error;                            /* the n-th fails so; 0: none */
    const char *failed;                            /* its name */
    size_t most;                                   /* bytes of one write; 0: all */
    void (*before)(const char *call, const char *path);
    int comma;                                     /* %g as in a locale with , or with U+066B */
} world;

static int fails(const char *call, const char *path) {
    void (*before)(const char *, const char *) = world.before;
    world.before = NULL;                           /* it may write files itself */
    if (before) before(call, path);
    world.before = before;
    if (++world.calls != world.fail_at) return 0;
    world.failed = call;
    errno = world.error;
    return 1;
}
static int world_open(const char *path, int flags, ...) {
    va_list list;
    va_start(list, flags);
    const mode_t mode = flags & O_CREAT ? (mode_t)va_arg(list, int) : 0;
    va_end(list);
    return fails(flags & O_CREAT ? "open" : "open folder", path) ? -1 : open(path, flags, mode);
}
static ssize_t world_write(int fd, const void *bytes, size_t n) {
    if (fails("write", "")) return -1;
    return write(fd, bytes, world.most && n > world.most ? world.most : n);
}
static int world_fsync(int fd) { return fails("fsync", "") ? -1 : fsync(fd); }
static int world_close(int fd) {
    const int failed = fails("close", "");
    const int error = errno;
    const int closed = close(fd);
    errno = failed ? error : errno;
    return failed ? -1 : closed;
}
static int world_rename(const char *from, const char *to) {
    return fails("rename", from) ? -1 : rename(from, to);
}
static int world_snprintf(char *out, size_t size, const char *format, ...) {
    va_list list;
    va_start(list, format);
    const int n = vsnprintf(out, size, format, list);
    va_end(list);
    char *point = world.comma && strpbrk(format, "gf") ? strchr(out, '.') : NULL;
    if (!point) return n;
    *point = ',';
    if (world.comma == 1) return n;
    memmove(point + 2, point + 1, strlen(point + 1) + 1);
    memcpy(point, "\xd9\xab", 2);
    return n + 1;
}
#define open world_open
#define write world_write
#define fsync world_fsync
#define close world_close
#define rename world_rename
#define snprintf world_snprintf
#define JEM_IMPLEMENTATION
#include "jem.h"
#undef open
#undef write
#undef fsync
#undef close
#undef rename
#undef snprintf
#include "tests/support/test.h"
#include "tests/support/common.h"

/* ---- helpers --------------------------------------------------------------------------------- */

/* A file from a header and `size` bytes of data, which count 1, 2, 3... unless given. */
static unsigned char *spell(const char *header, const void *data, size_t size, size_t *total) {
    size_t n = strlen(header);
    unsigned char *file = (unsigned char *)malloc(8 + n + size);
    for (int i = 0; i < 8; i++) file[i] = (unsigned char)((uint64_t)n >> (8 * i) & 255);
    memcpy(file + 8, header, n);
    for (size_t i = 0; i < size; i++)
        file[8 + n + i] = data ? ((const unsigned char *)data)[i] : (unsigned char)(i + 1);
    *total = 8 + n + size;
    return file;
}

static jem_archive *parse_spelled(jem_ctx *ctx, const char *header, const void *data, size_t size) {
    size_t total;
    unsigned char *file = spell(header, data, size, &total);
    jem_archive *a = jem_archive_parse(ctx, file, total);
    free(file);
    return a;
}

/* Parses from a block of exactly n bytes, so that a sanitizer sees a step outside; touches all that
   came of it. 1: parsed, 0: an error with a message, -1: anything else. */
static int survive(jem_ctx *ctx, const unsigned char *bytes, size_t n) {
    unsigned char *block = (unsigned char *)malloc(n ? n : 1);
    if (n) memcpy(block, bytes, n);
    jem_archive *a = jem_archive_parse(ctx, block, n);
    free(block);
    int result = -1;
    if (a) {
        unsigned sum = 0;
        size_t total = 0;
        for (int i = 0; i < jem_archive_count(a); i++) {
            const jem_entry *e = jem_archive_at(a, i);
            for (size_t k = 0; k < e->bytes; k++) sum += ((const unsigned char *)e->data)[k];
            if (jem_archive_find(a, e->name) == e && e->ndim <= 8) total += e->bytes;
        }
        result = jem_ok(ctx) && total <= 4 * n && sum < 0x7fffffff ? 1 : -1;
    } else if (jem_error_status(ctx) == JEM_BAD_FILE && jem_error(ctx)[0]) result = 0;
    jem_archive_free(a);
    jem_clear_error(ctx);
    return result;
}

static int same_entry(const jem_entry *a, const jem_entry *b) {
    int same = a && b && !strcmp(a->name, b->name) && a->dtype == b->dtype && a->ndim == b->ndim &&
               a->bytes == b->bytes && (!a->bytes || !memcmp(a->data, b->data, a->bytes));
    for (int i = 0; same && i < a->ndim; i++) same = a->shape[i] == b->shape[i];
    return same;
}

static const char *const texts[][2] = {
    { "plain", "text" }, { "", "an empty key" }, { "empty", "" },
    { "quotes \" and \\ and /", "\"\\\"\\\\" }, { "lines\n", "a\nb\r\n\tc\x01\x1f\x7f" },
    { "Energiefl\xc3\xa4" "che",
      "\xe2\x88\x87 log p(x) \xf0\x9f\x99\x82 \xed\x9f\xbf\xee\x80\x80" },
    { "json", "{\"a\": [1, 2.5, null]}" }, { "jem_mark", "1" }
};
enum { TEXTS = sizeof texts / sizeof texts[0] };

/* Every dtype in every odd shape, names that need escapes, texts. data: 4096 bytes. */
static jem_archive *motley(jem_ctx *ctx, const unsigned char *data) {
    static const int64_t shapes[][8] = {
        { 0 }, { 1 }, { 3 }, { 5, 0, 2 }, { 2, 3 }, { 1, 1, 1, 1 }, { 7, 1, 3, 1, 1, 1, 1, 2 }
    };
    static const int ndims[] = { 0, 1, 1, 3, 2, 4, 8 };
    jem_archive *a = jem_archive_create(ctx);
    int failed = !a;
    for (int i = 0; !failed && i < 7; i++)
        for (int d = JEM_DTYPE_F32; d <= JEM_DTYPE_U8; d++) {
            char name[64];
            snprintf(name, sizeof name, "%s%d.%d", i == 3 ? "\"\n\xc3\xa4\\" : "f.layer", i, d);
            if (jem_archive_add(a, name, (jem_dtype)d, ndims[i], shapes[i], data + i)) failed = 1;
        }
    for (int i = 0; !failed && i < TEXTS; i++)
        if (jem_archive_set_meta(a, texts[i][0], texts[i][1])) failed = 1;
    if (!failed) return a;
    jem_archive_free(a);
    return NULL;
}

static void fill_bytes(unsigned char *data, size_t n, uint64_t seed) {
    jem_rng rng = jem_rng_seed(seed);
    for (size_t i = 0; i < n; i++) data[i] = (unsigned char)(jem_rng_u32(&rng) & 255);
}

static char folder[128], path[192];                /* folder/file */

static void place(const char *name) { snprintf(path, sizeof path, "%s/%s", folder, name); }

static int exists(const char *name) {
    struct stat s;
    return lstat(name, &s) == 0;
}

/* Files in the folder whose names end so: what jem_archive_write must not leave. */
static int leftovers(void) {
    int n = 0;
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
        const size_t length = strlen(e->d_name);
        n += length > 4 && !strcmp(e->d_name + length - 4, ".tmp");
    }
    CHECK(d != NULL, "%s", folder);
    if (d) closedir(d);
    return n;
}

/* The file's bytes; NULL if there is none. */
static unsigned char *slurp(const char *name, size_t *n) {
    FILE *f = fopen(name, "rb");
    *n = 0;
    if (!f) return NULL;
    unsigned char *bytes = (unsigned char *)malloc(1 << 20);
    *n = fread(bytes, 1, 1 << 20, f);
    fclose(f);
    return bytes;
}

static void spit(const char *name, const void *bytes, size_t n) {
    FILE *f = fopen(name, "wb");
    CHECK(f != NULL, "%s", name);
    if (!f) return;
    CHECK(fwrite(bytes, 1, n, f) == n, "%s", name);
    fclose(f);
}

/* ---- archives -------------------------------------------------------------------------------- */

static void check_motley(const jem_archive *a, const jem_archive *b, const char *how) {
    CHECK(jem_archive_count(b) == jem_archive_count(a), "%s: %d", how, jem_archive_count(b));
    for (int i = 0; i < jem_archive_count(a); i++) {
        const jem_entry *e = jem_archive_at(a, i);
        const jem_entry *f = jem_archive_at(b, i);
        CHECK(same_entry(e, f), "%s: entry %d, %s", how, i, e->name);
        CHECK(jem_archive_find(b, e->name) == f, "%s: find %s", how, e->name);
        CHECK(f && ((uintptr_t)f->data & 7) == 0, "%s: %s is not aligned", how, e->name);
    }
    for (int i = 0; i < TEXTS; i++) {
        const char *t = jem_archive_meta(b, texts[i][0]);
        CHECK(t && !strcmp(t, texts[i][1]), "%s: text %d", how, i);
    }
    CHECK(!jem_archive_meta(b, "nowhere") && !jem_archive_find(b, "nowhere"), "%s", how);
}

static void test_round_trip(void) {
    counter c;
    jem_ctx *ctx = open_ctx(&c);
    static unsigned char data[4096];
    fill_bytes(data, sizeof data, 3);
    jem_archive *a = motley(ctx, data);
    size_t n, m;
    char *bytes = (char *)jem_archive_to_memory(a, &n);
    CHECK(a && bytes && n > 8 && jem_ok(ctx), "%s", jem_error(ctx));
    if (!bytes) {
        jem_archive_free(a);
        close_ctx(ctx, &c, "round trip");
        return;
    }

    uint64_t header = 0;
    for (int i = 7; i >= 0; i--) header = header << 8 | (unsigned char)bytes[i];
    CHECK((8 + header) % 64 == 0 && bytes[8] == '{', "data begins at %.0f", 8 + (double)header);
    for (uint64_t i = 0; i < header; i++)
        CHECK((unsigned char)bytes[8 + i] >= 0x20, "control byte in the header at %.0f", (double)i);

    char *odd = (char *)malloc(n + 1);             /* parse from an odd address */
    memcpy(odd + 1, bytes, n);
    jem_archive *b = jem_archive_parse(ctx, odd + 1, n);
    memset(odd, 0xAA, n + 1);
    free(odd);                                     /* nothing of it may be needed any more */
    check_motley(a, b, "memory");
    char *again = (char *)jem_archive_to_memory(b, &m);
    CHECK(again && m == n && !memcmp(again, bytes, n), "packed again: %.0f bytes", (double)m);

    place("motley.safetensors");
    CHECK(jem_archive_write(a, path) == JEM_OK, "%s", jem_error(ctx));
    CHECK(!leftovers(), "a file is left");
    jem_archive *d = jem_archive_read(ctx, path);
    check_motley(a, d, "disk");
    unsigned char *file = slurp(path, &m);
    CHECK(file && m == n && !memcmp(file, bytes, n), "on disk: %.0f bytes", (double)m);
    free(file);

    jem_archive_free(a);
    jem_archive_free(b);
    jem_archive_free(d);
    jem_release(ctx, bytes);
    jem_release(ctx, again);
    close_ctx(ctx, &c, "round trip");
}

/* An archive of nothing, then one of many entries, so that the list grows. */
static void test_many_entries(void) {
    counter c;
    jem_ctx *ctx = open_ctx(&c);
    static unsigned char data[4096];
    fill_bytes(data, sizeof data, 3);
    size_t m;
    jem_archive *none = jem_archive_create(ctx);
    char *little = (char *)jem_archive_to_memory(none, &m);
    jem_archive *empty = jem_archive_parse(ctx, little, m);
    CHECK(m == 64 && empty && jem_archive_count(empty) == 0, "%.0f: %s", (double)m, jem_error(ctx));

    for (int i = 0; i < 1000; i++) {
        char name[32];
        snprintf(name, sizeof name, "n%d", (i * 617) % 1000);
        CHECK(jem_archive_add(none, name, JEM_DTYPE_U8, 0, NULL, data + i) == JEM_OK, "add %d", i);
    }
    const jem_entry *first = jem_archive_at(none, 0);
    jem_release(ctx, little);
    little = (char *)jem_archive_to_memory(none, &m);
    jem_archive_free(empty);
    empty = jem_archive_parse(ctx, little, m);
    CHECK(empty && jem_archive_count(empty) == 1000, "%s", jem_error(ctx));
    CHECK(first == jem_archive_find(none, "n0"), "entries stay where they are");
    for (int i = 0; i < 1000; i++)
        CHECK(same_entry(jem_archive_at(none, i), jem_archive_at(empty, i)), "many: %d", i);

    jem_archive_free(none);
    jem_archive_free(empty);
    jem_release(ctx, little);
    close_ctx(ctx, &c, "many entries");
}

static void test_by_hand(void) {
    counter c;
    jem_ctx *ctx = open_ctx(&c);
    static const unsigned char file[] =
        "\x54\0\0\0\0\0\0\0"
        "{\"__metadata__\":{\"k\":\"v\"},\"w\":{\"dtype\":\"F32\",\"shape\":[1,2],"
        "\"data_offsets\":[0,8]}}   "
        "\0\0\x80\x3f" "\0\0\x20\xc0";             /* 1, -2.5 */
    const size_t n = sizeof file - 1;
    CHECK(n == 8 + 84 + 8, "%.0f bytes", (double)n);
    jem_archive *a = jem_archive_parse(ctx, file, n);
    const jem_entry *e = jem_archive_find(a, "w");
    CHECK(e && e->dtype == JEM_DTYPE_F32 && e->ndim == 2 && e->bytes == 8, "%s", jem_error(ctx));
    CHECK(e && e->shape[0] == 1 && e->shape[1] == 2, "shape");
    CHECK(e && ((const float *)e->data)[0] == 1.0f && ((const float *)e->data)[1] == -2.5f, "data");
    CHECK(a && jem_archive_meta(a, "k") && !strcmp(jem_archive_meta(a, "k"), "v"), "metadata");
    jem_archive_free(a);

    /* And what we write, byte for byte. */
    a = jem_archive_create(ctx);
    const float x[2] = { 1.0f, -2.5f };
    const int64_t l = -2;
    const int64_t shape[2] = { 1, 2 };
    size_t m;
    jem_archive_add(a, "w", JEM_DTYPE_F32, 2, shape, x);
    jem_archive_add(a, "l", JEM_DTYPE_I64, 0, NULL, &l);  /* 8 bytes wide: before the floats */
    jem_archive_set_meta(a, "k", "v\n");
    char *bytes = (char *)jem_archive_to_memory(a, &m);
    static const char want[] =
        "{\"__metadata__\":{\"k\":\"v\\u000a\"},\"w\":{\"dtype\":\"F32\",\"shape\":[1,2],"
        "\"data_offsets\":[8,16]},\"l\":{\"dtype\":\"I64\",\"shape\":[],\"data_offsets\":[0,8]}}";
    const size_t w = sizeof want - 1;
    CHECK(m == 192 + 16 && bytes[0] == (char)184 && !memcmp(bytes + 8, want, w), "%.300s",
          bytes + 8);
    for (size_t i = 8 + w; bytes && i < 192; i++) CHECK(bytes[i] == ' ', "padding at %d", (int)i);
    CHECK(!memcmp(bytes + 192, "\xfe\xff\xff\xff\xff\xff\xff\xff\0\0\x80\x3f\0\0\x20\xc0", 16),
          "data");
    jem_release(ctx, bytes);
    jem_archive_free(a);
    close_ctx(ctx, &c, "by hand");
}

#define ENTRY(name, dtype, shape, at) \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" at "}"

/* Dtypes that we do not have are converted, at addresses that suit no one. */
static void test_foreign(void) {
    counter c;
    jem_ctx *ctx = open_ctx(&c);
    static unsigned char words[1 + 131072];        /* every one of 16 bits */
    for (int i = 0; i < 65536; i++) {
        words[2 * i + 1] = (unsigned char)(i & 255);
        words[2 * i + 2] = (unsigned char)(i >> 8);
    }
    for (int bf = 0; bf < 2; bf++) {
        char header[256];
        snprintf(header, sizeof header,
                 "{\"x\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                 "\"h\":{\"dtype\":\"%sF16\",\"shape\":[65536],\"data_offsets\":[1,131073]}}",
                 bf ? "B" : "");
        jem_archive *a = parse_spelled(ctx, header, words, sizeof words);
        const jem_entry *e = jem_archive_find(a, "h");
        CHECK(e && e->dtype == JEM_DTYPE_F32 && e->bytes == 4 * 65536, "%s", jem_error(ctx));
        for (int i = 0; e && i < 65536; i++) {
            const float got = ((const float *)e->data)[i];
            const int bits = bf ? 7 : 10;
            const int top = bf ? 255 : 31;
            const int bias = bf ? 127 : 15;
            const int exponent = i >> bits & top;
            const int fraction = i & ((1 << bits) - 1);
            const int implied = exponent ? 1 << bits : 0;
            double want = ldexp(implied + fraction, (exponent ? exponent : 1) - bias - bits);
            if (exponent == top) want = HUGE_VAL;
            if (i & 0x8000) want = -want;
            if (exponent == top && fraction)
                CHECK(isnan(got), "%04x: %g", (unsigned)i, (double)got);
            else
                CHECK((double)got == want && !signbit(got) == !(i & 0x8000),
                      "%04x: %g, not %g", (unsigned)i, (double)got, want);
        }
        jem_archive_free(a);
    }
    close_ctx(ctx, &c, "foreign");
}

/* Doubles become floats, flags bytes. */
static void test_foreign_wide(void) {
    counter c;
    jem_ctx *ctx = open_ctx(&c);
    const double doubles[5] = { 1.0 / 3.0, -0.0, 1e-40, 16777217.0, -3.5 };
    unsigned char in_file[sizeof doubles];
    for (int i = 0; i < 5; i++) {
        uint64_t bits;
        memcpy(&bits, doubles + i, sizeof bits);
        for (int k = 0; k < 8; k++) in_file[8 * i + k] = (unsigned char)(bits >> 8 * k & 255);
    }
    jem_archive *a = parse_spelled(ctx, "{" ENTRY("d", "F64", "[5]", "[0,40]") "}", in_file,
                                   sizeof in_file);
    const jem_entry *e = jem_archive_find(a, "d");
    CHECK(e && e->dtype == JEM_DTYPE_F32 && e->bytes == 20, "%s", jem_error(ctx));
    for (int i = 0; e && i < 5; i++) {
        const float want = (float)doubles[i];
        CHECK(!memcmp((const float *)e->data + i, &want, 4), "double %d", i);
    }
    jem_archive_free(a);
    a = parse_spelled(ctx, "{" ENTRY("b", "BOOL", "[3]", "[0,3]") "}", "\1\0\1", 3);
    e = jem_archive_find(a, "b");
    CHECK(e && e->dtype == JEM_DTYPE_U8 && !memcmp(e->data, "\1\0\1", 3), "%s", jem_error(ctx));
    jem_archive_free(a);
    close_ctx(ctx, &c, "doubles");
}

typedef struct noted { counter c; char note[256]; } noted;      /* a counter, as its first field */
static void keep_note(void *user, const char *message) {
    noted *n = (noted *)user;
    snprintf(n->note, sizeof n->note, "%s", message);
}

/* Tensors of dtypes that cannot be read do not keep those beside them from being read. */
static void test_skipped(void) {
    jem_ctx_desc desc;
    noted n;
    memset(&desc, 0, sizeof desc);
    memset(&n, 0, sizeof n);
    desc.threads = 1;
    desc.user = &n;
    desc.log = keep_note;
    desc.allocate = count_allocate;
    desc.release = count_release;
    jem_ctx *ctx = jem_ctx_create(&desc);
    jem_archive *a = parse_spelled(ctx, "{" ENTRY("q", "I8", "[3]", "[0,3]") ","
                                   ENTRY("weight", "F8_\x1b[1m", "[2]", "[4,6]") ","
                                   ENTRY("b", "U8", "[]", "[3,4]") "}", "\1\2\3\4\5\6", 6);
    CHECK(!a && says(ctx, "control byte"), "no byte that commands a terminal");
    jem_clear_error(ctx);
    a = parse_spelled(ctx, "{" ENTRY("q", "I8", "[3]", "[0,3]") ","
                      ENTRY("linear.weight", "F8_E4M3", "[2,2]", "[4,8]") ","
                      ENTRY("b", "U8", "[]", "[3,4]") "}", "\1\2\3\4\5\6\7\10", 8);
    const jem_entry *e = jem_archive_find(a, "b");
    CHECK(a && jem_ok(ctx) && jem_archive_count(a) == 1, "%s", jem_error(ctx));
    CHECK(e && e->bytes == 1 && *(const char *)e->data == 4 && jem_archive_at(a, 0) == e, "b");
    CHECK(!jem_archive_find(a, "q") && !jem_archive_at(a, 1), "only what can be read");
    CHECK(!strcmp(n.note, "archive: skipped 2 of 3 tensors, such as \"q\", whose dtype cannot be "
                          "read"), "%s", n.note);
    const int shape[2] = { 2, 2 };
    jem_net *net = jem_net_create(ctx, NULL, NULL, 0, 1, 1, 1, 1, 1);
    CHECK(jem_net_param(net, "linear.weight", 2, shape, 1), "%s", jem_error(ctx));
    CHECK(jem_net_load(net, a) == JEM_BAD_FILE && says(ctx, "\"linear.weight\", which the network "
          "needs, has a dtype that cannot be read (F32,"), "what is needed is not skipped");
    jem_net_free(net);
    jem_archive_free(a);
    close_ctx(ctx, &n.c, "skipped");
}

#define ONE(dtype, shape, at) "{" ENTRY("w", dtype, shape, at) "}"
#define TWO(a, b) "{" a "," b "}"

static const struct { const char *header; size_t data; } good_headers[] = {
    { "{}", 0 }, { "{ } \n ", 0 }, { "{\"__metadata__\":{}}", 0 },
    { " \t\r\n{ \"w\" :\n{ \"shape\" : [ 2 , 1 ] , \"dtype\" : \"U8\" , "
      "\"data_offsets\" : [ 0 , 2 ] } } ", 2 },
    { TWO(ENTRY("b", "U8", "[2]", "[1,3]"), ENTRY("a", "U8", "[]", "[0,1]")), 3 },
    { TWO(ENTRY("", "I64", "[0]", "[0,0]"), ENTRY("a", "U8", "[1]", "[0,1]")), 1 },
    { TWO(ENTRY("a", "U8", "[1]", "[0,1]"), ENTRY("z", "F32", "[0]", "[1,1]")), 1 },
    { TWO(ENTRY("a", "U8", "[1]", "[0,1]"), ENTRY("z", "F32", "[0]", "[0,0]")), 1 },
    { "{" ENTRY("a", "U8", "[0,9223372036854775807]", "[0,0]") "}", 0 },
    { "{" ENTRY("a", "U8", "[9223372036854775807,0]", "[0,0]") "}", 0 }
};

static const struct { const char *header; size_t data; const char *says; } bad_headers[] = {
    { "", 0, "expected {" }, { "   ", 0, "expected {" }, { "[]", 0, "expected {" },
    { "{", 0, "expected \"" }, { "{}}", 0, "text after" }, { "{} x", 0, "text after" },
    { "{,}", 0, "expected \"" }, { "{\"a\"}", 0, "expected :" },
    { "{\"a\":1}", 0, "expected {" },
    { "{\"a\":{}}", 0, "are needed" }, { "{\"a", 0, "unterminated string" },
    { "{\"a\\", 0, "bad escape" },
    { "{\"a\\u12", 0, "bad escape" }, { "{\"\\u0000\":{}}", 0, "bad escape" },
    { "{\"\\x41\":{}}", 0, "bad escape" }, { "{\"\\ud800\":{}}", 0, "bad escape" },
    { "{\"\\udc00\\ud800\":{}}", 0, "bad escape" },
    { "{\"\\ud800\\u0041\":{}}", 0, "bad escape" },
    { "{\"\\udc00\":{}}", 0, "bad escape" }, { "{\"\\udc00\\udc00\":{}}", 0, "bad escape" },
    { "{\"\\ud800\\ue000\":{}}", 0, "bad escape" },
    { "{\"\\u00g0\":{}}", 0, "bad escape" }, { "{\"\\u+123\":{}}", 0, "bad escape" },
    { "{\"a\nb\":{}}", 0, "control byte" }, { "{\"\xc3\":{}}", 0, "UTF-8" },
    { "{\"\xc0\x80\":{}}", 0, "UTF-8" }, { "{\"\xed\xa0\x80\":{}}", 0, "UTF-8" },
    { "{\"\xe0\x80\x80\":{}}", 0, "UTF-8" }, { "{\"\xf5\x80\x80\x80\":{}}", 0, "UTF-8" },
    { "{\"\xf4\x90\x80\x80\":{}}", 0, "UTF-8" }, { "{}\xf0\x9f\x99", 0, "UTF-8" },
    { "{\"__metadata__\":1}", 0, "expected {" },
    { "{\"__metadata__\":{\"a\":1}}", 0, "expected \"" },
    { "{\"__metadata__\":{\"a\":\"\",\"a\":\"\"}}", 0, "repeated key" },
    { "{\"__metadata__\":{\"a\":\"\"", 0, "expected }" },
    { "{\"__metadata__\":{\"a\":\"\",}}", 0, "expected \"" },
    { "{\"__metadata__\":{},\"__metadata__\":{}}", 0, "repeated key __metadata__" },
    { ONE("I8", "[1]", "[1,0]"), 1, "data_offsets do not agree" },
    { ONE("I8", "[1]", "[0,2]"), 1, "beyond the end of the file" },
    { ONE("I8", "[1]", "[0,1]"), 2, "2 bytes of data, the header describes 1" },
    { ONE("I8", "[4611686018427387904]", "[0,1]"), 1, "the shape is too large" },
    { ONE("", "[1]", "[0,1]"), 1, "dtype" },
    { ONE("U8", "[1,1,1,1,1,1,1,1,1]", "[0,1]"), 1, "too many numbers" },
    { ONE("U8", "[1]", "[0,1,1]"), 1, "too many numbers" },
    { ONE("U8", "[1]", "[1]"), 1, "two data_offsets" },
    { ONE("U8", "[1]", "[]"), 1, "two data_offsets" },
    { "{\"w\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "dtype, shape and two" },
    { "{\"w\":{\"dtype\":\"U8\",\"data_offsets\":[0,1]}}", 1, "dtype, shape and two" },
    { "{\"w\":{\"dtype\":\"U8\",\"shape\":[1]}}", 1, "dtype, shape and two" },
    { ONE("U8", "[-1]", "[0,1]"), 1, "whole number" },
    { ONE("U8", "[1.0]", "[0,1]"), 1, "expected ]" },
    { ONE("U8", "[1e0]", "[0,1]"), 1, "expected ]" },
    { ONE("U8", "[01]", "[0,1]"), 1, "whole number" },
    { ONE("U8", "[1,]", "[0,1]"), 1, "whole number" },
    { ONE("U8", "[1 1]", "[0,1]"), 1, "expected ]" },
    { ONE("U8", "[[1]]", "[0,1]"), 1, "whole number" },
    { ONE("U8", "[9223372036854775808]", "[0,1]"), 1, "number too large" },
    { ONE("U8", "[99999999999999999999999999]", "[0,1]"), 1, "number too large" },
    { ONE("U8", "[4294967296,4294967296]", "[0,0]"), 0, "shape is too large" },
    { ONE("F32", "[4611686018427387904]", "[0,0]"), 0, "shape is too large" },
    { ONE("F32", "[3037000500,3037000500,2]", "[0,0]"), 0, "shape is too large" },
    { ONE("U8", "[1]", "[0,2]"), 2, "do not agree" },
    { ONE("U8", "[1]", "[1,0]"), 1, "do not agree" },
    { ONE("F32", "[]", "[0,1]"), 1, "do not agree" },
    { ONE("U8", "[2]", "[0,2]"), 1, "beyond the end of the file" },
    { ONE("U8", "[1000000000000]", "[0,1000000000000]"), 1, "beyond the end of the file" },
    { ONE("U8", "[1]", "[9223372036854775806,9223372036854775807]"), 1,
      "beyond the end of the file" },
    { ONE("U8", "[1]", "[0,1]"), 2, "2 bytes of data, the header describes 1" },
    { "{}", 1, "1 bytes of data, the header describes 0" },
    { ONE("U8", "[1]", "[1,2]"), 2, "\"w\" begins at byte 1 of the data" },
    { TWO(ENTRY("a", "U8", "[2]", "[0,2]"), ENTRY("b", "U8", "[2]", "[1,3]")), 3, "begins" },
    { TWO(ENTRY("a", "U8", "[2]", "[0,2]"), ENTRY("b", "U8", "[2]", "[0,2]")), 2, "begins" },
    { TWO(ENTRY("a", "U8", "[2]", "[0,2]"), ENTRY("b", "U8", "[0]", "[1,1]")), 2, "begins" },
    { TWO(ENTRY("a", "U8", "[1]", "[0,1]"), ENTRY("b", "U8", "[1]", "[2,3]")), 3, "begins" },
    { TWO(ENTRY("a", "U8", "[1]", "[0,1]"), ENTRY("a", "U8", "[1]", "[1,2]")), 2,
      "two tensors are named \"a\"" },
    { TWO(ENTRY("a", "U8", "[1]", "[0,1]"), ENTRY("\\u0061", "U8", "[1]", "[1,2]")), 2,
      "two tensors" },
    { "{" ENTRY("a", "U8", "[0]", "[0,0]") "," ENTRY("b", "U8", "[0]", "[0,0]") ","
      ENTRY("a", "U8", "[0]", "[0,0]") "}", 0, "two tensors are named \"a\"" },
    { "{\"w\":{\"dtype\":\"U8\",\"dtype\":\"U8\"}}", 0, "repeated key dtype" },
    { "{\"w\":{\"shape\":[],\"shape\":[]}}", 0, "repeated key shape" },
    { "{\"w\":{\"dtype\":\"U8\",\"shape\":[],\"strides\":[]}}", 0,
      "\"w\": unknown or repeated key strides" },
    { "{\"w\":{\"dtype\":\"U8\",\"shape\":[]}}", 0, "are needed" }
};

static void test_headers(void) {
    counter c;
    jem_ctx *ctx = open_ctx(&c);
    for (size_t i = 0; i < sizeof good_headers / sizeof good_headers[0]; i++) {
        jem_archive *a = parse_spelled(ctx, good_headers[i].header, NULL, good_headers[i].data);
        CHECK(a != NULL, "%s: %s", good_headers[i].header, jem_error(ctx));
        jem_archive_free(a);
        jem_clear_error(ctx);
    }
    for (size_t i = 0; i < sizeof bad_headers / sizeof bad_headers[0]; i++) {
        jem_archive *a = parse_spelled(ctx, bad_headers[i].header, NULL, bad_headers[i].data);
        CHECK(!a && jem_error_status(ctx) == JEM_BAD_FILE, "%s", bad_headers[i].header);
        CHECK(says(ctx, bad_headers[i].says), "%s", bad_headers[i].header);
        jem_archive_free(a);
    }
    close_ctx(ctx, &c, "headers");
}

static void test_header_text(void) {
    counter c;
    jem_ctx *ctx = open_ctx(&c);
    jem_archive *a = parse_spelled(ctx, "{\"__metadata__\":{\"\\\"\\\\\\/\\b\\f\\n\\r\\t\":"
                                   "\"\\u0041\\u00e4\\u00DF\\u2207\\ud83d\\ude42\\uFFFF\"}}",
                                   NULL, 0);
    const char *t = jem_archive_meta(a, "\"\\/\b\f\n\r\t");
    CHECK(t && !strcmp(t, "A\xc3\xa4\xc3\x9f\xe2\x88\x87\xf0\x9f\x99\x82\xef\xbf\xbf"), "escapes");
    jem_archive_free(a);
    a = parse_spelled(ctx, TWO(ENTRY("b", "U8", "[2]", "[1,3]"), ENTRY("a", "U8", "[]", "[0,1]")),
                      NULL, 3);
    const jem_entry *e = jem_archive_at(a, 0);     /* the header's order, not the data's */
    CHECK(e && !strcmp(e->name, "b") && !memcmp(e->data, "\2\3", 2), "order");
    jem_archive_free(a);
    close_ctx(ctx, &c, "texts of headers");
}

/* A length with one wrong bit is refused, and so is one of -1. */
static void test_header_lengths(void) {
    counter c;
    jem_ctx *ctx = open_ctx(&c);
    size_t n;
    unsigned char *file = spell("{}", NULL, 0, &n);
    for (int i = 0; i < 8; i++)
        for (int bit = 0; bit < 8; bit++) {
            file[i] = (unsigned char)(file[i] ^ 1 << bit);
            CHECK(survive(ctx, file, n) == 0, "length, byte %d, bit %d", i, bit);
            file[i] = (unsigned char)(file[i] ^ 1 << bit);
        }
    memset(file, 0xFF, 8);
    CHECK(survive(ctx, file, n) == 0, "length -1");
    free(file);
    close_ctx(ctx, &c, "lengths");
}

/* Texts without number must not take time without end; tensors without number may come. */
static void test_many_texts(void) {
    counter c;
    jem_ctx *ctx = open_ctx(&c);
    char *many = (char *)malloc(4000000);
    char *at = many;
    at += sprintf(at, "{\"__metadata__\":{\"\":\"\"");
    for (int i = 0; i < 5000; i++) at += sprintf(at, ",\"%d\":\"\"", i);
    sprintf(at, "}}");
    jem_archive *a = parse_spelled(ctx, many, NULL, 0);
    CHECK(!a && says(ctx, "more than 4096"), "texts");
    jem_archive_free(a);
    at = many + sprintf(many, "{");
    for (int i = 0; i < 50000; i++)
        at += sprintf(at, "%s\"%d\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[%d,%d]}",
                      i ? "," : "", i, 49999 - i, 50000 - i);
    sprintf(at, "}");
    a = parse_spelled(ctx, many, NULL, 50000);
    CHECK(jem_archive_count(a) == 50000, "%s", jem_error(ctx));
    jem_archive_free(a);
    free(many);
    close_ctx(ctx, &c, "many texts");
}

/* Changes, leaves out, puts in or repeats up to four pieces of m bytes. Returns how many are left,
   less than `most`. */
static size_t damage(unsigned char *damaged, size_t m, size_t most, jem_rng *rng) {
    static const char pool[] = "{}[]:,\"\\u0123456789FUIB dtypeshape__metadata__\n\xc3\xa4";
    const int pools = sizeof pool - 1;
    for (int k = jem_rng_below(rng, 4) + 1; k > 0; k--) {
        const size_t at = (size_t)jem_rng_below(rng, (int)m);
        const size_t length = (size_t)jem_rng_below(rng, 6);
        const unsigned char byte = (unsigned char)pool[jem_rng_below(rng, pools)];
        const int what = jem_rng_below(rng, 4);
        if (what == 0) {
            damaged[at] = byte;
        } else if (what == 1 && m - at > length) {
            memmove(damaged + at, damaged + at + length, m - at - length);
            m -= length;
        } else if (what == 2 && m + 1 < most) {
            memmove(damaged + at + 1, damaged + at, m - at);
            damaged[at] = byte;
            m++;
        } else if (what == 3 && m - at > length && m + length < most) {
            memmove(damaged + at + length, damaged + at, m - at);
            m += length;
        }
    }
    return m;
}

/* A small file, damaged in every way that fits into a loop. */
static void test_damage(void) {
    counter c;
    jem_ctx *ctx = open_ctx(&c);
    size_t n;
    unsigned char *file = spell("{\"__metadata__\":{\"k\":\"v\\u00e4\\n\"},"
                                ENTRY("ab", "F32", "[2,1]", "[0,8]") ","
                                ENTRY("c", "F16", "[3]", "[8,14]") ","
                                ENTRY("d", "I64", "[]", "[14,22]") "}  ", NULL, 22, &n);
    int counts[3] = { 0, 0, 0 };                   /* bad, refused, accepted */
    CHECK(survive(ctx, file, n) == 1, "the file itself");
    for (size_t i = 0; i < n; i++)
        CHECK(survive(ctx, file, i) == 0, "cut to %d of %d bytes", (int)i, (int)n);
    for (size_t i = 0; i < n - 22; i++) {
        const unsigned char was = file[i];
        for (int value = 0; value < 256; value++) {
            file[i] = (unsigned char)value;
            counts[survive(ctx, file, n) + 1]++;
        }
        file[i] = was;
    }
    unsigned char *damaged = (unsigned char *)malloc(2 * n);
    jem_rng rng = jem_rng_seed(11);
    for (int trial = 0; trial < 40000; trial++) {
        memcpy(damaged, file, n);
        const size_t m = damage(damaged, n, 2 * n, &rng);
        if (m > 8 + 22 && trial % 8) {             /* mostly with a length that fits again */
            memset(damaged, 0, 8);
            damaged[0] = (unsigned char)((m - 30) & 255);
            damaged[1] = (unsigned char)((m - 30) >> 8);
        }
        counts[survive(ctx, damaged, m) + 1]++;
    }
    CHECK(counts[0] == 0, "%d of the damaged files gave neither archive nor message", counts[0]);
    CHECK(counts[1] > 40000 && counts[2] > 100, "%d refused, %d accepted", counts[1], counts[2]);
    free(damaged);
    free(file);
    close_ctx(ctx, &c, "damage");
}

/* A number and its bf16 in a file, as it is read again. */
static const struct { uint32_t is, becomes; } rounded[] = {
    { 0x3f800000, 0x3f800000 }, { 0x80000000, 0x80000000 }, { 0x3f808000, 0x3f800000 },
    { 0x3f818000, 0x3f820000 }, { 0x3f808001, 0x3f810000 }, { 0xbf807fff, 0xbf800000 },
    { 0x7f7fffff, 0x7f7f0000 }, { 0xff7fffff, 0xff7f0000 }, { 0x7f7f7fff, 0x7f7f0000 },
    { 0x7f800000, 0x7f800000 }, { 0xff800000, 0xff800000 }, { 0x00000001, 0x00000000 },
    { 0x00018000, 0x00020000 }, { 0x7f800001, 0x7fc00000 }
};
enum { ROUNDED = sizeof rounded / sizeof *rounded };

static void check_rounded(const jem_entry *e) {
    const int full = e && e->dtype == JEM_DTYPE_F32 && e->bytes == 4 * ROUNDED;
    if (!CHECK(full, "four bytes a number")) return;
    for (int i = 0; i < ROUNDED; i++) {
        uint32_t got;
        memcpy(&got, (const char *)e->data + 4 * i, 4);
        CHECK(got == rounded[i].becomes, "0x%08x: 0x%08x", (unsigned)rounded[i].is, (unsigned)got);
    }
}

/* Floats take two bytes each, rounded to nearest; other numbers stay; what is written twice does
   not change any more. */
static void test_rounded(void) {
    counter c;
    jem_ctx *ctx = open_ctx(&c);
    const int64_t shape[1] = { ROUNDED };
    const int64_t one[1] = { 1 };
    const int64_t whole = 1234567890123;
    const unsigned char byte = 200;
    size_t full, n, m;
    uint32_t bits[ROUNDED];
    float x[ROUNDED];
    for (int i = 0; i < ROUNDED; i++) bits[i] = rounded[i].is;
    memcpy(x, bits, sizeof x);
    jem_archive *a = jem_archive_create(ctx);
    jem_archive_add(a, "byte", JEM_DTYPE_U8, 1, one, &byte);
    jem_archive_add(a, "x", JEM_DTYPE_F32, 1, shape, x);
    jem_archive_add(a, "whole", JEM_DTYPE_I64, 1, one, &whole);
    jem_release(ctx, jem_archive_to_memory(a, &full));
    CHECK(jem_archive_set_bf16(NULL, 1) == JEM_BAD_ARGUMENT, "no archive");
    CHECK(jem_archive_set_bf16(a, 1) == JEM_OK, "%s", jem_error(ctx));
    char *bytes = (char *)jem_archive_to_memory(a, &n);
    jem_archive *b = jem_archive_parse(ctx, bytes, n);
    CHECK(bytes && n + 2 * ROUNDED <= full + 64 && n < full, "%d of %d bytes", (int)n, (int)full);
    check_rounded(jem_archive_find(b, "x"));
    const jem_entry *e = jem_archive_find(b, "whole");
    CHECK(e && e->dtype == JEM_DTYPE_I64 && !memcmp(e->data, &whole, 8), "whole numbers stay");
    e = jem_archive_find(b, "byte");
    CHECK(e && e->dtype == JEM_DTYPE_U8 && !memcmp(e->data, &byte, 1), "bytes stay");
    jem_archive_set_bf16(b, 1);
    char *again = (char *)jem_archive_to_memory(b, &m);
    CHECK(again && m == n && !memcmp(again, bytes, n), "rounded again: the same bytes");
    jem_archive_set_bf16(a, 0);
    jem_release(ctx, jem_archive_to_memory(a, &m));
    CHECK(m == full, "in full again");
    CHECK(jem_archive_keep_f32(NULL, "x") == JEM_BAD_ARGUMENT, "no archive");
    CHECK(jem_archive_keep_f32(a, NULL) == JEM_BAD_ARGUMENT && says(ctx, "no array \"\""),
          "no name");
    CHECK(jem_archive_keep_f32(a, "y") == JEM_BAD_ARGUMENT && says(ctx, "no array \"y\""), "y");
    jem_release(ctx, bytes);
    jem_release(ctx, again);
    jem_archive_free(a);
    jem_archive_free(b);
    close_ctx(ctx, &c, "rounded");
}

/* One array can be an exception: it remains in full, whichever call comes first. */
static void check_kept_array(int exception_first) {
    counter c;
    jem_ctx *ctx = open_ctx(&c);
    const int64_t shape[1] = { ROUNDED };
    float x[ROUNDED];
    size_t n = 0;
    for (int i = 0; i < ROUNDED; i++) memcpy(&x[i], &rounded[i].is, 4);
    jem_archive *a = jem_archive_create(ctx);
    jem_archive_add(a, "x", JEM_DTYPE_F32, 1, shape, x);
    jem_archive_add(a, "z", JEM_DTYPE_F32, 1, shape, x);
    if (!exception_first) jem_archive_set_bf16(a, 1);
    CHECK(jem_archive_keep_f32(a, "z") == JEM_OK, "%s", jem_error(ctx));
    if (exception_first) jem_archive_set_bf16(a, 1);
    char *bytes = (char *)jem_archive_to_memory(a, &n);
    jem_archive *b = jem_archive_parse(ctx, bytes, n);
    check_rounded(jem_archive_find(b, "x"));
    const jem_entry *z = jem_archive_find(b, "z");
    CHECK(z && z->bytes == sizeof x && !memcmp(z->data, x, sizeof x), "z in full");
    jem_release(ctx, bytes);
    jem_archive_free(a);
    jem_archive_free(b);
    close_ctx(ctx, &c, "kept");
}
static void test_kept(void) {
    check_kept_array(0);
    check_kept_array(1);
}

static void test_arguments(void) {
    counter c;
    jem_ctx *ctx = open_ctx(&c);
    size_t n = 7;
    const float x = 1;
    jem_archive *a = jem_archive_create(ctx);
    CHECK(!jem_archive_create(NULL) && !jem_archive_parse(NULL, "", 0), "no context");
    CHECK(!jem_archive_read(NULL, "x") && !jem_load(NULL, "x"), "no context");
    CHECK(!jem_archive_parse(ctx, NULL, 9) && says(ctx, "bytes is NULL"), "no bytes");
    CHECK(!jem_archive_read(ctx, NULL) && says(ctx, "path is NULL"), "no path");
    CHECK(jem_archive_write(a, NULL) == JEM_BAD_ARGUMENT && says(ctx, "path is NULL"), "no path");
    CHECK(jem_archive_write(NULL, "x") == JEM_BAD_ARGUMENT, "no archive");
    CHECK(jem_archive_add(NULL, "x", JEM_DTYPE_F32, 0, NULL, &x) == JEM_BAD_ARGUMENT, "no archive");
    CHECK(jem_archive_set_meta(NULL, "x", "y") == JEM_BAD_ARGUMENT, "no archive");
    CHECK(jem_archive_count(NULL) == 0 && !jem_archive_at(NULL, 0), "no archive");
    CHECK(!jem_archive_find(NULL, "x") && !jem_archive_meta(NULL, "x"), "no archive");
    CHECK(!jem_archive_find(a, NULL) && !jem_archive_meta(a, NULL), "no name");
    CHECK(!jem_archive_at(a, -1) && !jem_archive_at(a, 0), "no entry");
    CHECK(!jem_archive_to_memory(NULL, &n) && n == 0, "no archive");
    CHECK(jem_save(NULL, "x") == JEM_BAD_ARGUMENT, "no net");
    CHECK(jem_ok(ctx), "%s", jem_error(ctx));
    jem_archive_free(NULL);
    jem_release(ctx, NULL);
    CHECK(jem_net_to_archive(NULL, a) && says(ctx, "to_archive: the network is NULL"), "no net");
    CHECK(jem_net_load(NULL, a) && says(ctx, "net_load: the network is NULL"), "no net");
    CHECK(!jem_net_from_archive(NULL, a) && says(ctx, "net_from_archive: the context is NULL"),
          "no context");
    CHECK(!jem_net_from_archive(ctx, NULL) && says(ctx, "the archive is NULL"), "no archive");
    jem_archive_free(a);
    close_ctx(ctx, &c, "arguments");
}

static void test_refused_entries(void) {
    counter c;
    jem_ctx *ctx = open_ctx(&c);
    const float x = 1;
    int64_t shape[9] = { 1, 1, 1, 1, 1, 1, 1, 1, 1 };
    int64_t huge[2] = { INT64_MAX, 2 };
    int64_t less[1] = { -1 };
    jem_archive *a = jem_archive_create(ctx);
    static const struct { const char *name, *says; } wrong[] = {
        { NULL, "is NULL" }, { "\xff", "UTF-8" }, { "__metadata__", "reserved" },
        { "twice", "already" }
    };
    CHECK(jem_archive_add(a, "twice", JEM_DTYPE_F32, 8, shape, &x) == JEM_OK, "%s", jem_error(ctx));
    for (int i = 0; i < 4; i++) {
        CHECK(jem_archive_add(a, wrong[i].name, JEM_DTYPE_F32, 1, shape, &x) == JEM_BAD_ARGUMENT,
              "%d", i);
        CHECK(says(ctx, wrong[i].says), "name %d", i);
    }
#ifndef __cplusplus                                /* where such a value cannot even be made */
    CHECK(jem_archive_add(a, "w", (jem_dtype)4, 1, shape, &x), "dtype 4");
    CHECK(says(ctx, "\"w\": unknown dtype"), "dtype 4");
#endif
    CHECK(jem_archive_add(a, "w", JEM_DTYPE_F32, 9, shape, &x) && says(ctx, "0 to 8"), "ndim 9");
    CHECK(jem_archive_add(a, "w", JEM_DTYPE_F32, -1, shape, &x) && says(ctx, "0 to 8"), "ndim -1");
    CHECK(jem_archive_add(a, "w", JEM_DTYPE_F32, 1, NULL, &x) && says(ctx, "shape is NULL"),
          "no shape");
    CHECK(jem_archive_add(a, "w", JEM_DTYPE_F32, 1, less, &x) && says(ctx, "negative"), "-1");
    CHECK(jem_archive_add(a, "w", JEM_DTYPE_F32, 2, huge, &x) && says(ctx, "too large"),
          "overflow");
    CHECK(jem_archive_add(a, "w", JEM_DTYPE_F32, 1, shape, NULL) && says(ctx, "data is NULL"),
          "no data");
    CHECK(jem_archive_set_meta(a, NULL, "v") == JEM_BAD_ARGUMENT && says(ctx, "key is NULL"),
          "no key");
    CHECK(jem_archive_set_meta(a, "k", "\x80") && says(ctx, "\"k\""), "value");
    CHECK(jem_archive_count(a) == 1, "what is refused is not added");
    CHECK(!jem_archive_set_meta(a, "k", "1") && !jem_archive_set_meta(a, "k", "2"), "again");
    CHECK(!strcmp(jem_archive_meta(a, "k"), "2"), "%s", jem_archive_meta(a, "k"));
    jem_archive_free(a);
    close_ctx(ctx, &c, "refused entries");
}

/* An earlier error does not prevent file operations, and each call still returns its status. */
static void test_after_an_error(void) {
    counter c;
    jem_ctx *ctx = open_ctx(&c);
    size_t n = 7;
    const float x = 1;
    const int64_t shape[1] = { 1 };
    jem_archive *a = jem_archive_create(ctx);
    CHECK(jem_archive_add(a, "first", JEM_DTYPE_F32, 1, shape, &x) == JEM_OK, "%s", jem_error(ctx));
    jem_fail(ctx, JEM_DIVERGED, "of before");
    CHECK(jem_archive_set_meta(a, "k", "3") == JEM_OK, "after an error");
    CHECK(jem_archive_add(a, "w", JEM_DTYPE_F32, 1, shape, &x) == JEM_OK, "after an error");
    CHECK(jem_archive_add(a, "w", JEM_DTYPE_F32, 1, shape, &x) == JEM_BAD_ARGUMENT,
          "after an error");
    void *bytes = jem_archive_to_memory(a, &n);
    jem_archive *b = jem_archive_parse(ctx, bytes, n);
    CHECK(jem_archive_count(b) == 2 && !jem_archive_parse(ctx, bytes, n - 1), "after an error");
    CHECK(says(ctx, "of before"), "the first error remains");
    jem_release(ctx, bytes);
    jem_archive_free(a);
    jem_archive_free(b);
    close_ctx(ctx, &c, "after an error");
}

/* A length that no memory has. */
static void test_huge_archive(void) {
    counter c;
    jem_ctx *ctx = open_ctx(&c);
    size_t n = 7;
    const float x = 1;
    jem_archive *a = jem_archive_create(ctx);
    int64_t most[1] = { PTRDIFF_MAX / 16 };
    for (int i = 0; i < 3; i++) {
        char name[2] = { (char)('a' + i), 0 };
        CHECK(jem_archive_add(a, name, JEM_DTYPE_I64, 1, most, &x) == JEM_OK, "%s", jem_error(ctx));
    }
    CHECK(!jem_archive_to_memory(a, &n) && jem_error_status(ctx) == JEM_NO_MEMORY, "huge");
    jem_archive_free(a);
    close_ctx(ctx, &c, "a huge archive");
}

/* ---- files ----------------------------------------------------------------------------------- */

static void test_read_failures(void) {
    counter c;
    jem_ctx *ctx = open_ctx(&c);
    place("nothing");
    CHECK(!jem_archive_read(ctx, path) && says(ctx, path), "a file that is not there");
    CHECK(!jem_archive_read(ctx, path) && says(ctx, "cannot be opened: No such file"), "why");
    char long_path[700];
    memset(long_path, 'x', sizeof long_path);
    snprintf(long_path + 600, 100, "/nothing");
    CHECK(!jem_archive_read(ctx, long_path) && says(ctx, "xx/nothing: cannot be opened: "), "why");
    CHECK(!jem_load(ctx, path) && says(ctx, path), "a file that is not there");
    CHECK(!jem_archive_read(ctx, folder) && says(ctx, folder), "a folder");
    CHECK(!jem_archive_read(ctx, folder) && says(ctx, "cannot be read: Is a directory"), "why");
    spit(path, "", 0);
    CHECK(!jem_archive_read(ctx, path) && says(ctx, "is empty"), "an empty file");
    spit(path, "\2\0\0", 3);
    CHECK(!jem_archive_read(ctx, path) && says(ctx, "cut short: 3 bytes"), "3 bytes");
    spit(path, "\x89PNG\r\n\x1a\n and so on", 18);
    CHECK(!jem_archive_read(ctx, path) && says(ctx, "not a safetensors file"), "a picture");
    spit(path, "\3\0\0\0\0\0\0\0{]}", 11);
    CHECK(!jem_archive_read(ctx, path) && jem_error_status(ctx) == JEM_BAD_FILE, "{]}");
    CHECK(strstr(jem_error(ctx), path) && says(ctx, "expected \" at byte 9"), "where");
    remove(path);
    close_ctx(ctx, &c, "read failures");
}

/* The old file is as it was, and nothing of ours is left beside it. */
static void check_kept(const void *old, size_t n, const char *how) {
    size_t m;
    unsigned char *now = slurp(path, &m);
    CHECK(now && m == n && !memcmp(now, old, n), "%s: the old file is not what it was", how);
    CHECK(!leftovers(), "%s: a file is left", how);
    free(now);
}

/* Returns 1 if the file holds this text. */
static int holds_text(const char *file, const char *text) {
    size_t n;
    unsigned char *now = slurp(file, &n);
    const int same = now && n == strlen(text) && memcmp(now, text, n) == 0;
    free(now);
    return same;
}

static void test_file(void) {
    counter c;
    jem_ctx *ctx = open_ctx(&c);
    char temporary[600];
    struct stat s;
    place("page.html");
    jem_file *f = jem_file_create(ctx, path);
    CHECK(f && exists(jem_file_temporary(f)) && !exists(path), "%s", jem_error(ctx));
    CHECK(jem_file_put(f, "one, ", 5) == JEM_OK, "%s", jem_error(ctx));
    CHECK(jem_file_put(f, "two", 3) == JEM_OK && !exists(path), "in pieces");
    CHECK(jem_file_put(f, NULL, 0) == JEM_OK, "no bytes");
    CHECK(jem_file_commit(f) == JEM_OK && holds_text(path, "one, two"), "%s", jem_error(ctx));
    CHECK(!*jem_file_temporary(f) && !leftovers(), "the temporary file");
    CHECK(jem_file_put(f, "late", 4) == JEM_BAD_FILE && says(ctx, "is already complete"), "late");
    jem_file_free(f);
    CHECK(holds_text(path, "one, two"), "freed after the commit");

    f = jem_file_create(ctx, path);
    CHECK(jem_file_put(f, "other", 5) == JEM_OK, "%s", jem_error(ctx));
    snprintf(temporary, sizeof temporary, "%s", jem_file_temporary(f));
    CHECK(exists(temporary), "%s", temporary);
    jem_file_free(f);
    CHECK(holds_text(path, "one, two") && !exists(temporary), "freed without a commit");

    CHECK(chmod(path, 0640) == 0, "%s", path);
    f = jem_file_create(ctx, path);
    const int found = stat(jem_file_temporary(f), &s) == 0;
    CHECK(fcntl(f->fd, F_GETFD) & FD_CLOEXEC, "a program that is started does not get the file");
    CHECK(found && !(s.st_mode & 0137), "the temporary file has the mode %o",
          (unsigned)s.st_mode & 0777);
    CHECK(jem_file_commit(f) == JEM_OK && stat(path, &s) == 0, "%s", jem_error(ctx));
    CHECK(s.st_size == 0 && (s.st_mode & 0777) == 0640, "an empty file with the old mode");
    jem_file_free(f);

    f = jem_file_create(ctx, path);                /* a failure is final */
    CHECK(jem_file_put(f, NULL, 3) == JEM_BAD_FILE && says(ctx, "bytes is NULL"), "NULL");
    CHECK(jem_file_put(f, "x", 1) == JEM_BAD_FILE && says(ctx, "earlier call"), "again");
    CHECK(jem_file_commit(f) == JEM_BAD_FILE && says(ctx, "earlier call"), "and again");
    CHECK(!leftovers(), "after a failure");
    jem_file_free(f);
    CHECK(stat(path, &s) == 0 && s.st_size == 0, "the old file");

    CHECK(!jem_file_create(ctx, NULL) && says(ctx, "path is NULL"), "no path");
    CHECK(!jem_file_create(NULL, path) && !leftovers(), "no context");
    CHECK(jem_file_put(NULL, "x", 1) == JEM_BAD_ARGUMENT, "no file");
    CHECK(jem_file_commit(NULL) == JEM_BAD_ARGUMENT, "no file");
    CHECK(!*jem_file_temporary(NULL), "no file");
    jem_file_free(NULL);
    remove(path);
    close_ctx(ctx, &c, "files");
}

/* A small archive, whose file is there, and a large one to write over it. */
typedef struct writing {
    counter c;
    jem_ctx *ctx;
    jem_archive *old, *a;
    void *bytes;                                   /* of the old one */
    size_t n;
} writing;

static void writing_open(writing *w) {
    static unsigned char data[100000];
    const int64_t large[1] = { sizeof data };
    w->ctx = open_ctx(&w->c);
    w->old = jem_archive_create(w->ctx);
    w->a = jem_archive_create(w->ctx);
    jem_archive_add(w->old, "old", JEM_DTYPE_U8, 0, NULL, data);
    jem_archive_add(w->a, "new", JEM_DTYPE_U8, 1, large, data);
    w->bytes = jem_archive_to_memory(w->old, &w->n);
}
static void writing_close(writing *w, const char *what) {
    jem_archive_free(w->old);
    jem_archive_free(w->a);
    jem_release(w->ctx, w->bytes);
    close_ctx(w->ctx, &w->c, what);
}

static void test_unwritable(void) {
    writing w;
    writing_open(&w);
    jem_ctx *ctx = w.ctx;
    place("no/such/folder");
    CHECK(jem_archive_write(w.a, path) == JEM_BAD_FILE, "a folder that is not there");
    CHECK(strstr(jem_error(ctx), path) && says(ctx, "No such file"), "why");

    place("taken");                                /* path is a folder */
    mkdir(path, 0700);
    CHECK(jem_archive_write(w.a, path) == JEM_BAD_FILE, "onto a folder");
    CHECK(strstr(jem_error(ctx), path) && says(ctx, "cannot be replaced: "), "why");
    CHECK(exists(path) && !leftovers(), "the folder stays, ours goes");
    rmdir(path);

    if (mkfifo(path, 0600) == 0) {
        CHECK(jem_archive_write(w.a, path) == JEM_BAD_FILE, "onto a pipe");
        CHECK(says(ctx, "is not a regular file"), "why");
        CHECK(exists(path) && !leftovers(), "the pipe stays");
        CHECK(!jem_archive_read(ctx, path) && says(ctx, "is not a regular file"), "from a pipe");
        remove(path);
    }

    place("old.safetensors");
    CHECK(jem_archive_write(w.old, path) == JEM_OK, "%s", jem_error(ctx));
    struct rlimit limit, small;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0) {    /* full after some 50 KB */
        void (*handler)(int) = signal(SIGXFSZ, SIG_IGN);
        small = limit;
        small.rlim_cur = 50000;
        setrlimit(RLIMIT_FSIZE, &small);
        const jem_status status = jem_archive_write(w.a, path);
        setrlimit(RLIMIT_FSIZE, &limit);
        signal(SIGXFSZ, handler);
        CHECK(status == JEM_BAD_FILE && says(ctx, "cannot be written: "), "a file too large");
        check_kept(w.bytes, w.n, "a file too large");
    }
    remove(path);
    writing_close(&w, "files that cannot be written");
}

/* Every call of the system fails once: an error that says why, and the old file or the new. */
static void test_failing_calls(void) {
    writing w;
    writing_open(&w);
    jem_ctx *ctx = w.ctx;
    place("old.safetensors");
    static const char *const calls[] = {
        "open", "write", "fsync", "close", "rename", "open folder", "fsync"
    };
    for (int n_call = 0; n_call < 7; n_call++) {
        CHECK(jem_archive_write(w.old, path) == JEM_OK, "%s", jem_error(ctx));
        world.calls = 0;
        world.fail_at = n_call + 1;
        world.error = n_call == 1 ? ENOSPC : EIO;
        CHECK(jem_archive_write(w.a, path) == JEM_BAD_FILE, "%s fails", calls[n_call]);
        CHECK(world.failed && !strcmp(world.failed, calls[n_call]), "not %s: %s", calls[n_call],
              world.failed);
        CHECK(strstr(jem_error(ctx), path) && says(ctx, strerror(n_call == 1 ? ENOSPC : EIO)),
              "%s", calls[n_call]);
        world.fail_at = 0;
        if (n_call < 5) check_kept(w.bytes, w.n, calls[n_call]);
        jem_archive *whole = jem_archive_read(ctx, path);
        CHECK(jem_archive_count(whole) == 1 && !leftovers(), "%s: %s", calls[n_call],
              jem_error(ctx));
        CHECK((jem_archive_find(whole, "new") != NULL) == (n_call >= 5), "%s", calls[n_call]);
        jem_archive_free(whole);
    }
    remove(path);
    writing_close(&w, "calls that fail");
}

/* What a file system cannot do, it need not; what it does in part or not yet, is done on. */
static void test_harmless_failures(void) {
    writing w;
    writing_open(&w);
    jem_ctx *ctx = w.ctx;
    place("old.safetensors");
    CHECK(jem_archive_write(w.old, path) == JEM_OK, "%s", jem_error(ctx));
    static const struct { int call, error; } harmless[] = {
        { 3, EINVAL }, { 3, ENOTSUP }, { 7, EINVAL }, { 7, ENOSYS }, { 6, EACCES }, { 2, EINTR },
        { 3, EINTR }, { 7, EINTR }
    };
    for (size_t i = 0; i < sizeof harmless / sizeof *harmless; i++) {
        world.calls = 0;
        world.fail_at = harmless[i].call;
        world.error = harmless[i].error;
        CHECK(jem_archive_write(w.a, path) == JEM_OK && world.calls >= world.fail_at, "call %d: %s",
              harmless[i].call, jem_error(ctx));
        world.fail_at = 0;
    }
    world.most = 997;
    CHECK(jem_archive_write(w.a, path) == JEM_OK && !leftovers(), "%s", jem_error(ctx));
    world.most = 0;
    jem_archive *b = jem_archive_read(ctx, path);
    CHECK(same_entry(jem_archive_at(w.a, 0), jem_archive_find(b, "new")), "%s", jem_error(ctx));
    remove(path);

    if (chdir(folder) == 0) {                      /* a name without a folder */
        CHECK(jem_archive_write(w.a, "bare") == JEM_OK && remove("bare") == 0, "%s",
              jem_error(ctx));
        CHECK(jem_archive_write(w.a, "") == JEM_BAD_FILE && !leftovers(), "an empty name");
        CHECK(says(ctx, "a file to write: the path is empty"), "%s", jem_error(ctx));
        jem_clear_error(ctx);
        CHECK(!jem_archive_read(ctx, ""), "an empty name");
        CHECK(says(ctx, "a file to read: the path is empty"), "%s", jem_error(ctx));
        jem_clear_error(ctx);
    }
    jem_archive_free(b);
    writing_close(&w, "harmless failures");
}

/* Two archives of one size, to identify the last writer. */
static jem_archive *filled(jem_ctx *ctx, unsigned char *data, size_t n, int value) {
    const int64_t shape[1] = { (int64_t)n };
    jem_archive *a = jem_archive_create(ctx);
    memset(data, value, n);
    jem_archive_add(a, "w", JEM_DTYPE_U8, 1, shape, data);
    return a;
}
/* Is path one of them, whole? */
static int is_whole(jem_ctx *ctx, size_t n) {
    jem_archive *a = jem_archive_read(ctx, path);
    const jem_entry *e = jem_archive_find(a, "w");
    const unsigned char *data = e ? (const unsigned char *)e->data : NULL;
    int whole = e && e->bytes == n && (data[0] == 1 || data[0] == 2);
    for (size_t i = 1; whole && i < n; i++) whole = data[i] == data[0];
    jem_archive_free(a);
    return whole;
}

static struct { jem_archive *archive; int at, made; jem_status status; } other_writer;

static void write_between(const char *call, const char *name) {
    (void)call;
    (void)name;
    if (other_writer.made++ == other_writer.at)
        other_writer.status = jem_archive_write(other_writer.archive, path);
}

static void test_two_writers(void) {
    enum { BYTES = 300000, TIMES = 60 };
    static unsigned char data[2][BYTES];
    counter c;
    jem_ctx *ctx = open_ctx(&c);
    jem_archive *a = filled(ctx, data[0], BYTES, 1);
    jem_archive *b = filled(ctx, data[1], BYTES, 2);
    place("shared");
    for (int at = 0; at < 7; at++) {               /* one whole write between any two calls */
        other_writer.archive = b;
        other_writer.at = at;
        other_writer.made = 0;
        other_writer.status = JEM_BAD_FILE;
        world.before = write_between;
        CHECK(jem_archive_write(a, path) == JEM_OK, "before call %d: %s", at, jem_error(ctx));
        world.before = NULL;
        CHECK(other_writer.status == JEM_OK, "the other, before call %d: %s", at, jem_error(ctx));
        CHECK(is_whole(ctx, BYTES) && !leftovers(), "before call %d: %s", at, jem_error(ctx));
        jem_clear_error(ctx);
    }
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {                              /* and two processes as they come */
        int bad = 0;
        for (int i = 0; i < TIMES; i++) bad |= jem_archive_write(b, path) != JEM_OK;
        _exit(bad);
    }
    int torn = 0;
    int status = 1;
    for (int i = 0; i < TIMES; i++) {
        CHECK(jem_archive_write(a, path) == JEM_OK, "%s", jem_error(ctx));
        torn += !is_whole(ctx, BYTES);
        jem_clear_error(ctx);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0, "the other writer");
    CHECK(torn == 0 && is_whole(ctx, BYTES) && !leftovers(), "not whole in %d of %d looks", torn,
          TIMES);
    remove(path);
    jem_archive_free(a);
    jem_archive_free(b);
    close_ctx(ctx, &c, "two writers");
}

static char victim[200];
static int planted;

static void plant(const char *call, const char *name) {
    if (!strcmp(call, "open") && planted < 3) planted += symlink(victim, name) == 0;
}

/* Removes the planted links, which the library leaves. */
static void remove_planted(void) {
    char link[200];
    DIR *d = opendir(folder);
    for (struct dirent *e; d && (e = readdir(d)) != NULL;)
        if (strstr(e->d_name, ".tmp")) {
            snprintf(link, sizeof link, "%s/%.60s", folder, e->d_name);
            CHECK(remove(link) == 0, "%s", link);
        }
    if (d) closedir(d);
}

/* Links: at the temporary name they are not followed, at path they are refused. */
static void test_links(void) {
    counter c;
    jem_ctx *ctx = open_ctx(&c);
    static unsigned char data[1000];
    jem_archive *a = filled(ctx, data, sizeof data, 1);
    char link[200];
    size_t n;
    place("victim");
    memcpy(victim, path, sizeof path);
    place("linked");
    snprintf(link, sizeof link, "%s.tmp", path);   /* what it was called once */
    spit(victim, "precious", 8);
    CHECK(symlink(victim, link) == 0, "%s", link);
    world.before = plant;
    planted = 0;                                   /* and what it is about to be called */
    CHECK(jem_archive_write(a, path) == JEM_OK && is_whole(ctx, sizeof data), "%s", jem_error(ctx));
    world.before = NULL;
    CHECK(planted == 3 && leftovers() == 4, "%d planted, %d left", planted, leftovers());
    unsigned char *bytes = slurp(victim, &n);
    CHECK(n == 8 && !memcmp(bytes, "precious", 8), "what a planted link led to was overwritten");
    free(bytes);
    remove_planted();
    remove(path);

    CHECK(symlink(victim, path) == 0, "%s", path);
    CHECK(jem_archive_write(a, path) == JEM_BAD_FILE && says(ctx, "is a symbolic link"), "onto it");
    bytes = slurp(path, &n);
    CHECK(n == 8 && exists(victim) && !leftovers(), "the link and its file are as they were");
    free(bytes);
    remove(victim);
    CHECK(jem_archive_write(a, path) == JEM_BAD_FILE && says(ctx, "is a symbolic link"),
          "a link to nothing");
    CHECK(!exists(victim), "a dangling link was followed");
    remove(path);

    struct stat s;                                 /* a private file stays private */
    spit(path, "old", 3);
    for (int i = 0; i < 4; i++) {                  /* and one of a group, the group's */
        static const unsigned modes[4] = { 0600, 0664, 0444, 02664 };
        CHECK(chmod(path, modes[i]) == 0 && !stat(path, &s), "%s", path);
        if ((s.st_mode & 07777) != modes[i]) continue;           /* no setgid here */
        CHECK(jem_archive_write(a, path) == JEM_OK &&
              !stat(path, &s) && (s.st_mode & 07777) == modes[i], "mode %o, not %o: %s",
              (unsigned)s.st_mode & 07777, modes[i], jem_error(ctx));
    }
    remove(path);
    jem_archive_free(a);
    close_ctx(ctx, &c, "links");
}

static int same_params(const jem_net *a, const jem_net *b) {
    const jem_param *p = a->params;
    const jem_param *q = b->params;
    for (; p && q; p = p->next, q = q->next)
        if (strcmp(p->name, q->name) || p->ndim != q->ndim || p->size != q->size ||
            memcmp(p->shape, q->shape, (size_t)p->ndim * sizeof(int)) ||
            memcmp(p->value, q->value, (size_t)p->size * sizeof(float))) return 0;
    return !p && !q;
}

/* ---- descriptions ---------------------------------------------------------------------------- */

/* Messages have points, whatever the locale's decimal point; lists in them keep their commas. */
static void test_points(void) {
    counter c;
    jem_ctx *ctx = open_ctx(&c);
    jem_wrn_desc d = jem_wrn_desc_default();
    d.dropout = 1.5f;
    for (world.comma = 0; world.comma < 3; world.comma++) {
        CHECK(!jem_wrn_create(ctx, &d, 1) &&
              says(ctx, "dropout = 1.5: must be a number from 0 to 0.99999994"), "a desc");
        jem_clear_error(ctx);
        const jem_mark mark = jem_begin(ctx);
        jem_tensor *x = jem_zeros(ctx, 1, 1, 1, 1);
        CHECK(!jem_clamp(ctx, x, 0.5f, 0.25f) &&
              says(ctx, "lo = 0.5 exceeds hi = 0.25"), "clamp");
        jem_end(ctx, mark);
        jem_clear_error(ctx);
        jem__fail(ctx, JEM_BAD_FILE, "(1,%d) %s %c %%%ld %.1f%% %g", 5, "1,5", ',', 7L, 2.5, 0.5);
        CHECK(!strcmp(jem_error(ctx), "(1,5) 1,5 , %7 2.5% 0.5"), "%s", jem_error(ctx));
        jem_clear_error(ctx);
    }
    world.comma = 0;
    close_ctx(ctx, &c, "points");
}

/* Any float survives as text, whatever the locale's decimal point. */
static void test_numbers(void) {
    static const float some[] = {
        0, -0.0f, 1, -1, .2f, 1.0f / 3, .1f, 1e-45f, -1e-38f, 3.4028235e38f, 16777216, 123456.789f,
        999999936, 1e9f, 1e10f, -1e-7f, .99999994f, 1.00000012f, 65535.9961f
    };
    const int n_some = sizeof some / sizeof *some;
    jem_rng rng = jem_rng_seed(21);
    int wrong = 0;
    for (int i = 0; i < 300000; i++) {
        uint32_t bits = jem_rng_u32(&rng);
        float x, back;
        double v = -1;
        char text[32];
        memcpy(&x, &bits, sizeof x);
        if (i < n_some) x = some[i];
        if (!isfinite(x)) continue;
        world.comma = i % 3;
        const int length = jem__print_number(text, sizeof text, (double)x);
        world.comma = 0;
        const char *end = jem__scan_number(text, &v);
        back = (float)v;
        if (*end || memcmp(&back, &x, sizeof x) || length != (int)strlen(text)) {
            if (!wrong++) CHECK(0, "%s, of length %d, for %.9g", text, length, (double)x);
        }
    }
    CHECK(wrong == 0, "%d", wrong);
    static const struct { const char *text; double value; int read; } texts_of[] = {
        { "12", 12, 2 }, { "0.2", .2, 3 }, { "-0.250000", -.25, 9 }, { "5.", 5, 2 },
        { "1e3", 1e3, 3 }, { "1.5e-07x", 1.5e-7, 7 }, { "1e+2", 100, 4 }, { "", 0, 0 },
        { "-", 0, 0 }, { ".5", 0, 0 }, { "e5", 0, 0 }, { "nan", 0, 0 }, { "inf", 0, 0 },
        { "1e999", 0, 0 }, { "10e", 10, 2 }, { "3e-", 3, 1 }, { "0x10", 0, 1 },
        { "1,5", 1, 1 }, { " 1", 0, 0 }, { "00000000000000000000000000000000000000001", 0, 0 }
    };
    for (size_t i = 0; i < sizeof texts_of / sizeof *texts_of; i++) {
        double v = 0;
        const char *text = texts_of[i].text;
        const char *end = jem__scan_number(text, &v);
        CHECK(end - text == texts_of[i].read && v == texts_of[i].value, "\"%s\": %.17g, %d read",
              text, v, (int)(end - text));
    }
}

/* The three networks by the fields of a wrn; the stacks have widths, it has depth and widen. */
enum { WRN, CONVNET, MLP, KINDS };
static const char *const kinds[KINDS] = { "wrn", "convnet", "mlp" };

typedef struct design {
    jem_wrn_desc w;
    int layers, widths[8], student;
    float quadratic;
} design;

static design design_default(void) {
    design d;
    memset(&d, 0, sizeof d);
    d.w = jem_wrn_desc_default();
    d.w.depth = 10;
    d.w.widen = 1;
    d.w.channels = 2;
    d.w.height = d.w.width = 4;
    d.w.classes = 3;
    d.layers = 2;
    d.widths[0] = 5;
    d.widths[1] = 4;
    return d;
}
static jem_net *design_create(jem_ctx *ctx, int kind, const design *d) {
    if (kind == WRN) return jem_wrn_create(ctx, &d->w, 3);
    jem_convnet_desc s = jem_convnet_desc_default();
    s.channels = d->w.channels;
    s.height = d->w.height;
    s.width = d->w.width;
    s.classes = d->w.classes;
    s.activation = d->w.activation;
    s.leak = d->w.leak;
    s.separate_energy = d->w.separate_energy;
    s.layers = d->layers;
    s.quadratic = d->quadratic;
    s.student = d->student;
    memcpy(s.widths, d->widths, sizeof s.widths);
    return kind == CONVNET ? jem_convnet_create(ctx, &s, 3) : jem_mlp_create(ctx, &s, 3);
}

/* Saved and loaded: the same description, bit for bit. */
static void check_design(jem_ctx *ctx, int kind, const design *d, const char *what) {
    jem_net *net = design_create(ctx, kind, d);
    if (!CHECK(net != NULL, "%s, %s: %s", kinds[kind], what, jem_error(ctx))) return;
    jem_archive *a = jem_archive_create(ctx);
    CHECK(jem_net_to_archive(net, a) == JEM_OK, "%s", jem_error(ctx));
    jem_net *loaded = jem_net_from_archive(ctx, a);
    if (CHECK(loaded && same_params(net, loaded), "%s, %s: %s", kinds[kind], what,
              jem_error(ctx))) {
        const jem__wrn *w = (const jem__wrn *)net->user;
        const jem__wrn *v = (const jem__wrn *)loaded->user;
        const jem__stack *s = (const jem__stack *)net->user;
        const jem__stack *t = (const jem__stack *)loaded->user;
        if (kind == WRN)
            CHECK(!memcmp(&w->desc, &v->desc, sizeof w->desc) && w->blocks == v->blocks, "wrn, %s: "
                  "slope %.9g, dropout %.9g", what, (double)v->desc.leak, (double)v->desc.dropout);
        else {
            const jem_convnet_desc *p = &s->desc;
            const jem_convnet_desc *q = &t->desc;
            CHECK(!memcmp(&p->leak, &q->leak, sizeof p->leak) && s->convs == t->convs &&
                  p->layers == q->layers && p->activation == q->activation &&
                  p->separate_energy == q->separate_energy, "%s, %s: slope %.9g", kinds[kind], what,
                  (double)q->leak);
            CHECK(!memcmp(&p->quadratic, &q->quadratic, sizeof p->quadratic) &&
                  p->student == q->student && p->student == d->student, "%s, %s: quadratic %.9g, "
                  "student %d", kinds[kind], what, (double)q->quadratic, q->student);
        }
        CHECK(net->channels == loaded->channels && net->height == loaded->height &&
              net->width == loaded->width && net->classes == loaded->classes, "%s", what);
    }
    jem_net_free(net);
    jem_net_free(loaded);
    jem_archive_free(a);
}

static void test_descs(void) {
    counter c;
    jem_ctx *ctx = open_ctx(&c);
    jem_rng rng = jem_rng_seed(8);
    for (int i = 0; i < 60; i++) {
        design d = design_default();
        const int kind = i % KINDS;
        d.w.depth = 10 + 6 * jem_rng_below(&rng, 2);
        d.w.widen = 1 + jem_rng_below(&rng, 2);
        d.w.channels = 1 + jem_rng_below(&rng, 3);
        d.w.classes = 1 + jem_rng_below(&rng, 4);
        d.w.height = 4 + jem_rng_below(&rng, 5);
        d.w.width = 4 + jem_rng_below(&rng, 5);
        d.w.activation = (jem_activation)jem_rng_below(&rng, 4);
        d.w.norm = (jem_norm)jem_rng_below(&rng, 5);
        d.w.head = (jem_head)jem_rng_below(&rng, 2);
        d.w.leak = i < KINDS ? 1.0f / 3 : jem_rng_uniform(&rng) - .5f;
        d.w.dropout = i < KINDS ? 1.0f / 3 : jem_rng_uniform(&rng);
        d.w.stem_stride = 1 + jem_rng_below(&rng, 2);
        d.w.separate_energy = jem_rng_below(&rng, 2);
        d.layers = 1 + jem_rng_below(&rng, 3);
        for (int k = 0; k < d.layers; k++) d.widths[k] = 1 + jem_rng_below(&rng, 9);
        if (i % 2) d.quadratic = i < 2 * KINDS ? 1.0f / 3 : jem_rng_uniform(&rng);
        if (kind == MLP && i % 2 == 0) {
            d.w.height = d.w.width = 1;
            d.student = 1 + jem_rng_below(&rng, 9);
        }
        check_design(ctx, kind, &d, "at random");
    }
    design d = design_default();                   /* the outermost that are possible */
    d.w.leak = -1000;
    d.w.dropout = .99999994f;
    check_design(ctx, WRN, &d, "most dropout");
    d.w.leak = 1e-45f;
    d.w.dropout = 1e-45f;
    check_design(ctx, WRN, &d, "least dropout");
    d.w.leak = -0.0f;
    d.w.dropout = -0.0f;
    check_design(ctx, WRN, &d, "minus 0");
    d.w.leak = 1000;
    d.w.channels = 65536;
    d.w.height = d.w.width = 1;
    d.layers = 1;
    d.widths[0] = 1;
    check_design(ctx, MLP, &d, "65536 channels");
    check_design(ctx, CONVNET, &d, "65536 channels");
    d.w.channels = 1;
    d.quadratic = 1e6f;
    check_design(ctx, MLP, &d, "most of a quadratic term");
    d.quadratic = 1e-45f;
    check_design(ctx, MLP, &d, "least of a quadratic term");
    d.quadratic = 0;
    d.student = 1000;
    check_design(ctx, MLP, &d, "most degrees of freedom");
    d.student = 0;
    d.widths[0] = 65536;
    check_design(ctx, MLP, &d, "width 65536");
    d.widths[0] = 1;
    d.w.classes = 100000;
    check_design(ctx, MLP, &d, "100,000 classes");
    CHECK(jem_ok(ctx), "%s", jem_error(ctx));
    close_ctx(ctx, &c, "descs");
}

/* Sets the field of this name: that of a file, without "jem.". */
static void set_field(design *e, const char *key, double value) {
    const int n = (int)value;
    if (!strcmp(key, "channels")) e->w.channels = n;
    if (!strcmp(key, "height")) e->w.height = n;
    if (!strcmp(key, "width")) e->w.width = n;
    if (!strcmp(key, "classes")) e->w.classes = n;
    if (!strcmp(key, "activation")) memcpy(&e->w.activation, &n, sizeof n);
    if (!strcmp(key, "slope")) e->w.leak = (float)value;
    if (!strcmp(key, "uncond")) e->w.separate_energy = n;
    if (!strcmp(key, "depth")) e->w.depth = n;
    if (!strcmp(key, "widen")) e->w.widen = n;
    if (!strcmp(key, "norm")) memcpy(&e->w.norm, &n, sizeof n);
    if (!strcmp(key, "dropout")) e->w.dropout = (float)value;
    if (!strcmp(key, "head")) memcpy(&e->w.head, &n, sizeof n);
    if (!strcmp(key, "stem_stride")) e->w.stem_stride = n;
    if (!strcmp(key, "layers")) e->layers = n;
    if (!strcmp(key, "width1")) e->widths[0] = n;
    if (!strcmp(key, "width2")) e->widths[1] = n;
    if (!strcmp(key, "quadratic")) e->quadratic = (float)value;
    if (!strcmp(key, "student")) e->student = n;
}

/* Returns the name in C of a field of files. */
static const char *name_in_c(const char *key) {
    static const char *const names[][2] = {
        { "slope", "leak" }, { "uncond", "separate_energy" }, { "width1", "widths[0]" },
        { "width2", "widths[1]" }
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(key, names[i][0])) return names[i][1];
    return key;
}

/* Checks that a value is refused in a file, which is put back, and in a desc. */
static void check_field(jem_ctx *ctx, int kind, const design *d, jem_archive *a, const char *key,
                        double value) {
    const char *was = jem_archive_meta(a, key);
    const int is_stack = !strcmp(key, "jem.quadratic") || !strcmp(key, "jem.student");
    const int is_optional = !strcmp(key, "jem.uncond") || (kind != WRN && is_stack);
    if (!was && !is_optional) return;              /* of another kind */
    char text[64], old[64];
    snprintf(old, sizeof old, "%s", was ? was : "");
    snprintf(text, sizeof text, "%.9g", value);
    jem_archive_set_meta(a, key, text);
    CHECK(!jem_net_from_archive(ctx, a) && jem_error_status(ctx) == JEM_BAD_FILE, "%s %s", key,
          text);
    CHECK(says(ctx, key), "%s: %s = %s in a file", kinds[kind], key, text);
    jem_archive_set_meta(a, key, is_optional ? NULL : old);

    design e = *d;
    key += 4;
    set_field(&e, key, value);
    CHECK(!design_create(ctx, kind, &e), "%s: %s = %s was created", kinds[kind], key, text);
    CHECK(jem_error_status(ctx) == JEM_BAD_ARGUMENT, "%s", key);
    snprintf(text, sizeof text, "%s: %s = ", kinds[kind], name_in_c(key));
    CHECK(says(ctx, text), "%s = %g", key, value);
}

/* Checks texts that are not the number of classes, and one of an older version that is read. */
static void check_number_texts(jem_ctx *ctx, jem_archive *a) {
    static const char *const unreadable[] = {
        "", "two", "3x", "nan", "1e999", "0.5", "\xd9\xa3"
    };
    for (size_t i = 0; i < sizeof unreadable / sizeof *unreadable; i++) {
        jem_archive_set_meta(a, "jem.classes", unreadable[i]);
        CHECK(!jem_net_from_archive(ctx, a) && says(ctx, "jem.classes"), "%s", unreadable[i]);
    }
    jem_archive_set_meta(a, "jem.classes", NULL);
    CHECK(!jem_net_from_archive(ctx, a) && says(ctx, "jem.classes = (nothing)"), "missing");
    jem_archive_set_meta(a, "jem.classes", "3");
    jem_archive_set_meta(a, "jem.slope", "-0.333333");   /* as version 0.1 wrote it */
    jem_net *old_one = jem_net_from_archive(ctx, a);
    CHECK(old_one != NULL, "%s", jem_error(ctx));
    jem_net_free(old_one);
}

/* Checks numbers that are not finite, sizes that overflow, and an error from before. */
static void check_extremes(jem_ctx *ctx, int kind) {
    design d = design_default();
    d.w.leak = NAN;
    CHECK(!design_create(ctx, kind, &d) && says(ctx, "leak"), "NaN");
    d.w.leak = HUGE_VALF;
    CHECK(!design_create(ctx, kind, &d) && says(ctx, "leak"), "inf");
    d = design_default();
    d.w.dropout = NAN;
    if (kind == WRN) CHECK(!design_create(ctx, kind, &d) && says(ctx, "dropout"), "NaN");
    d = design_default();                          /* sizes that overflow an int when multiplied */
    d.w.channels = d.w.height = d.w.width = d.widths[1] = 65536;
    d.w.head = JEM_HEAD_FLAT;
    CHECK(!design_create(ctx, kind, &d) && says(ctx, "features"), "%s", kinds[kind]);
    jem_fail(ctx, JEM_DIVERGED, "of before");      /* does not hide the current error */
    d = design_default();
    d.w.leak = NAN;
    CHECK(!design_create(ctx, kind, &d) && says(ctx, "of before"), "after an error");
}

/* What a file must not say no desc may say, and the other way round; both errors name the field. */
static void test_agreement(void) {
    static const struct { const char *key; double value; } bad[] = {
        { "jem.channels", 70000 }, { "jem.channels", 0 }, { "jem.height", 65537 },
        { "jem.height", -1 }, { "jem.width", 65537 }, { "jem.width", 0 }, { "jem.classes", 0 },
        { "jem.classes", (1 << 24) + 1 }, { "jem.activation", 9 }, { "jem.activation", -1 },
        { "jem.slope", 1000.5 }, { "jem.slope", -2000 }, { "jem.uncond", 2 }, { "jem.uncond", -1 },
        { "jem.depth", 9 }, { "jem.depth", 11 }, { "jem.depth", 1006 }, { "jem.widen", 0 },
        { "jem.widen", 101 }, { "jem.norm", 5 }, { "jem.dropout", 1 }, { "jem.dropout", -.5 },
        { "jem.head", 2 }, { "jem.stem_stride", 0 }, { "jem.stem_stride", 9 }, { "jem.layers", 0 },
        { "jem.layers", 9 }, { "jem.width1", 0 }, { "jem.width2", 65537 },
        { "jem.quadratic", -1 }, { "jem.quadratic", 1000001 }, { "jem.student", -1 },
        { "jem.student", 1001 }
    };
    counter c;
    jem_ctx *ctx = open_ctx(&c);
    for (int kind = 0; kind < KINDS; kind++) {
        design d = design_default();
        if (kind == MLP) d.w.height = d.w.width = 1;         /* else it can have no `student` */
        jem_net *net = design_create(ctx, kind, &d);
        jem_archive *a = jem_archive_create(ctx);
        CHECK(net && jem_net_to_archive(net, a) == JEM_OK, "%s", jem_error(ctx));
        for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
            check_field(ctx, kind, &d, a, bad[i].key, bad[i].value);
        check_number_texts(ctx, a);
        jem_net_free(net);
        jem_archive_free(a);
        check_extremes(ctx, kind);
    }
    close_ctx(ctx, &c, "agreement");
}

/* Checks a name that a network may have, and the file of a trainer may not. */
static void check_long_name(jem_ctx *ctx) {
    const int shape[1] = { 1 };
    char name[400];
    memset(name, 'n', sizeof name - 1);
    name[sizeof name - 1] = 0;
    jem_net *own = jem_net_create(ctx, no_forward, NULL, 0, 1, 1, 1, 1, 1);
    jem_train_desc how = jem_train_desc_default();
    how.buffer_size = 8;
    CHECK(jem_net_param(own, name, 1, shape, 1) != NULL, "%s", jem_error(ctx));
    jem_trainer *tr = jem_trainer_create(own, &how);
    jem_archive *long_named = jem_archive_create(ctx);
    CHECK(jem_net_to_archive(own, long_named) == JEM_OK && jem_net_load(own, long_named) == JEM_OK,
          "%s", jem_error(ctx));
    CHECK(jem_trainer_to_archive(tr, long_named) == JEM_BAD_ARGUMENT && says(ctx, "too long"),
          "a name of 399");
    jem_archive_free(long_named);
    jem_trainer_free(tr);
    jem_net_free(own);
}

/* What goes into a network's texts can be saved and loaded; what cannot, does not go in. */
static void test_texts(void) {
    counter c;
    jem_ctx *ctx = open_ctx(&c);
    const design d = design_default();
    const int shape[1] = { 1 };
    jem_net *net = design_create(ctx, MLP, &d);
    CHECK(!jem_net_find(net, NULL) && !jem_net_find(NULL, "x") && jem_ok(ctx), "no name");
    CHECK(!jem_net_param(net, NULL, 1, shape, 1) && says(ctx, "name is NULL"), "no name");
    CHECK(!jem_net_param(net, "x", 1, NULL, 1) && says(ctx, "needs 1 to 4 sizes"), "no shape");
    CHECK(!jem_net_param(NULL, "x", 1, shape, 1) && jem_ok(ctx), "no net");
    CHECK(!jem_net_param(net, "__metadata__", 1, shape, 1) && says(ctx, "no file can"), "a name");
    CHECK(jem_net_set_meta(NULL, "k", "v") == JEM_BAD_ARGUMENT, "no net");
    CHECK(!jem_net_meta(NULL, "k") && jem_ok(ctx), "no net");
    CHECK(jem_net_set_meta(net, NULL, "v") == JEM_BAD_ARGUMENT && says(ctx, "key is NULL"),
          "no key");
    CHECK(jem_net_set_meta(net, "\xff", "v") == JEM_BAD_ARGUMENT && says(ctx, "UTF-8"), "key");
    CHECK(jem_net_set_meta(net, "k", "\xed\xa0\x80") && says(ctx, "\"k\""), "value");
    CHECK(!jem_net_meta(net, NULL) && !jem_net_meta(net, "k") && jem_ok(ctx), "not there");
    check_long_name(ctx);
    int texts_now = 0;
    int n = 0;
    for (const jem__meta *m = net->meta; m; m = m->next) texts_now++;
    char key[16];
    jem_status status = JEM_OK;
    while (!status && n < 10000) {
        snprintf(key, sizeof key, "%d", n++);
        status = jem_net_set_meta(net, key, "");
    }
    CHECK(texts_now + n == 3841 && says(ctx, "already has 3840"), "%d texts", texts_now + n);
    CHECK(jem_net_set_meta(net, "0", "again") == JEM_OK, "%s", jem_error(ctx));
    place("texts");
    jem_fail(ctx, JEM_DIVERGED, "an older error");
    CHECK(jem_save(net, path) == JEM_OK && says(ctx, "an older error"), "written all the same");
    jem_net *loaded = jem_load(ctx, path);
    CHECK(loaded && !strcmp(jem_net_meta(loaded, "0"), "again"), "%s", jem_error(ctx));
    jem_archive *a = jem_archive_read(ctx, path);
    for (n = 0, status = JEM_OK; !status && n < 10000; n++) {
        snprintf(key, sizeof key, "+%d", n);
        status = jem_archive_set_meta(a, key, "");
    }
    CHECK(n == 257 && says(ctx, "already 4096"), "full after %d more", n);
    jem_archive_free(a);
    jem_net_free(loaded);
    jem_net_free(net);
    remove(path);
    close_ctx(ctx, &c, "texts");
}

/* ---- networks -------------------------------------------------------------------------------- */

/* Numbers that a lossy path would change; running variances and flags stay sensible. */
static void scramble(jem_net *net, uint64_t seed) {
    jem_rng rng = jem_rng_seed(seed);
    for (jem_param *p = net->params; p; p = p->next) {
        const int positive = strstr(p->name, "var") || strstr(p->name, "initialized");
        for (ptrdiff_t i = 0; i < p->size; i++)
            p->value[i] = jem_rng_uniform(&rng) * 0.7f + (positive ? 0.1f : -0.35f);
        if (p->size == 1) p->value[0] = 1.0f;
        else if (!positive) {
            p->value[0] = -0.0f;
            p->value[1] = 1e-42f;
        }
        jem_param_changed(p);
    }
}

/* Logits of three images, evaluation mode. */
static int logits(jem_net *net, float *out) {
    jem_ctx *ctx = net->ctx;
    const ptrdiff_t n = (ptrdiff_t)3 * net->channels * net->height * net->width;
    float *x = (float *)malloc((size_t)n * sizeof(float));
    for (ptrdiff_t i = 0; i < n; i++) x[i] = sinf((float)i);
    jem_mark mark = jem_begin(ctx);
    jem_tensor *t = jem_input(ctx, x, 3, net->channels, net->height, net->width);
    const jem_status status = jem_read(jem_forward(net, t, 0), out);
    jem_end(ctx, mark);
    free(x);
    return status == JEM_OK;
}

static jem_net *make_net(jem_ctx *ctx, int kind, int classes) {
    if (kind == 0) {
        jem_mlp_desc d = jem_mlp_desc_default();
        d.channels = 2;
        d.height = 3;
        d.width = 5;
        d.classes = classes;
        d.layers = 2;
        d.widths[0] = 9;
        d.widths[1] = 4;
        d.activation = JEM_ACTIVATION_TANH;
        return jem_mlp_create(ctx, &d, 5);
    }
    if (kind == 1) {
        jem_convnet_desc d = jem_convnet_desc_default();
        d.channels = 1;
        d.height = d.width = 8;
        d.classes = classes;
        d.layers = 2;
        d.widths[0] = 5;
        d.widths[1] = 6;
        return jem_convnet_create(ctx, &d, 5);
    }
    jem_wrn_desc d = jem_wrn_desc_default();
    d.depth = 10;
    d.widen = 1;
    d.channels = 3;
    d.height = d.width = 8;
    d.classes = classes;
    d.norm = (jem_norm)(kind - 2);
    d.leak = 0.123456f;
    d.head = kind == 3 ? JEM_HEAD_FLAT : JEM_HEAD_POOLED;
    return jem_wrn_create(ctx, &d, 5);
}
static const char *const net_names[] = {
    "mlp", "convnet", "wrn", "wrn+batch", "wrn+instance", "wrn+layer", "wrn+act"
};
enum { NETS = sizeof net_names / sizeof net_names[0] };

/* Checks that a network from a file has the logits, sizes and texts of the other one, and the same
   file. */
static void check_loaded(jem_net *net, jem_net *loaded, const float before[12], const char *name) {
    jem_ctx *ctx = net->ctx;
    CHECK(loaded->channels == net->channels && loaded->height == net->height &&
          loaded->width == net->width && loaded->classes == 4, "%s: sizes", name);
    for (int i = 0; i < TEXTS; i++) {
        const char *t = jem_net_meta(loaded, texts[i][0]);
        CHECK(t && !strcmp(t, texts[i][1]), "%s: text %d", name, i);
    }
    float after[12] = { 0 };
    CHECK(logits(loaded, after) && !memcmp(before, after, sizeof after), "%s: logits", name);
    size_t n, m;                                   /* saved again: the same file */
    unsigned char *first = slurp(path, &n);
    CHECK(jem_save(loaded, path) == JEM_OK, "%s: %s", name, jem_error(ctx));
    unsigned char *second = slurp(path, &m);
    CHECK(first && second && n == m && !memcmp(first, second, n), "%s: saved again", name);
    free(first);
    free(second);
}

/* Loads a file into a network of the same shape, of which nothing may remain. */
static void check_fresh(const jem_net *net, jem_net *fresh, const jem_archive *a,
                        const float before[12], const char *name) {
    jem_ctx *ctx = net->ctx;
    float after[12] = { 0 };
    fresh->scale = 10;
    fresh->noise_lo = 0.1f;
    fresh->noise_hi = 2;
    fresh->mean = 0.5f;
    fresh->guidance = 3;
    fresh->denoise_steps = 150;
    fresh->denoise_fraction = 0.4f;
    fresh->last_sigma = 0.3f;
    fresh->walk_step = 0.02f;
    fresh->walk_noise = 0.2f;
    load_text(fresh, "jem.temperature", "7");      /* of the weights that go */
    CHECK(jem_net_load(fresh, a) == JEM_OK && same_params(net, fresh), "%s: %s", name,
          jem_error(ctx));
    CHECK(fresh->scale == net->scale && fresh->noise_lo == net->noise_lo &&
          fresh->noise_hi == net->noise_hi && fresh->mean == net->mean &&
          fresh->guidance == net->guidance && fresh->denoise_steps == net->denoise_steps &&
          fresh->denoise_fraction == net->denoise_fraction &&
          fresh->last_sigma == net->last_sigma &&
          fresh->walk_step == net->walk_step && fresh->walk_noise == net->walk_noise,
          "%s: scale %g, noise %g to %g, mean %g are of the old network", name,
          (double)fresh->scale, (double)fresh->noise_lo, (double)fresh->noise_hi,
          (double)fresh->mean);
    CHECK(!jem_net_meta(fresh, "jem.temperature"), "%s: a temperature of other weights", name);
    CHECK(logits(fresh, after) && !memcmp(before, after, sizeof after),
          "%s: copies of the old weights are still in use", name);
}

/* Checks that a network of another shape refuses a file, and one that lacks a parameter, and is as
   it was. */
static void check_other_shape(jem_ctx *ctx, int kind, const jem_archive *a) {
    const char *name = net_names[kind];
    jem_net *other = make_net(ctx, kind, 7);
    jem_net *copy = make_net(ctx, kind, 7);
    if (!other || !copy) {
        jem_net_free(other);
        jem_net_free(copy);
        return;
    }
    scramble(other, 99);
    scramble(copy, 99);
    CHECK(jem_net_load(other, a) == JEM_BAD_SHAPE, "%s: 7 classes from a file of 4", name);
    CHECK(strstr(jem_error(ctx), path) && says(ctx, "in the file, F32 (7"), "%s", name);
    CHECK(same_params(other, copy), "%s: a load that failed changed it", name);

    jem_archive *less = jem_archive_create(ctx);   /* all but the last parameter */
    for (const jem_param *p = other->params; p && p->next; p = p->next) {
        int64_t shape[4];
        for (int i = 0; i < p->ndim; i++) shape[i] = p->shape[i];
        float *zeros = (float *)calloc((size_t)p->size, sizeof(float));
        jem_archive_add(less, p->name, JEM_DTYPE_F32, p->ndim, shape, zeros ? zeros : p->value);
    }
    CHECK(jem_net_load(other, less) == JEM_BAD_FILE, "%s: one is missing", name);
    CHECK(strstr(jem_error(ctx), "lacks") && says(ctx, other->last->name), "%s", name);
    CHECK(same_params(other, copy), "%s: a load that failed changed it", name);
    for (int i = 0; i < jem_archive_count(less); i++)
        free((void *)(uintptr_t)jem_archive_at(less, i)->data);
    jem_archive_free(less);
    jem_net_free(other);
    jem_net_free(copy);
}

/* Checks an archive without a description, and one without tensors. */
static void check_bare(jem_ctx *ctx, const jem_archive *a, const char *name) {
    CHECK(!jem_net_from_archive(ctx, NULL) && says(ctx, "the archive is NULL"), "%s", name);
    jem_archive *bare = jem_archive_create(ctx);   /* no description; then no tensors */
    CHECK(!jem_net_from_archive(ctx, bare), "%s: no description", name);
    CHECK(jem_error_status(ctx) == JEM_BAD_FILE, "%s", name);
    CHECK(says(ctx, "archive: does not describe its network"), "%s", name);
    static const char *const keys[] = {
        "jem.net", "jem.channels", "jem.height", "jem.width", "jem.classes", "jem.activation",
        "jem.slope", "jem.depth", "jem.widen", "jem.norm", "jem.dropout", "jem.head",
        "jem.stem_stride", "jem.layers", "jem.width1", "jem.width2"
    };
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
        jem_archive_set_meta(bare, keys[i], jem_archive_meta(a, keys[i]));
    CHECK(!jem_net_from_archive(ctx, bare) && says(ctx, "archive: lacks \""), "%s", name);
    jem_archive_free(bare);
}

static void test_nets(void) {
    counter c;
    for (int kind = 0; kind < NETS; kind++) {
        const char *name = net_names[kind];
        jem_ctx *ctx = open_ctx(&c);
        jem_net *net = make_net(ctx, kind, 4);
        jem_net *fresh = make_net(ctx, kind, 4);
        CHECK(net && fresh, "%s: %s", name, jem_error(ctx));
        if (!net || !fresh) {
            jem_net_free(net);
            jem_net_free(fresh);
            jem_ctx_free(ctx);
            continue;
        }
        float before[12], after[12];
        CHECK(logits(fresh, after), "%s: %s", name, jem_error(ctx));   /* packs its old weights */
        scramble(net, (uint64_t)kind);
        CHECK(logits(net, before), "%s: %s", name, jem_error(ctx));
        for (int i = 0; i < TEXTS; i++) jem_net_set_meta(net, texts[i][0], texts[i][1]);

        place("net.safetensors");
        CHECK(jem_save(net, path) == JEM_OK, "%s: %s", name, jem_error(ctx));
        jem_net *loaded = jem_load(ctx, path);
        CHECK(loaded && same_params(net, loaded), "%s: %s", name, jem_error(ctx));
        if (loaded) check_loaded(net, loaded, before, name);
        jem_archive *a = jem_archive_read(ctx, path);
        check_fresh(net, fresh, a, before, name);
        check_other_shape(ctx, kind, a);
        check_bare(ctx, a, name);
        jem_archive_free(a);
        jem_net_free(net);
        jem_net_free(fresh);
        jem_net_free(loaded);
        remove(path);
        close_ctx(ctx, &c, name);
    }
}

/* ---- trainers: a checkpoint goes on as if nothing had happened ------------------------------- */

enum { T_IMAGES = 6, T_STEPS = 3, T_KINDS = 9 };
static const char *const trainer_kinds[T_KINDS] = {
    "adam", "sgd", "averaged weights", "averages in the network", "no buffer", "class, batch norm",
    "act norm, dropout", "the last layer only", "muon"
};

typedef struct learner { jem_net *net; jem_trainer *tr; } learner;

static jem_train_desc learner_desc(int kind) {
    jem_train_desc d = jem_train_desc_default();
    d.lr = 1e-2f;
    d.sgld.steps = 2;
    d.negatives = 3;
    d.buffer_size = 12;
    d.reinit = .5f;
    d.seed = 5;
    if (kind == 1) {
        d.optim.kind = JEM_OPTIMIZER_SGD;
        d.optim.momentum = .9f;
    }
    if (kind == 2 || kind == 3) d.optim.ema = .9f;
    if (kind == 4) d.weights.cd = 0;
    if (kind == 5) d.class_conditional = 1;
    if (kind == 7) d.optim.only = "class_output";
    if (kind == 8) d.optim.kind = JEM_OPTIMIZER_MUON;
    return d;
}
static jem_net *learner_begin_net(jem_ctx *ctx, int kind) {
    jem_wrn_desc w = jem_wrn_desc_default();
    w.depth = 10;
    w.widen = 1;
    w.height = w.width = 4;
    w.classes = 3;
    w.norm = JEM_NORM_NONE;
    if (kind == 5) w.norm = JEM_NORM_BATCH;
    if (kind == 6) w.norm = JEM_NORM_ACT;
    w.dropout = kind == 6 ? .25f : 0;
    return jem_wrn_create(ctx, &w, 2);
}
/* net NULL: a fresh one. */
static learner learner_begin(jem_ctx *ctx, int kind, jem_net *net) {
    const jem_train_desc d = learner_desc(kind);
    learner t;
    t.net = net ? net : learner_begin_net(ctx, kind);
    t.tr = jem_trainer_create(t.net, &d);
    return t;
}
static void learner_end(learner *t) {
    jem_trainer_free(t->tr);
    jem_net_free(t->net);
}

static void learner_steps(learner *t, int n) {
    float x[T_IMAGES * 48];
    int y[T_IMAGES];
    for (int i = 0; i < n; i++) {
        jem_rng rng = jem_rng_seed(100 + (uint64_t)jem_trainer_updates(t->tr));
        jem_fill_uniform(t->net->ctx, &rng, x, T_IMAGES * 48, -1, 1);
        for (int k = 0; k < T_IMAGES; k++) y[k] = jem_rng_below(&rng, 3);
        CHECK(jem_train_step(t->tr, x, y, T_IMAGES).status == JEM_OK, "%s",
              jem_error(t->net->ctx));
    }
}
/* All of it as a file in memory. */
static void *learner_bytes(learner *t, size_t *n) {
    jem_archive *a = jem_archive_create(t->net->ctx);
    jem_net_to_archive(t->net, a);
    CHECK(jem_trainer_to_archive(t->tr, a) == JEM_OK, "%s", jem_error(t->net->ctx));
    void *bytes = jem_archive_to_memory(a, n);
    jem_archive_free(a);
    return bytes;
}
static int learner_is(learner *t, const void *bytes, size_t n) {
    size_t m = 0;
    void *mine = learner_bytes(t, &m);
    const int same = bytes && mine && m == n && !memcmp(mine, bytes, n);
    jem_release(t->net->ctx, mine);
    return same;
}

/* Checks that another sort of trainer refuses the archive of one, and is as it was. */
static void check_other_trainer(jem_ctx *ctx, int kind, int other, const jem_archive *a) {
    const char *name = trainer_kinds[kind];
    learner v = learner_begin(ctx, other, NULL);
    size_t before;
    void *bytes = learner_bytes(&v, &before);
    const jem_train_desc mine = learner_desc(kind);
    const jem_train_desc its = learner_desc(other);
    const int differs = mine.optim.kind != its.optim.kind;
    const int other_chains = (its.weights.cd > 0) != (mine.weights.cd > 0);
    const int other_ema = (its.optim.ema > 0) != (mine.optim.ema > 0);
    const int lacks_more = kind == 7 && other != 7;
    const int lacks_norm = other >= 5 && other <= 6 && kind != other;
    const char *message = differs ? "its optimiser is" : "lacks";
    if (other_ema) message = its.optim.ema > 0 ? "lacks averaged weights" : "optim.ema is 0";
    if (other_chains) message = its.weights.cd > 0 ? "lacks chains" : "has chains";
    if (differs || other_chains || other_ema || lacks_more || lacks_norm) {
        CHECK(jem_trainer_from_archive(v.tr, a) == JEM_BAD_FILE && says(ctx, message),
              "%s from %s", trainer_kinds[other], name);
        CHECK(learner_is(&v, bytes, before), "%s from %s: it changed", trainer_kinds[other], name);
    }
    jem_release(ctx, bytes);
    learner_end(&v);
}

static void test_trainers(void) {
    counter c;
    for (int kind = 0; kind < T_KINDS; kind++) {
        const char *name = trainer_kinds[kind];
        jem_ctx *ctx = open_ctx(&c);
        size_t n, m, k;
        learner t = learner_begin(ctx, kind, NULL);
        CHECK(t.tr != NULL, "%s: %s", name, jem_error(ctx));
        if (!t.tr) {
            learner_end(&t);
            jem_ctx_free(ctx);
            continue;
        }
        void *zero = learner_bytes(&t, &k);
        learner_steps(&t, T_STEPS);
        if (kind == 3) jem_trainer_use_average(t.tr, 1);
        void *middle = learner_bytes(&t, &n);
        learner_steps(&t, T_STEPS);
        void *end = learner_bytes(&t, &m);
        CHECK(!learner_is(&t, middle, n), "%s: training changes something", name);

        jem_archive *a = jem_archive_parse(ctx, middle, n);
        jem_net *loaded = jem_net_from_archive(ctx, a);
        CHECK(loaded != NULL, "%s: %s", name, jem_error(ctx));
        learner u = learner_begin(ctx, kind, loaded);
        CHECK(jem_trainer_from_archive(u.tr, a) == JEM_OK, "%s: %s", name, jem_error(ctx));
        CHECK(jem_trainer_updates(u.tr) == T_STEPS && learner_is(&u, middle, n), "%s: as it was",
              name);
        learner_steps(&u, T_STEPS);
        CHECK(learner_is(&u, end, m), "%s: goes on differently", name);

        /* the same trainer back to the beginning, and on to the same end */
        jem_archive *b = jem_archive_parse(ctx, zero, k);
        CHECK(jem_net_load(u.net, b) == JEM_OK && jem_trainer_from_archive(u.tr, b) == JEM_OK &&
              learner_is(&u, zero, k), "%s: %s", name, jem_error(ctx));
        learner_steps(&u, 2 * T_STEPS);
        CHECK(learner_is(&u, end, m), "%s: not the same end", name);

        for (int other = 0; other < T_KINDS; other++) check_other_trainer(ctx, kind, other, a);
        jem_archive_free(a);
        jem_archive_free(b);
        jem_release(ctx, zero);
        jem_release(ctx, middle);
        jem_release(ctx, end);
        learner_end(&t);
        learner_end(&u);
        CHECK(jem_ok(ctx), "%s: %s", name, jem_error(ctx));
        close_ctx(ctx, &c, name);
    }
}

/* A state of one number may have any dtype, but must be one that training writes. */
static void test_one_number_state(void) {
    counter c;
    jem_ctx *ctx = open_ctx(&c);
    jem_mlp_desc m = jem_mlp_desc_default();
    m.channels = 2;
    m.height = m.width = m.classes = 1;
    jem_train_desc d = jem_train_desc_default();
    d.weights.cd = 0;
    jem_net *net = jem_mlp_create(ctx, &m, 3);
    jem_trainer *tr = jem_trainer_create(net, &d);
    jem_archive *whole = jem_archive_create(ctx);
    jem_trainer_to_archive(tr, whole);
    for (int32_t number = -5; number <= 5; number += 10) {
        jem_archive *a = jem_archive_create(ctx);
        for (int k = 0; k < jem_archive_count(whole); k++) {
            const jem_entry *e = jem_archive_at(whole, k);
            const int it = !strcmp(e->name, "optim.v.class_output.bias");
            jem_archive_add(a, e->name, it ? JEM_DTYPE_I32 : e->dtype, e->ndim, e->shape,
                            it ? (const void *)&number : e->data);
        }
        const jem_status s = jem_trainer_from_archive(tr, a);
        CHECK(number > 0 ? s == JEM_OK : s == JEM_BAD_FILE && says(ctx, "out of range"),
              "a second moment of %d: %s", (int)number, jem_error(ctx));
        jem_archive_free(a);
    }
    jem_archive_free(whole);
    jem_trainer_free(tr);
    jem_net_free(net);
    close_ctx(ctx, &c, "a state of one number");
}

/* Copies a checkpoint, but for one entry, which is left out (0), changed in dtype (1, 6), shape (2)
   or values. Sets found if it was there. */
static jem_archive *spoiled(jem_ctx *ctx, const jem_archive *whole, const char *entry, int what,
                            int *found) {
    static const float zeros[4096] = { 0 };
    static const float negative[4096] = { 0, 1, -1 };
    static const int32_t many[4096] = { 0, -1, INT32_MAX };
    static const float huge[4096] = { 0, 1, -3e38f };
    jem_archive *a = jem_archive_create(ctx);
    static int64_t state[9];
    *found = 0;
    for (int k = 0; k < jem_archive_count(whole); k++) {
        const jem_entry *e = jem_archive_at(whole, k);
        jem_dtype dtype = e->dtype;
        const void *data = e->data;
        int64_t shape[8];
        memcpy(shape, e->shape, sizeof shape);
        if (!strcmp(e->name, entry)) {
            *found = 1;
            if (what == 0) continue;
            if (what == 1) dtype = JEM_DTYPE_F32;
            if (what == 6) dtype = JEM_DTYPE_I32;
            if (what == 2) shape[0]++;
            if (what <= 2) data = zeros;
            if (what == 8) data = negative;
            if (what == 9) data = many;
            if (what == 10) data = huge;
            if (what == 3 || what == 4 || what == 5 || what == 7) {
                memcpy(state, data, e->bytes);
                if (what == 3) state[0] = INT64_MIN;
                if (what == 4) state[2] = 1;
                if (what == 5) state[1] = INT64_MAX;
                if (what == 7) state[0] = INT32_MAX;
                data = state;
            }
        }
        jem_archive_add(a, e->name, dtype, e->ndim, shape, data);
    }
    return a;
}

/* Checks an archive for which there is no memory at the k-th time. */
static void check_no_memory(learner *t, counter *c) {
    jem_ctx *ctx = t->net->ctx;
    long k = 1;
    for (int done = 0; !done && k < 1000; k++) {
        jem_archive *a = jem_archive_create(ctx);
        c->fail_at = c->calls + k;
        done = jem_trainer_to_archive(t->tr, a) == JEM_OK;
        c->fail_at = 0;
        CHECK(done || jem_error_status(ctx) == JEM_NO_MEMORY, "allocation %ld: %s", k,
              jem_error(ctx));
        jem_clear_error(ctx);
        jem_archive_free(a);
    }
    CHECK(k > 20 && k < 1000, "%ld allocations", k);
}

/* Checks archives of another context. */
static void check_elsewhere(learner *t, const void *bytes, size_t n) {
    jem_ctx *ctx = t->net->ctx;
    counter d;
    jem_ctx *elsewhere = open_ctx(&d);
    jem_archive *theirs = jem_archive_parse(elsewhere, bytes, n);
    jem_archive *none = jem_archive_create(elsewhere);
    CHECK(jem_net_load(t->net, none) == JEM_BAD_FILE && says(ctx, "lacks"), "net");
    CHECK(jem_trainer_from_archive(t->tr, none) == JEM_BAD_FILE && says(ctx, "lacks"), "trainer");
    CHECK(jem_net_load(t->net, theirs) == JEM_OK &&
          jem_trainer_from_archive(t->tr, theirs) == JEM_OK && learner_is(t, bytes, n), "%s",
          jem_error(ctx));
    CHECK(jem_ok(elsewhere), "%s", jem_error(elsewhere));
    jem_archive_free(theirs);
    jem_archive_free(none);
    close_ctx(elsewhere, &d, "elsewhere");
}

/* Makes updates of the user's own loop: cross-entropy of images that depend on the update alone. */
static void own_steps(jem_net *net, jem_optim *o, int from, int to) {
    const int labels[T_IMAGES] = { 0, 1, 2, 0, 1, 2 };
    float x[T_IMAGES * 48];
    jem_ctx *ctx = net->ctx;
    for (int i = from; i < to; i++) {
        jem_rng rng = jem_rng_seed(100 + (uint64_t)i);
        jem_fill_uniform(ctx, &rng, x, T_IMAGES * 48, -1, 1);
        jem_tensor *f = jem_forward(net, jem_input(ctx, x, T_IMAGES, 3, 4, 4), 1);
        jem_zero_grad(net);
        jem_backward(jem_cross_entropy(ctx, f, labels));
        CHECK(jem_optim_step(o, .01f, NULL) == JEM_OK, "%s", jem_error(ctx));
    }
}

/* Returns a file of a network and its optimiser. */
static void *own_bytes(jem_net *net, jem_optim *o, size_t *n) {
    jem_archive *a = jem_archive_create(net->ctx);
    CHECK(jem_net_to_archive(net, a) == JEM_OK && jem_optim_to_archive(o, a) == JEM_OK, "%s",
          jem_error(net->ctx));
    void *bytes = jem_archive_to_memory(a, n);
    jem_archive_free(a);
    return bytes;
}
static int own_is(jem_net *net, jem_optim *o, const void *bytes, size_t n) {
    size_t mine;
    void *now = own_bytes(net, o, &mine);
    const int same = now && bytes && mine == n && !memcmp(now, bytes, n);
    jem_release(net->ctx, now);
    return same;
}

/* Checks that optimisers of other kinds, and of other parameters, refuse a file. */
static void check_other_optim(jem_net *net, int kind, const jem_archive *a) {
    static const char *const names[3] = { "Adam", "SGD", "Muon" };
    char message[64];
    for (int other = 0; other < 3; other++) {
        jem_optim_desc d = jem_optim_desc_default();
        d.kind = (jem_optimizer)other;
        jem_optim *o = jem_optim_create(net, &d);
        size_t n;
        void *bytes = own_bytes(net, o, &n);
        snprintf(message, sizeof message, "its optimiser is %s, not %s", names[kind],
                 names[other]);
        if (other == kind) snprintf(message, sizeof message, "\"optim.state\": number 1 is 1");
        CHECK(jem_optim_from_archive(o, a) == JEM_BAD_FILE && says(net->ctx, message), "%s",
              message);
        CHECK(own_is(net, o, bytes, n), "%s: it changed", names[other]);
        jem_release(net->ctx, bytes);
        jem_optim_free(o);
    }
}

/* Optimisers in files: the user's own loop continues with the same bits, whether trained weights or
   averages were in the network, and a damaged file changes nothing. */
static void test_optimisers(void) {
    counter c;
    for (int kind = 0; kind < 6; kind++) {
        jem_ctx *ctx = open_ctx(&c);
        jem_optim_desc d = jem_optim_desc_default();
        d.kind = (jem_optimizer)(kind % 3);
        d.ema = .9f;
        size_t n, m;
        jem_net *net = learner_begin_net(ctx, 0);
        jem_optim *o = jem_optim_create(net, &d);
        own_steps(net, o, 0, T_STEPS);
        jem_optim_use_average(o, kind >= 3);
        void *middle = own_bytes(net, o, &n);
        own_steps(net, o, T_STEPS, 2 * T_STEPS);
        void *end = own_bytes(net, o, &m);
        CHECK(!own_is(net, o, middle, n), "training changes something");

        jem_archive *a = jem_archive_parse(ctx, middle, n);
        jem_net *loaded = jem_net_from_archive(ctx, a);
        jem_optim *again = jem_optim_create(loaded, &d);
        CHECK(jem_optim_from_archive(again, a) == JEM_OK, "kind %d: %s", kind, jem_error(ctx));
        CHECK(own_is(loaded, again, middle, n), "kind %d: as it was", kind);
        own_steps(loaded, again, T_STEPS, 2 * T_STEPS);
        CHECK(own_is(loaded, again, end, m), "kind %d: goes on differently", kind);

        int found = 0;
        for (int what = 0; what < 4; what++) {
            jem_archive *bad = spoiled(ctx, a, what ? "optim.state" : "optim.m.f.conv1.weight",
                                       what, &found);
            CHECK(found && jem_optim_from_archive(again, bad) != JEM_OK &&
                  own_is(loaded, again, end, m), "damage %d", what);
            jem_clear_error(ctx);
            jem_archive_free(bad);
        }
        if (kind >= 3) check_other_optim(loaded, kind - 3, a);
        CHECK(jem_optim_from_archive(o, NULL) && says(ctx, "the archive is NULL"), "NULL");
        CHECK(jem_optim_to_archive(o, NULL) && says(ctx, "the archive is NULL"), "NULL");
        CHECK(jem_optim_from_archive(NULL, a) && says(ctx, "the optimiser is NULL"), "NULL");
        CHECK(jem_optim_to_archive(NULL, a) && says(ctx, "the optimiser is NULL"), "NULL");
        jem_archive_free(a);
        jem_release(ctx, middle);
        jem_release(ctx, end);
        jem_optim_free(o);
        jem_optim_free(again);
        jem_net_free(net);
        jem_net_free(loaded);
        CHECK(jem_ok(ctx), "kind %d: %s", kind, jem_error(ctx));
        close_ctx(ctx, &c, "optimisers");
    }
}

/* Checkpoints of others: wrong in one entry each. */
static void test_trainer_files(void) {
    counter c;
    jem_ctx *ctx = open_ctx(&c);
    learner t = learner_begin(ctx, 0, NULL);
    learner_steps(&t, T_STEPS);
    size_t n;
    void *bytes = learner_bytes(&t, &n);
    jem_archive *whole = jem_archive_parse(ctx, bytes, n);
    static const struct { const char *entry; int what; const char *message; } cases[] = {
        { "trainer.state", 0, "lacks \"trainer.state\"" },
        { "trainer.state", 1, "\"trainer.state\" is F32 (9) in the file, I64 (9) in the trainer" },
        { "trainer.state", 2, "I64 (10) in the file, I64 (9) in the trainer" },
        { "trainer.state", 3, "\"trainer.state\": number 0 is -" },
        { "trainer.state", 4, "number 2 is 1" },
        { "trainer.state", 5, "number 1 is 9" },
        { "replay_buffer", 0, "lacks \"replay_buffer\"" },
        { "replay_buffer", 2, "(13,3,4,4) in the file, F32 (12,3,4,4) in the trainer" },
        { "replay_visits", 1, "is F32 (12) in the file, I32 (12) in the trainer" },
        { "replay_visits", 2, "(13) in the file" },
        { "optim.m.f.conv1.weight", 0, "lacks" }, { "optim.v.f.conv1.bias", 2, "(17) in" },
        { "optim.v.class_output.weight", 6, "is I32 (3,64) in the file" },
        { "trainer.state", 7, "number 0 is 2147483647" },
        { "optim.v.class_output.weight", 8, "out of range" },
        { "optim.m.class_output.weight", 10, "out of range" },
        { "optim.state", 1, "\"optim.state\" is F32 (3) in the file, I64 (3) in the trainer" },
        { "optim.state", 3, "\"optim.state\": number 0 is -" },
        { "optim.state", 4, "its optimiser is SGD, not Adam" },
        { "optim.state", 5, "\"optim.state\": number 1 is 9" },
        { "replay_visits", 9, "out of range" }
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int found = 0;
        jem_archive *a = spoiled(ctx, whole, cases[i].entry, cases[i].what, &found);
        CHECK(found && jem_ok(ctx), "case %d: %s", (int)i, jem_error(ctx));
        CHECK(jem_trainer_from_archive(t.tr, a) != JEM_OK && says(ctx, cases[i].message), "case %d",
              (int)i);
        CHECK(learner_is(&t, bytes, n), "case %d: it changed something", (int)i);
        jem_archive_free(a);
    }
    jem_archive *network = jem_archive_create(ctx);
    CHECK(!jem_net_to_archive(t.tr->net, network) && jem_trainer_from_archive(t.tr, network) &&
          says(ctx, "lacks \"trainer.state\""), "a network alone: %s", jem_error(ctx));
    jem_archive_free(network);
    CHECK(jem_trainer_from_archive(t.tr, NULL) && says(ctx, "the archive is NULL"), "NULL");
    CHECK(jem_trainer_to_archive(t.tr, NULL) && says(ctx, "the archive is NULL"), "NULL");
    CHECK(jem_trainer_from_archive(NULL, whole) && says(ctx, "the trainer is NULL"), "NULL");
    CHECK(jem_trainer_to_archive(NULL, whole) && says(ctx, "the trainer is NULL"), "NULL");
    CHECK(jem_trainer_to_archive(t.tr, whole) == JEM_BAD_ARGUMENT && says(ctx, "already exists"),
          "twice into one archive");
    check_no_memory(&t, &c);
    check_elsewhere(&t, bytes, n);
    jem_archive_free(whole);
    jem_release(ctx, bytes);
    learner_end(&t);
    close_ctx(ctx, &c, "trainer files");
}

static jem_tensor *identity(jem_net *net, jem_tensor *x, int training, void *user) {
    (void)net;
    (void)training;
    (void)user;
    return x;
}

/* Checks whole numbers where the network has others, and the network's own arrays. */
static void check_arrays(jem_net *net) {
    jem_ctx *ctx = net->ctx;
    const float f = 3;
    const int32_t ii[2] = { 1, 2 };
    const int64_t pairs[1] = { 2 };
    jem_archive *a = jem_archive_create(ctx);
    jem_archive_add(a, "flag", JEM_DTYPE_F32, 0, NULL, &f);
    jem_archive_add(a, "pair", JEM_DTYPE_I32, 1, pairs, ii);
    CHECK(jem_net_load(net, a) == JEM_BAD_FILE, "integers");
    CHECK(says(ctx, "\"pair\" is I32 (2) in the file"), "why");
    jem_archive_free(a);
    a = jem_archive_create(ctx);                   /* from its own arrays */
    CHECK(!jem_net_to_archive(net, a) && !jem_net_load(net, a), "%s", jem_error(ctx));
    CHECK(jem_net_to_archive(net, a) == JEM_BAD_ARGUMENT && says(ctx, "already"), "twice");
    jem_archive *other = jem_archive_create(ctx);
    const float kept = net->params->value[0];
    net->params->value[0] = NAN;
    CHECK(jem_net_to_archive(net, other) == JEM_DIVERGED && says(ctx, net->params->name), "NaN");
    net->params->value[0] = kept;
    jem_archive_free(other);
    jem_archive_free(a);
}

/* PyTorch keeps flags and counts as integers, with shape () or (1); we have floats of shape (1). */
static void test_flags(void) {
    counter c;
    jem_ctx *ctx = open_ctx(&c);
    jem_net *net = jem_net_create(ctx, identity, NULL, 0, 2, 1, 1, 2, 1);
    const int one[1] = { 1 };
    const int two[1] = { 2 };
    jem_param *flag = jem_net_param(net, "flag", 1, one, 0);
    jem_param *pair = jem_net_param(net, "pair", 1, two, 1);
    CHECK(flag && pair, "%s", jem_error(ctx));
    const float f = 3;
    const float ff[2] = { 5, 6 };
    const int32_t i = -4;
    const int64_t l = 7;
    const int64_t sizes[2] = { 1, 1 };
    const int64_t pairs[1] = { 2 };
    const unsigned char u = 200;
    const void *data[4];
    const float want[4] = { 3, -4, 7, 200 };
    data[JEM_DTYPE_F32] = &f;
    data[JEM_DTYPE_I32] = &i;
    data[JEM_DTYPE_I64] = &l;
    data[JEM_DTYPE_U8] = &u;
    for (int d = 0; flag && pair && d < 4; d++)
        for (int ndim = 0; ndim <= 2; ndim++) {
            jem_archive *a = jem_archive_create(ctx);
            jem_archive_add(a, "flag", (jem_dtype)d, ndim, sizes, data[d]);
            jem_archive_add(a, "pair", JEM_DTYPE_F32, 1, pairs, ff);
            jem_archive_add(a, "num_batches_tracked", JEM_DTYPE_I64, 0, NULL, &l);   /* ignored */
            flag->value[0] = pair->value[0] = -1;
            const jem_status status = jem_net_load(net, a);
            if (ndim < 2) {
                CHECK(status == JEM_OK && flag->value[0] == want[d] && pair->value[1] == 6.0f,
                      "dtype %d, ndim %d: %s", d, ndim, jem_error(ctx));
            } else {
                CHECK(status == JEM_BAD_SHAPE && pair->value[0] == -1.0f, "dtype %d", d);
                CHECK(says(ctx, " (1,1) in the file, F32 (1) in the network"), "why");
            }
            jem_archive_free(a);
        }
    check_arrays(net);
    jem_net_free(net);
    close_ctx(ctx, &c, "flags");
}

/* ---- no memory ------------------------------------------------------------------------------- */

/* A stage of a life of files; 1 if it went through to the end. Reading stages find their file. */
enum { PACK, WRITE, READ, SAVE_MLP, LOAD_MLP, SAVE_WRN, LOAD_WRN, STAGES };
static const char *const stage_files[STAGES] = { "", "a", "a", "mlp", "mlp", "wrn", "wrn" };

static int live(jem_ctx *ctx, int stage) {
    static unsigned char data[4096];
    jem_archive *a = NULL;
    jem_archive *b = NULL;
    jem_net *net = NULL;
    void *bytes = NULL;
    size_t n;
    int whole = 0;
    place(stage_files[stage]);
    if (stage == PACK || stage == WRITE) a = motley(ctx, data);
    if (stage == PACK && (bytes = jem_archive_to_memory(a, &n)) != NULL)
        whole = (b = jem_archive_parse(ctx, bytes, n)) != NULL;
    if (stage == WRITE) whole = jem_archive_write(a, path) == JEM_OK;
    if (stage == READ) whole = (a = jem_archive_read(ctx, path)) != NULL;
    if (stage == SAVE_MLP || stage == SAVE_WRN) {
        net = make_net(ctx, stage == SAVE_MLP ? 0 : 6, 3);
        whole = jem_save(net, path) == JEM_OK;
    }
    if (stage == LOAD_MLP || stage == LOAD_WRN) whole = (net = jem_load(ctx, path)) != NULL;
    jem_release(ctx, bytes);
    jem_net_free(net);
    jem_archive_free(a);
    jem_archive_free(b);
    return whole;
}

/* The k-th allocation fails, alone or with all after it: for every k until it does no harm. */
static void test_no_memory(void) {
    counter c;
    for (int stage = 0; stage < STAGES; stage++)
        for (int on = 0; on < 2; on++) {
            long k = 1;
            for (int whole = 0; !whole && k < 100000; k++) {
                jem_ctx *ctx = open_ctx(&c);
                c.fail_at = c.calls + k;
                c.fail_on = on;
                whole = live(ctx, stage);
                const int reached = c.calls >= c.fail_at;
                CHECK(whole == !reached, "stage %d, allocation %ld: %s", stage, k, jem_error(ctx));
                CHECK(whole || jem_error_status(ctx) == JEM_NO_MEMORY,
                      "stage %d, allocation %ld: %s", stage, k, jem_error(ctx));
                CHECK(!leftovers(), "stage %d, allocation %ld: a file is left", stage, k);
                c.fail_at = 0;
                close_ctx(ctx, &c, "no memory");
            }
            CHECK(k > 20 && k < 100000, "stage %d: %ld allocations", stage, k);
        }
    for (int stage = WRITE; stage < STAGES; stage += 2) {
        place(stage_files[stage]);
        CHECK(remove(path) == 0, "%s", path);
    }
}

int main(int argc, char **argv) {
    static const test_case all[] = {
        TEST(test_round_trip), TEST(test_many_entries), TEST(test_by_hand), TEST(test_foreign),
        TEST(test_foreign_wide), TEST(test_skipped), TEST(test_headers), TEST(test_header_text),
        TEST(test_header_lengths), TEST(test_many_texts), TEST(test_damage), TEST(test_rounded),
        TEST(test_kept),
        TEST(test_arguments), TEST(test_refused_entries), TEST(test_after_an_error),
        TEST(test_huge_archive), TEST(test_read_failures), TEST(test_two_writers),
        TEST(test_links), TEST(test_points), TEST(test_numbers), TEST(test_descs),
        TEST(test_agreement), TEST(test_texts), TEST(test_nets), TEST(test_trainers),
        TEST(test_trainer_files), TEST(test_optimisers), TEST(test_one_number_state),
        TEST(test_flags), TEST(test_no_memory), TEST(test_file), TEST(test_unwritable),
        TEST(test_failing_calls),
        TEST(test_harmless_failures)               /* last: it changes the folder */
    };
    const int first = dup(0);                      /* the next to be given: again, at the end */
    close(first);
    const char *base = getenv("TMPDIR");
    if (!base || !*base) base = "/tmp";
    test_begin(argc, argv);
    snprintf(folder, sizeof folder, "%.80s/jem_test_io_%ld", base, (long)getpid());
    CHECK(mkdir(folder, 0700) == 0, "%s cannot be made", folder);
    test_run(all, TEST_COUNT(all), NULL);
    place("motley.safetensors");
    remove(path);
    CHECK(chdir("/") == 0 && rmdir(folder) == 0, "%s is not empty", folder);
    const int last = dup(0);
    CHECK(last == first, "%d files are left open", last - first);
    return test_report();
}
