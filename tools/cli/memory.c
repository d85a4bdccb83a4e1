/* The memory of `jem`. */
#include "tools/cli/system.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cli/memory.h"
#include "tools/support/options.h"

memory_budget budget = { HUGE_VAL, 0, 0 };
typedef union block { double bytes; char room[64]; } block;        /* before each block: its size */

void limit_memory(int mb) {
    const double all = system_memory();
    budget.most = HUGE_VAL;
    if (mb) budget.most = mb * 1e6;
    else if (all > 0) budget.most = .75 * all;
}
void limit_data(data_desc *desc, int file_mb, int picture_mb) {
    desc->file_mb = file_mb;
    desc->picture_mb = picture_mb;
    desc->memory_mb = budget.most / 1e6;
}
int memory_has(double bytes) {
    if (budget.held + bytes <= budget.most) return 1;
    budget.hit = 1;
    return 0;
}
static void *limited_allocate(void *user, size_t bytes) {
    (void)user;
    if (!memory_has((double)bytes)) return NULL;
    if (bytes > SIZE_MAX - sizeof(block)) return NULL;
    block *b = (block *)malloc(sizeof *b + bytes);
    if (!b) return NULL;
    b->bytes = (double)bytes;
    budget.held += b->bytes;
    return b + 1;
}
static void limited_release(void *user, void *at) {
    block *b = (block *)at - 1;
    (void)user;
    budget.held -= b->bytes;
    free(b);
}
float *new_floats(double n) {
    const double bytes = fmax(n, 1) * (double)sizeof(float);
    if (bytes >= (double)PTRDIFF_MAX || !memory_has(bytes)) return NULL;
    return (float *)malloc((size_t)bytes);
}
const char *memory_hint(char text[80]) {
    *text = 0;
    if (budget.hit) snprintf(text, 80, " (%.0f MB may be used; --max-memory N allows N MB)",
                             budget.most / 1e6);
    budget.hit = 0;
    return text;
}

void (*on_context)(jem_ctx *ctx) = NULL;

jem_ctx *make_ctx(int threads, int precision) {
    jem_ctx_desc d;
    memset(&d, 0, sizeof d);
    d.allocate = limited_allocate;
    d.release = limited_release;
    d.threads = threads;
    d.precision = (jem_precision)precision;
    jem_ctx *ctx = jem_ctx_create(&d);
    if (ctx && jem_ctx_precision(ctx) != d.precision) {
        const char *why = "has no bf16 (AMX, AVX-512 BF16)";
        if (jem_isa_available(JEM_ISA_AVX512_BF16)) why = "is slower in bf16, without AMX";
        fprintf(stderr, "jem: this processor %s: --precision fast\n", why);
    }
    if (ctx && on_context) on_context(ctx);
    return ctx;
}
