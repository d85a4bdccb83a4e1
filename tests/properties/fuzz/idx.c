/* IDX (MNIST's format): the first two bytes say how many of the others are labels. */
#include "data_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *in, size_t n) {
    if (n < 2) return 0;
    const size_t asked = (size_t)in[0] | (size_t)in[1] << 8;
    const size_t labels = fuzz_least(asked, n - 2);
    fuzz_put("train-labels-idx1-ubyte", in + 2, labels);
    fuzz_put("train-images-idx3-ubyte", in + 2 + labels, n - 2 - labels);
    fuzz_load("train");
    return 0;
}
