/* A checkpoint from anywhere, as `jem train --resume` takes it: into a network and a trainer, which
   then learn on. What is refused has changed nothing. */
#define JEM_IMPLEMENTATION
#include "jem.h"
#include "archive.h"

enum { SIZE = 2 * 3 * 3, BATCH = 4 };

static uint64_t hash(const jem_net *net) {
    uint64_t h = 1;
    for (const jem_param *p = net->params; p; p = p->next)
        for (ptrdiff_t i = 0; i < p->size; i++) {
            uint32_t bits;
            memcpy(&bits, p->value + i, sizeof bits);
            h = (h ^ bits) * 1099511628211u;
        }
    return h;
}
/* The trainer that tests/properties/fuzz/corpus/checkpoint is of. */
static jem_trainer *open_trainer(jem_ctx *ctx, jem_net **net) {
    jem_mlp_desc d = jem_mlp_desc_default();
    d.channels = 2;
    d.height = d.width = 3;
    d.classes = 3;
    d.layers = 1;
    d.widths[0] = 4;
    *net = jem_mlp_create(ctx, &d, 1);
    jem_train_desc t = jem_train_desc_default();
    t.buffer_size = 6;
    t.negatives = 2;
    t.sgld.steps = 1;
    t.optim.ema = .9f;
    return jem_trainer_create(*net, &t);
}

/* Returns the state of the trainer as a file in memory, or NULL without memory. */
static void *state(jem_ctx *ctx, jem_trainer *tr, size_t *size) {
    void *bytes = NULL;
    jem_archive *a = jem_archive_create(ctx);
    if (a && jem_trainer_to_archive(tr, a) == JEM_OK) bytes = jem_archive_to_memory(a, size);
    jem_archive_free(a);
    jem_clear_error(ctx);
    return bytes;
}

int LLVMFuzzerTestOneInput(const uint8_t *in, size_t n) {
    static const int labels[BATCH] = { 0, 1, 2, 1 };
    static float x[BATCH * SIZE];
    jem_ctx *ctx = fuzz_ctx();
    jem_net *net;
    jem_trainer *tr = open_trainer(ctx, &net);
    FUZZ_CHECK(tr != NULL);
    jem_archive *a = jem_archive_parse(ctx, in, n);
    if (a) {
        const uint64_t before = hash(net);
        if (jem_net_load(net, a) != JEM_OK) FUZZ_CHECK(before == hash(net));
        jem_clear_error(ctx);
        size_t size = 0;
        size_t size_now = 0;
        void *was = state(ctx, tr, &size);
        if (jem_trainer_from_archive(tr, a) != JEM_OK) {
            jem_clear_error(ctx);
            void *now = state(ctx, tr, &size_now);
            if (was && now) FUZZ_CHECK(size == size_now && !memcmp(was, now, size));
            jem_release(ctx, now);
        }
        jem_release(ctx, was);
        FUZZ_CHECK(jem_trainer_updates(tr) >= 0);
        jem_clear_error(ctx);
        jem_train_step(tr, x, labels, BATCH);
        jem_clear_error(ctx);
        jem_trainer_use_average(tr, 1);
        jem_trainer_use_average(tr, 0);
    }
    jem_archive_free(a);
    jem_trainer_free(tr);
    jem_net_free(net);
    fuzz_end(ctx);
    return 0;
}
