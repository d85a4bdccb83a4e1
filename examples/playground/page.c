/* The playground's module: jem.h, compiled for the browser, and its context. */
#define JEM_IMPLEMENTATION
#include "page.h"

jem_ctx *ctx;

PAGE(int, start)(void);
PAGE(void *, room)(int bytes);
PAGE(void, give_back)(void *room);
PAGE(const char *, problem)(void);
PAGE(const char *, speed_name)(void);

PAGE(int, start)(void) {
    jem_ctx_desc d;
    memset(&d, 0, sizeof d);
    d.precision = JEM_PRECISION_FAST;
    ctx = jem_ctx_create(&d);
    return ctx != NULL;
}
PAGE(void *, room)(int bytes) { return malloc((size_t)bytes); }
PAGE(void, give_back)(void *room) { free(room); }

/* Returns and clears the first error, or "". */
PAGE(const char *, problem)(void) {
    static char text[512];
    strncpy(text, jem_error(ctx), sizeof text - 1);
    jem_clear_error(ctx);
    return text;
}
PAGE(const char *, speed_name)(void) { return jem_isa_name(jem_ctx_isa(ctx)); }
