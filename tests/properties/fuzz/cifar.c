/* CIFAR as bytes: 10 or 100 classes, by the first byte; for 100, names may come before the data. */
#include "data_fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *in, size_t n) {
    if (n < 2) return 0;
    const int hundred = in[0] & 1;
    const char *file = "test_batch.bin";
    size_t names = 0;
    if (hundred) {
        file = "test.bin";
        names = fuzz_least(in[1], n - 2);
    }
    for (int i = 0; i < fuzz_files; i++) remove(fuzz_names[i]);
    if (names) fuzz_put("fine_label_names.txt", in + 2, names);
    fuzz_put(file, in + 2 + names, n - 2 - names);
    fuzz_load("test");
    return 0;
}
