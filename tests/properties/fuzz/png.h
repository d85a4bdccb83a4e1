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
    png_word(to + 8 + n, data_crc32(to + 4, n + 4));
    return 12 + n;
}

/* Takes apart what is at in: header, other chunks, pixels. Mutates one of them, and puts all together
   again; or, one time in four, mutates the file as it is. */
static size_t png_mutate(uint8_t *in, size_t n, size_t most, unsigned seed) {
    enum { ROOM = 1 << 17, HEAD = 13 };
    static uint8_t other[ROOM], packed[ROOM], out[4 * ROOM];
    uint8_t head[HEAD + 3];
    size_t others = 0;
    size_t packs = 0;
    size_t head_n = 0;
    size_t at = 8;
    if (seed % 4 == 0 || n < 8) return LLVMFuzzerMutate(in, n, most);
    while (at + 12 <= n) {
        const size_t length = data__big(in + at);
        const size_t whole = length + 12;
        if (length > n - at - 12) break;
        if (!memcmp(in + at + 4, "IHDR", 4) && length == HEAD)
            memcpy(head, in + at + 8, HEAD), head_n = HEAD;
        else if (!memcmp(in + at + 4, "IDAT", 4)) {
            if (packs + length > ROOM) break;
            memcpy(packed + packs, in + at + 8, length), packs += length;
        } else if (memcmp(in + at + 4, "IEND", 4) && others + whole <= ROOM)
            memcpy(other + others, in + at, whole), others += whole;
        at += whole;
    }
    if (!head_n) return LLVMFuzzerMutate(in, n, most);
    const unsigned what = seed / 4 % 4;
    if (what == 0) {
        LLVMFuzzerMutate(head, HEAD, HEAD);
        if (seed / 16 % 4) head[0] = head[1] = head[4] = head[5] = 0;  /* not too large, mostly */
    }
    if (what == 1) others = LLVMFuzzerMutate(other, others, ROOM);
    if (what == 2) packs = LLVMFuzzerMutate(packed, packs, ROOM);
    if (what == 3) {
        int size = 0;
        int again = 0;
        char *pixels = stbi_zlib_decode_malloc((const char *)packed, (int)packs, &size);
        char *room = pixels && size < ROOM ? (char *)realloc(pixels, ROOM) : NULL;
        if (!room) free(pixels);
        else {
            size = (int)LLVMFuzzerMutate((uint8_t *)room, (size_t)size, ROOM);
            unsigned char *z = stbi_zlib_compress((unsigned char *)room, size, &again, 5);
            if (z && (size_t)again <= ROOM) memcpy(packed, z, packs = (size_t)again);
            stb_free(z), free(room);
        }
    }
    size_t m = 8;
    memcpy(out, "\x89PNG\r\n\x1a\n", 8);
    m += png_chunk(out + m, "IHDR", head, HEAD);
    memcpy(out + m, other, others), m += others;
    m += png_chunk(out + m, "IDAT", packed, packs);
    m += png_chunk(out + m, "IEND", NULL, 0);
    if (m > most) return n;
    memcpy(in, out, m);
    return m;
}

#endif
