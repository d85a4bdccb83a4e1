/* Ten chains of SGLD on the MNIST model: steps per second. `make bench-wasm` compiles this
   natively and for WebAssembly, with simd128 and without; tools/bench_wasm.js calls it under node
   and in a browser.

       build/bench_wasm [SECONDS]      natively, in one thread

   For WebAssembly: no main, no file, no import; the page supplies the model's bytes and the clock.
   */
#ifdef __wasm__
#define JEM_NO_STDIO
#elif !defined(_POSIX_C_SOURCE)
#define _POSIX_C_SOURCE 200112L                    /* clock_gettime */
#endif
#define JEM_IMPLEMENTATION
#include "jem.h"
#ifndef __wasm__
#include "tools/support/bench.h"
#endif

enum { CHAINS = 10, PIXELS = 28 * 28 };
static jem_ctx *ctx;
static jem_net *net;
static jem_tensor *x;
static jem_rng rng;

void *bench_room(size_t bytes);
const char *bench_open(const void *model, size_t bytes);
const char *bench_step(int steps);

void *bench_room(size_t bytes) { return malloc(bytes); }

/* Takes a safetensors file in memory. Returns an error, or "". */
const char *bench_open(const void *model, size_t bytes) {
    static float noise[CHAINS * PIXELS];
    jem_ctx_desc how;
    memset(&how, 0, sizeof how);
    how.threads = 1;
    ctx = jem_ctx_create(&how);
    jem_archive *a = jem_archive_parse(ctx, model, bytes);
    net = jem_net_from_archive(ctx, a);
    jem_archive_free(a);
    rng = jem_rng_seed(1);
    jem_fill_uniform(ctx, &rng, noise, CHAINS * PIXELS, -1, 1);
    x = jem_input(ctx, noise, CHAINS, 1, 28, 28);
    return jem_error(ctx);
}

const char *bench_step(int steps) {
    jem_sgld_desc walk = jem_sgld_desc_default();
    walk.steps = steps;
    jem_sgld(ctx, jem_logp, net, x, &walk, &rng);
    return jem_error(ctx);
}

#ifndef __wasm__
int main(int argc, char **argv) {
    static unsigned char bytes[1 << 20];
    const double seconds = argc > 1 ? atof(argv[1]) : 3;
    FILE *f = fopen("examples/models/mnist.safetensors", "rb");
    const size_t size = f ? fread(bytes, 1, sizeof bytes, f) : 0;
    if (f) fclose(f);
    const char *wrong = bench_open(bytes, size);
    if (!*wrong) wrong = bench_step(5);
    double best = 0;
    double from = bench_now();
    double done = 0;
    for (double now = from; !*wrong && now < from + seconds; done += 5) {
        wrong = bench_step(5);
        const double then = now;
        now = bench_now();
        if (5 / (now - then) > best) best = 5 / (now - then);
    }
    if (*wrong) { fprintf(stderr, "%s\n", wrong); return 1; }
    printf("  %-32s %7.1f %7.1f\n", jem_isa_name(jem_ctx_isa(ctx)), done / (bench_now() - from),
           best);
    jem_net_free(net);
    jem_ctx_free(ctx);
    return 0;
}
#endif
