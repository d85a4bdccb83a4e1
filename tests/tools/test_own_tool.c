/* The command line with a custom network, as examples/README.md builds it. */
#define main jem_main
#include "tools/cli/jem.c"
#undef main

#include "tools/cli/memory.h"
#include "tests/support/test.h"

static const char *const path = "build/own_tool.safetensors";

/* Computes logits (n,10,1,1) from images (n,1,28,28). */
static jem_tensor *forward(jem_net *net, jem_tensor *x, int training, void *user) {
    return jem_apply((const jem_layer *)user, jem_flatten(net->ctx, x), training);
}

static jem_net *construct(jem_ctx *ctx, const jem_archive *file, void *user) {
    (void)file;
    (void)user;
    jem_net *net = jem_net_create(ctx, forward, NULL, sizeof(jem_layer), 1, 28, 28, 10, 1);
    if (!net) return NULL;
    *(jem_layer *)net->user = jem_linear_layer(net, "logits", 784, 10);
    jem_net_set_kind(net, "own_tool");
    return net;
}

static void add_own(jem_ctx *ctx) { jem_register_net(ctx, "own_tool", construct, NULL); }

/* Runs a command; returns its exit status. */
static int run(const char *command, const char *word) {
    char *argv[5];
    char words[4][200];
    snprintf(words[0], sizeof words[0], "jem");
    snprintf(words[1], sizeof words[1], "%s", command);
    snprintf(words[2], sizeof words[2], "%s", path);
    snprintf(words[3], sizeof words[3], "%s", word);
    for (int i = 0; i < 4; i++) argv[i] = words[i];
    argv[4] = NULL;
    return jem_main(*word ? 4 : 3, argv);
}

int main(void) {
    jem_ctx *ctx = jem_ctx_create(NULL);
    jem_net *net = construct(ctx, NULL, NULL);
    CHECK(net && jem_save(net, path) == JEM_OK, "%s", jem_error(ctx));
    jem_net_free(net);
    jem_ctx_free(ctx);

    printf("a kind that is not registered\n");
    fflush(stdout);
    CHECK(run("info", "") == 0, "info needs no network");
    CHECK(run("classify", "examples/data/seven.png") != 0, "classify needs it");

    printf("the same, registered\n");
    fflush(stdout);
    on_context = add_own;
    CHECK(run("classify", "examples/data/seven.png") == 0, "classify");
    CHECK(run("sample", "--typo") == 2, "options are checked as before");
    remove(path);
    return test_report();
}
