/* Mutations of safetensors files that do not all break at the first byte: the header's length is
   mostly made to fit again, so that the rest of the file is looked at. */
#ifndef FUZZ_ARCHIVE_H
#define FUZZ_ARCHIVE_H

#include "fuzz.h"

size_t LLVMFuzzerCustomMutator(uint8_t *in, size_t n, size_t most, unsigned seed) {
    n = LLVMFuzzerMutate(in, n, most);
    if (n < 10 || seed % 8 == 0) return n;
    size_t end = n;                                /* behind the last }, or the first }} */
    if (seed % 2) while (end > 8 && in[end - 1] != '}') end--;
    else for (size_t i = 8; i + 1 < n && end == n; i++)
        if (in[i] == '}' && in[i + 1] == '}') end = i + 2;
    while (end < n && in[end] == ' ') end++;
    for (int i = 0; i < 8; i++) in[i] = (uint8_t)((uint64_t)(end - 8) >> (8 * i) & 255);
    return n;
}

#endif
