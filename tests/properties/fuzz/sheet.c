/* A sheet of tiles: the first byte says how many of the others are the list of labels. */
#include "data_fuzz.h"
#include "png.h"

size_t LLVMFuzzerCustomMutator(uint8_t *in, size_t n, size_t most, unsigned seed) {
    if (n < 2 || seed % 16 == 0) return LLVMFuzzerMutate(in, n, most);
    const size_t labels = fuzz_least(in[0], n - 1);
    return 1 + labels + png_mutate(in + 1 + labels, n - 1 - labels, most - 1 - labels, seed / 16);
}

int LLVMFuzzerTestOneInput(const uint8_t *in, size_t n) {
    if (n < 1) return 0;
    const size_t labels = fuzz_least(in[0], n - 1);
    fuzz_put("train.txt", in + 1, labels);
    fuzz_put("train.png", in + 1 + labels, n - 1 - labels);
    fuzz_load("train");
    return 0;
}
