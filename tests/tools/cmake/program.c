/* A user's program, as C and as C++: it saves a network, loads it and classifies a point. The macro
   changes nothing where the library is linked. */
#define JEM_IMPLEMENTATION
#include <jem.h>
#include <stdio.h>

#ifndef JEM_DECLARATIONS
#error "the target or jem.pc must say that the implementation is in the library"
#endif

int main(int argc, char **argv) {
    const float x[2] = { 0.5f, -0.5f };
    jem_answer answer;
    const char *path = "program.safetensors";
    if (argc > 1) path = argv[1];
    jem_ctx *ctx = jem_ctx_create(NULL);
    jem_mlp_desc shape = jem_mlp_desc_default();
    shape.channels = 2;
    shape.height = 1;
    shape.width = 1;
    shape.classes = 2;
    jem_net *net = jem_mlp_create(ctx, &shape, 1);
    jem_save(net, path);
    jem_net *again = jem_load(ctx, path);
    if (jem_classify(again, x, 1, &answer) == JEM_OK) printf("class %d\n", answer.label);
    else printf("%s\n", jem_error(ctx));
    const int failed = !jem_ok(ctx);
    jem_net_free(again);
    jem_net_free(net);
    jem_ctx_free(ctx);
    return failed;
}
