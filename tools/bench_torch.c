/* jem.h's side of `make bench-torch` and `make bench-peers`: executes the requests of
   tools/bench_torch.py and bench_peers.py, a line in, a line out, so that the two can alternate.

       WHAT NET BATCH THREADS ISA PRECISION ARGUMENT      for example
       sgld wrn-16-2 64 2 avx2 fast 3                     ok 91.2

   NET is wrn-DEPTH-WIDEN, or a file of a network.

   forward sgld update iteration one-image one-image-sgld
             milliseconds, the mean of ARGUMENT runs (of several; one more runs before, untimed)
   memory    growth of the resident memory in MB at the peak of a chain of ARGUMENT steps, in a
             separate context
   weights   the network, written to the file ARGUMENT
   answers   its results for its images, to the same file, for comparison by the other side
   hello     the best instruction set; whether threads are compiled in; the precisions
   close     frees everything

   Networks are kept until `close`, with their packed weights. A failed request is answered by its
   error. */
#if !defined(_POSIX_C_SOURCE)
#define _POSIX_C_SOURCE 200112L                    /* clock_gettime */
#endif
#define JEM_IMPLEMENTATION
#include "jem.h"
#include "tools/support/bench.h"

enum { SUBJECTS = 32, CHAIN = 20 };

typedef struct request {
    char what[24], net[96], isa[24], precision[24], argument[256];
    int batch, threads;
} request;

static void run(subject *s, const char *what) {
    float loss, norm;
    jem_answer answer;
    if (!strcmp(what, "one-image")) jem_classify(s->net, s->data, 1, &answer);
    if (!strcmp(what, "forward")) jem_logits(s->net, s->data, s->n, s->logits);
    if (strstr(what, "sgld")) subject_sgld(s, 1);
    if (!strcmp(what, "iteration")) subject_sgld(s, CHAIN);
    if (!strcmp(what, "update") || !strcmp(what, "iteration")) subject_update(s, 0, &loss, &norm);
}

/* Returns seconds: of processor time, if the environment has PROCESSOR_TIME. */
static double clock_now(void) {
    if (getenv("PROCESSOR_TIME")) return (double)clock() / CLOCKS_PER_SEC;
    return bench_now();
}

static double milliseconds(subject *s, const char *what, int runs) {
    if (runs > 1) run(s, what);
    const double start = clock_now();
    for (int i = 0; i < runs; i++) run(s, what);
    return 1e3 * (clock_now() - start) / runs;
}

/* The inputs, and four results: logits and d log p/dx of the chains, loss and gradient norm of an
   update. */
static void answers(subject *s, const char *path) {
    const jem_net *net = s->net;
    const ptrdiff_t size = (ptrdiff_t)s->n * net->channels * net->height * net->width;
    const int64_t images[4] = { s->n, net->channels, net->height, net->width };
    const int64_t table[2] = { s->n, net->classes };
    const int64_t two[1] = { 2 };
    float update[2] = { 0, 0 };
    float *x = (float *)malloc((size_t)size * sizeof *x);
    float *gradient = (float *)malloc((size_t)size * sizeof *gradient);
    float *logits = (float *)malloc((size_t)(s->n * net->classes) * sizeof *logits);
    jem_archive *a = jem_archive_create(s->ctx);
    if (!x || !gradient || !logits) jem_fail(s->ctx, JEM_NO_MEMORY, "no memory");
    else {
        const jem_mark mark = jem_begin(s->ctx);
        jem_tensor *y = jem_forward(s->net, s->x, 0);
        jem_read(s->x, x);
        jem_read(y, logits);
        jem_grad(jem_logp(s->ctx, s->x, s->net), s->x);
        jem_read_grad(s->x, gradient);
        jem_end(s->ctx, mark);
        subject_update(s, 0, &update[0], &update[1]);
    }
    jem_archive_add(a, "x", JEM_DTYPE_F32, 4, images, x);
    jem_archive_add(a, "data", JEM_DTYPE_F32, 4, images, s->data);
    jem_archive_add(a, "labels", JEM_DTYPE_I32, 1, images, s->labels);
    jem_archive_add(a, "logits", JEM_DTYPE_F32, 2, table, logits);
    jem_archive_add(a, "gradient", JEM_DTYPE_F32, 4, images, gradient);
    jem_archive_add(a, "update", JEM_DTYPE_F32, 1, two, update);
    jem_archive_write(a, path);
    jem_archive_free(a);
    free(x);
    free(gradient);
    free(logits);
}

