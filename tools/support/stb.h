/* stb_image and stb_image_write; stb.c implements them. `make stb` installs them; some systems put
   them in <stb/...>, others directly in <...>. */
#ifndef SUPPORT_STB_H
#define SUPPORT_STB_H

#if defined(__GNUC__)
#pragma GCC system_header    /* stb gives warnings with our flags */
#endif

/* stb_image_write does not check whether reallocation succeeded: if it fails while stb_armed is
   nonzero, stb.c frees its memory and returns to the setjmp of stb_out. */
#include <setjmp.h>
#include <stdlib.h>
extern jmp_buf stb_out;
extern int stb_armed;

/* Memory of stb_image_write; stb_free frees its results. */
void *stb_resize(void *memory, size_t n);
void stb_free(void *memory);

/* Without formats that are rarely used for photographs: fewer formats, fewer attacks. */
#define STBI_NO_HDR
#define STBI_NO_PIC

#if defined(__has_include)
#if !__has_include(<stb/stb_image.h>)
#define SUPPORT_STB_PLAIN
#endif
#endif

#ifdef SUPPORT_STB_PLAIN
#include <stb_image.h>
#include <stb_image_write.h>
#else
#include <stb/stb_image.h>
#include <stb/stb_image_write.h>
#endif

/* stb_image_write has it, but does not declare it. */
extern unsigned char *stbi_zlib_compress(unsigned char *data, int size, int *packed, int quality);

#endif
