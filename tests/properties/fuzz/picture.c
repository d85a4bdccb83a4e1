/* A picture to be classified: whatever stb_image reads, PNG files mutated behind their zlib. */
#include "data_fuzz.h"
#include "png.h"

size_t LLVMFuzzerCustomMutator(uint8_t *in, size_t n, size_t most, unsigned seed) {
    if (n > 8 && in[0] == 0x89) return png_mutate(in, n, most, seed);
    return LLVMFuzzerMutate(in, n, most);
}

int LLVMFuzzerTestOneInput(const uint8_t *in, size_t n) {
    data_set d;
    data_desc desc;
    char error[256];
    int was[3];
    memset(&desc, 0, sizeof desc);
    desc.file_mb = 4;
    desc.picture_mb = 1;
    desc.channels = 1 + 2 * (int)(n & 1);
    desc.height = 5;
    desc.width = 7;
    desc.resize = DATA_FIT;
    if (data_load_image(&d, fuzz_put("picture", in, n), &desc, was, error, sizeof error)) {
        FUZZ_CHECK(d.n == 1 && d.c == desc.channels && d.h == 5 && d.w == 7);
        FUZZ_CHECK(was[0] && (double)was[0] * was[1] * was[2] <= 1e6);
        data_free(&d);
    } else {
        FUZZ_CHECK(*error && !d.pixels);
    }
    return 0;
}
