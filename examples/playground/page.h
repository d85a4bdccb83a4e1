/* What the playground's C files share: how the page calls them, and the context. Each worker of the
   page has an instance of this module to itself: one context, nothing shared. */
#ifndef PLAYGROUND_PAGE_H
#define PLAYGROUND_PAGE_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "jem.h"

/* A function that JavaScript calls by its name. Where it can fail it returns 1 if it did not; the
   reason is in problem(). Arrays lie in the module's memory: their addresses are in place(). */
#ifdef __wasm__
#define PAGE(type, name) __attribute__((export_name(#name))) type name
#else
#define PAGE(type, name) type name
#endif

extern jem_ctx *ctx;

/* Shows what there is in the midst of a long calculation; from JavaScript. */
#ifdef __wasm__
__attribute__((import_module("page"), import_name("progress")))
#endif
extern void progress(int done, int of);

#endif
