/* The file that has the implementation; it may have met the header before, and may again. */
#include "jem.h"
#define JEM_IMPLEMENTATION
#include "jem.h"
#include "jem.h"
#include "b.h"

int main(void)
{
    jem_ctx *ctx = jem_ctx_create(NULL);
    int bad = !ctx || other_unit(ctx);
    jem_ctx_free(ctx);
    return bad;
}
