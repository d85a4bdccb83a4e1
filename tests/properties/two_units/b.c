/* A file that only uses the library. */
#include "jem.h"
#include "jem.h"
#include "b.h"

int other_unit(jem_ctx *ctx)
{
    jem_rng rng = jem_rng_seed(1);
    jem_rng copy = rng;
    int same = jem_rng_u32(&rng) == jem_rng_u32(&copy);
    return !(same && jem_ok(ctx) && jem_isa_name(jem_ctx_isa(ctx))[0] != 0);
}
