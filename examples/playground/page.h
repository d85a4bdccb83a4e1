/* Declarations for the C files of the playground: calls from the page, and the context. Each worker
   of the page has its own instance of this module: one context, no shared data. */
#ifndef PLAYGROUND_PAGE_H
#define PLAYGROUND_PAGE_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "jem.h"

/* A function that JavaScript calls by its name. If it can fail, it returns 1 on success, or 0 with
   the reason in problem(). Arrays are in the module's memory: place() has their addresses. */
#ifdef __wasm__
#define PAGE(type, name) __attribute__((export_name(#name))) type name
#else
#define PAGE(type, name) type name
#endif

extern jem_ctx *ctx;

/* Shows intermediate results of a long calculation; from JavaScript. */
#ifdef __wasm__
__attribute__((import_module("page"), import_name("progress")))
#endif
extern void progress(int done);

#endif