/* Returns MB of touched pages, as counted by Linux; 0 elsewhere. */
static double resident(const char *key) {
    FILE *file = fopen("/proc/self/status", "r");
    char line[256];
    double kb = 0;
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, key, strlen(key))) kb = atof(line + strlen(key));
    if (file) fclose(file);
    return kb / 1024;
}
static double resident_from_here(void) {           /* the peak starts here as well */
    FILE *file = fopen("/proc/self/clear_refs", "w");
    if (file) {
        fputs("5", file);
        fclose(file);
    }
    return resident("VmRSS:");
}

static const char *find(subject *all, const request *r, subject **found) {
    char name[sizeof all->name];
    const struct bench_precision *p = bench_precisions;
    const jem_isa isa = bench_isa(r->isa);
    const int fresh = !strcmp(r->what, "memory") || !strcmp(r->what, "answers");
    while (p->name && strcmp(p->name, r->precision)) p++;
    if (!p->name) return "no such precision";
    if (isa > JEM_ISA_AMX) return "no such instruction set";
    if (r->batch < 1 || r->threads < 1) return "batch and threads are 1 or more";
    snprintf(name, sizeof name, "%.95s %.3d %.10s %.10s", r->net, r->threads, r->isa, r->precision);
    subject *s = all;                              /* the first slot is for networks used once */
    if (fresh) subject_close(s);
    else for (s = all + 1; s < all + SUBJECTS && s->ctx && strcmp(s->name, name); ) s++;
    if (s == all + SUBJECTS) return "too many networks: close";
    *found = s;
    if (!s->ctx) {
        const char *wrong = subject_open(s, r->net, r->threads, isa, p->precision);
        if (wrong) return wrong;
        snprintf(s->name, sizeof s->name, "%s", name);
    }
    return subject_batch(s, strncmp(r->what, "one-image", 9) ? r->batch : 1);
}

static void serve(subject *all, const request *r) {
    subject *s = NULL;
    if (!strcmp(r->what, "memory")) subject_close(all);
    const double before = resident_from_here();
    const char *wrong = find(all, r, &s);
    const int count = atoi(r->argument);
    const int file = !strcmp(r->what, "weights");
    double result = 0;
    if (!wrong) {
        if (!strcmp(r->what, "answers")) answers(s, r->argument);
        else if (file) jem_save(s->net, r->argument);
        else if (count < 1) wrong = "the number of runs must be 1 or more";
        else if (!strcmp(r->what, "memory")) {
            subject_sgld(s, count);
            result = before > 0 ? resident("VmHWM:") - before
                                : (double)jem_memory(s->ctx).peak / 1048576.0;
        } else result = milliseconds(s, r->what, count);
    }
    if (file) result = s ? (double)jem_net_size(s->net) : 0;
    if (!wrong && !jem_ok(s->ctx)) wrong = jem_error(s->ctx);
    if (wrong) printf("%s\n", wrong);
    else printf("ok %.*f\n", file ? 0 : 6, result);
    if (s && (wrong || s == all)) subject_close(s);
}

int main(void) {
    static subject all[SUBJECTS];
    static const char *const known[] = {
        "forward", "sgld", "update", "iteration", "one-image", "one-image-sgld", "memory",
        "weights", "answers"
    };
    char line[640];
    while (fgets(line, sizeof line, stdin)) {
        request r;
        memset(&r, 0, sizeof r);
        const int fields = sscanf(line, "%23s %95s %d %d %23s %23s %255s", r.what, r.net, &r.batch,
                                  &r.threads, r.isa, r.precision, r.argument);
        int is_known = 0;
        for (size_t i = 0; i < sizeof known / sizeof *known; i++)
            is_known |= !strcmp(r.what, known[i]);
        if (fields == 1 && !strcmp(r.what, "close")) {
            for (int i = 0; i < SUBJECTS; i++) subject_close(all + i);
            printf("ok\n");
        } else if (fields == 1 && !strcmp(r.what, "hello")) {
            jem_ctx *ctx = jem_ctx_create(NULL);
            printf("ok %s", ctx ? jem_isa_name(jem_ctx_isa(ctx)) : "none");
            jem_ctx_free(ctx);
#ifdef _OPENMP
            printf(" threads");
#else
            printf(" no-threads");
#endif
            for (const struct bench_precision *p = bench_precisions; p->name; p++)
                if (p->precision != JEM_PRECISION_BF16) printf(" %s", p->name);
                else if (bench_bf16(JEM_ISA_AVX512))
                    printf(" %s=%s", p->name, jem_isa_name(bench_bf16(JEM_ISA_AVX512)));
            printf("\n");
        } else if (fields == 7 && is_known) serve(all, &r);
        else printf("not understood\n");
        fflush(stdout);
    }
    for (int i = 0; i < SUBJECTS; i++) subject_close(all + i);
    return 0;
}
