/* Mutations of PNG files that get behind zlib: pixels are unpacked, mutated, packed again. */
#ifndef FUZZ_PNG_H
#define FUZZ_PNG_H

#include "fuzz.h"

static size_t png_word(uint8_t *to, unsigned long v) {
    for (int i = 0; i < 4; i++) to[i] = (uint8_t)(v >> (24 - 8 * i) & 255);
    return 4;
}
static size_t png_chunk(uint8_t *to, const char *type, const uint8_t *bytes, size_t n) {
    png_word(to, (unsigned long)n);
    memcpy(to + 4, type, 4);
    if (n) memcpy(to + 8, bytes, n);
    png_word(to + 8 + n, crc32_of(0, to + 4, n + 4));
    return 12 + n;
}

/* A file in parts: its header, its pixels as they are packed, its other chunks. */
enum { PNG_ROOM = 1 << 17, PNG_HEAD = 13 };
typedef struct png_parts {
    uint8_t head[PNG_HEAD + 3], packed[PNG_ROOM], other[PNG_ROOM];
    size_t packs, others;
} png_parts;

/* Takes the file at `in` apart. Returns 0 if it has no header. */
static int png_take_apart(png_parts *p, const uint8_t *in, size_t n) {
    int has_head = 0;
    p->packs = p->others = 0;
    for (size_t at = 8; at + 12 <= n;) {
        const size_t length = data__big(in + at);
        const size_t whole = length + 12;
        if (length > n - at - 12) break;
        if (!memcmp(in + at + 4, "IHDR", 4) && length == PNG_HEAD) {
            memcpy(p->head, in + at + 8, PNG_HEAD);
            has_head = 1;
        } else if (!memcmp(in + at + 4, "IDAT", 4)) {
            if (p->packs + length > PNG_ROOM) break;
            memcpy(p->packed + p->packs, in + at + 8, length);
            p->packs += length;
        } else if (memcmp(in + at + 4, "IEND", 4) && p->others + whole <= PNG_ROOM) {
            memcpy(p->other + p->others, in + at, whole);
            p->others += whole;
        }
        at += whole;
    }
    return has_head;
}

/* Mutates the pixels: unpacked, and packed again. */
static void png_mutate_pixels(png_parts *p) {
    int size = 0;
    int again = 0;
    char *pixels = stbi_zlib_decode_malloc((const char *)p->packed, (int)p->packs, &size);
    char *room = pixels && size < PNG_ROOM ? (char *)realloc(pixels, PNG_ROOM) : NULL;
    if (!room) {
        free(pixels);
        return;
    }
    size = (int)LLVMFuzzerMutate((uint8_t *)room, (size_t)size, PNG_ROOM);
    unsigned char *z = stbi_zlib_compress((unsigned char *)room, size, &again, 5);
    if (z && (size_t)again <= PNG_ROOM) {
        p->packs = (size_t)again;
        memcpy(p->packed, z, p->packs);
    }
    stb_free(z);
    free(room);
}

/* Mutates one part of the file at `in`, and puts all together again; or, one time in four, mutates
   the file as it is. */
static size_t png_mutate(uint8_t *in, size_t n, size_t most, unsigned seed) {
    static png_parts p;
    static uint8_t out[4 * PNG_ROOM];
    if (seed % 4 == 0 || n < 8) return LLVMFuzzerMutate(in, n, most);
    if (!png_take_apart(&p, in, n)) return LLVMFuzzerMutate(in, n, most);
    const unsigned what = seed / 4 % 4;
    if (what == 0) {
        LLVMFuzzerMutate(p.head, PNG_HEAD, PNG_HEAD);
        if (seed / 16 % 4) p.head[0] = p.head[1] = p.head[4] = p.head[5] = 0;  /* mostly small */
    }
    if (what == 1) p.others = LLVMFuzzerMutate(p.other, p.others, PNG_ROOM);
    if (what == 2) p.packs = LLVMFuzzerMutate(p.packed, p.packs, PNG_ROOM);
    if (what == 3) png_mutate_pixels(&p);
    size_t m = 8;
    memcpy(out, "\x89PNG\r\n\x1a\n", 8);
    m += png_chunk(out + m, "IHDR", p.head, PNG_HEAD);
    memcpy(out + m, p.other, p.others);
    m += p.others;
    m += png_chunk(out + m, "IDAT", p.packed, p.packs);
    m += png_chunk(out + m, "IEND", NULL, 0);
    if (m > most) return n;
    memcpy(in, out, m);
    return m;
}

#endif
