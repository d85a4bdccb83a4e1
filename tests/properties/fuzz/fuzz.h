/* What the fuzz targets share. Each target is one file with LLVMFuzzerTestOneInput, for clang's
   libFuzzer (fuzz.sh builds and runs them; `make fuzz` for long). Without it, compiled with
   -DFUZZ_ALONE, a target runs the files and folders named as its arguments: so every `make test`
   runs the corpus, found crashes among it, with any compiler. */
#ifndef FUZZ_H
#define FUZZ_H

#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *in, size_t n);
size_t LLVMFuzzerCustomMutator(uint8_t *in, size_t n, size_t most, unsigned seed);
#ifdef FUZZ_ALONE
static inline size_t LLVMFuzzerMutate(uint8_t *in, size_t n, size_t most) {    /* of libFuzzer */
    if (n < most) {
        in[n] = (uint8_t)n;
        n++;
    }
    return n;
}
#else
size_t LLVMFuzzerMutate(uint8_t *in, size_t n, size_t most);
#endif

/* What must never be, whatever the input: a crash that the fuzzer keeps. */
#define FUZZ_CHECK(condition) \
    ((condition) ? (void)0 \
                 : (fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #condition), abort()))

static inline size_t fuzz_least(size_t a, size_t b) { return a < b ? a : b; }

/* ---- files, in memory where the system has such a folder ---- */

static char fuzz_folder[64];
static char fuzz_names[16][128];                   /* what has been written there */
static int fuzz_files;

static inline void fuzz_clean(void) {
    for (int i = 0; i < fuzz_files; i++) remove(fuzz_names[i]);
    rmdir(fuzz_folder);
}
static inline const char *fuzz_place(void) {
    if (*fuzz_folder) return fuzz_folder;
    const int memory = access("/dev/shm", W_OK) == 0;
    snprintf(fuzz_folder, sizeof fuzz_folder, "%s/jem_fuzz_%ld", memory ? "/dev/shm" : "/tmp",
             (long)getpid());
    FUZZ_CHECK(mkdir(fuzz_folder, 0700) == 0);
    atexit(fuzz_clean);
    return fuzz_folder;
}
static inline const char *fuzz_put(const char *name, const void *bytes, size_t n) {
    char path[128];
    int i = 0;
    snprintf(path, sizeof path, "%.63s/%.60s", fuzz_place(), name);
    while (i < fuzz_files && strcmp(fuzz_names[i], path)) i++;
    if (i == fuzz_files) strcpy(fuzz_names[fuzz_files++], path);
    FILE *f = fopen(path, "wb");
    FUZZ_CHECK(f && fwrite(bytes, 1, n, f) == n && !fclose(f));
    return fuzz_names[i];
}

/* ---- memory: a limit, and no leaks ---- */

static struct { size_t held, most; } fuzz_memory = { 0, 64u << 20 };
static inline void *fuzz_allocate(void *user, size_t bytes) {
    (void)user;
    if (bytes > fuzz_memory.most - fuzz_memory.held) return NULL;
    size_t *at = (size_t *)malloc(bytes + 16);
    if (!at) return NULL;
    *at = bytes;
    fuzz_memory.held += bytes;
    return (char *)at + 16;
}
static inline void fuzz_release(void *user, void *at) {
    (void)user;
    size_t *block = (size_t *)(void *)((char *)at - 16);
    fuzz_memory.held -= *block;
    free(block);
}
#ifdef JEM_H
static inline jem_ctx *fuzz_ctx(void) {
    jem_ctx_desc d;
    memset(&d, 0, sizeof d);
    d.threads = 1;
    d.allocate = fuzz_allocate;
    d.release = fuzz_release;
    jem_ctx *ctx = jem_ctx_create(&d);
    FUZZ_CHECK(ctx != NULL);
    return ctx;
}
static inline void fuzz_end(jem_ctx *ctx) {
    jem_ctx_free(ctx);
    FUZZ_CHECK(fuzz_memory.held == 0);
}
#endif

/* ---- without libFuzzer ---- */

#ifdef FUZZ_ALONE
static int fuzz_runs;
static inline void fuzz_run(const char *path) {
    struct stat s;
    if (stat(path, &s)) return;
    if (S_ISDIR(s.st_mode)) {
        DIR *d = opendir(path);
        for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
            char name[1024];
            snprintf(name, sizeof name, "%.700s/%.300s", path, e->d_name);
            if (e->d_name[0] != '.') fuzz_run(name);
        }
        if (d) closedir(d);
        return;
    }
    const size_t n = (size_t)s.st_size;
    uint8_t *bytes = (uint8_t *)malloc(n ? n : 1); /* no longer: sanitizers see steps beyond */
    FILE *f = fopen(path, "rb");
    FUZZ_CHECK(bytes && f && fread(bytes, 1, n, f) == n);
    fclose(f);
    LLVMFuzzerTestOneInput(bytes, n);
    free(bytes);
    fuzz_runs++;
}
int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) fuzz_run(argv[i]);
    printf("%d inputs\n", fuzz_runs);
    return fuzz_runs == 0;
}
#endif

#endif
