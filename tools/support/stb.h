/* stb_image and stb_image_write, for programs of one .c file. `make stb` installs them; some
   systems put them in <stb/...>, others directly in <...>. */
#ifndef EXAMPLES_STB_H
#define EXAMPLES_STB_H

#if defined(__GNUC__)
#pragma GCC system_header    /* stb gives warnings with our flags */
#if !defined(__clang__) /* gcc looks for unused functions at the end of the file: no push and pop */
#pragma GCC diagnostic ignored "-Wunused-function"
#endif
#endif

/* Allocates zeroed memory: stb_image 2.27 reads tables that a damaged JPEG does not define. */
#include <stdlib.h>
#define STBI_MALLOC(size) calloc(1, size)
#define STBI_REALLOC(memory, size) realloc(memory, size)
#define STBI_FREE(memory) free(memory)

/* stb_image_write does not check whether reallocation succeeded: if it fails, these functions free
   its memory and return to the setjmp of stb_out, if stb_armed. */
#include <setjmp.h>
typedef union stb_block { struct { union stb_block *next, *last; } list; char room[32]; } stb_block;
static jmp_buf stb_out;
static int stb_armed;
static stb_block stb_held;                         /* list.next: all blocks, doubly linked */

static void *stb_link(stb_block *b) {
    b->list.next = stb_held.list.next, b->list.last = &stb_held;
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
static void stb_free(void *memory) { if (memory) free(stb_unlink(memory)); }
static void *stb_resize(void *memory, size_t n) {
    stb_block *was = memory ? stb_unlink(memory) : NULL;
    stb_block *b = (stb_block *)realloc(was, n + sizeof *b);
    if (b) return stb_link(b);
    if (was) stb_link(was);
    if (!stb_armed) return NULL;
    while (stb_held.list.next) stb_free(stb_held.list.next + 1);
    longjmp(stb_out, 1);
}
#define STBIW_MALLOC(size) stb_resize(NULL, size)
#define STBIW_REALLOC(memory, size) stb_resize(memory, size)
#define STBIW_FREE(memory) stb_free(memory)

#define STBI_NO_HDR      /* rarely used for photographs; fewer formats, fewer attacks */
#define STBI_NO_PIC
#define STB_IMAGE_STATIC
#define STB_IMAGE_IMPLEMENTATION
#define STB_IMAGE_WRITE_STATIC
#define STB_IMAGE_WRITE_IMPLEMENTATION

#if defined(__has_include)
#if !__has_include(<stb/stb_image.h>)
#define EXAMPLES_STB_PLAIN
#endif
#endif

#ifdef EXAMPLES_STB_PLAIN
#include <stb_image.h>
#include <stb_image_write.h>
#else
#include <stb/stb_image.h>
#include <stb/stb_image_write.h>
#endif

#endif
