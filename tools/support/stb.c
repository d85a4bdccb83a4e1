/* The implementation of stb_image and stb_image_write. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wunused-function"         /* found at the end of the file */
#endif

#include "tools/support/stb.h"

/* ---- memory ---------------------------------------------------------------------------------- */

typedef union stb_block { struct { union stb_block *next, *last; } list; char room[32]; } stb_block;
jmp_buf stb_out;
int stb_armed;
static stb_block stb_held;                         /* list.next: all blocks, doubly linked */

static void *stb_link(stb_block *b) {
    b->list.next = stb_held.list.next;
    b->list.last = &stb_held;
    if (b->list.next) b->list.next->list.last = b;
    stb_held.list.next = b;
    return b + 1;
}
static stb_block *stb_unlink(void *memory) {
    stb_block *b = (stb_block *)memory - 1;
    b->list.last->list.next = b->list.next;
    if (b->list.next) b->list.next->list.last = b->list.last;
    return b;
}
void stb_free(void *memory) { if (memory) free(stb_unlink(memory)); }
void *stb_resize(void *memory, size_t n) {
    stb_block *was = memory ? stb_unlink(memory) : NULL;
    stb_block *b = (stb_block *)realloc(was, n + sizeof *b);
    if (b) return stb_link(b);
    if (was) stb_link(was);
    if (!stb_armed) return NULL;
    while (stb_held.list.next) stb_free(stb_held.list.next + 1);
    longjmp(stb_out, 1);
}

/* ---- the implementation ---------------------------------------------------------------------- */

/* Allocates zeroed memory: stb_image 2.27 reads tables that a damaged JPEG does not define. */
#define STBI_MALLOC(size) calloc(1, size)
#define STBI_REALLOC(memory, size) realloc(memory, size)
#define STBI_FREE(memory) free(memory)
#define STBIW_MALLOC(size) stb_resize(NULL, size)
#define STBIW_REALLOC(memory, size) stb_resize(memory, size)
#define STBIW_FREE(memory) stb_free(memory)
#define STB_IMAGE_IMPLEMENTATION
#define STB_IMAGE_WRITE_IMPLEMENTATION

#ifdef SUPPORT_STB_PLAIN
#include <stb_image.h>
#include <stb_image_write.h>
#else
#include <stb/stb_image.h>
#include <stb/stb_image_write.h>
#endif
