/* gzip, in front of IDX: half of the mutations are of what is packed, packed again as it must
   be. */
#include "data_fuzz.h"

static size_t put_little(uint8_t *to, unsigned long v) {
    for (int i = 0; i < 4; i++) to[i] = (uint8_t)(v >> (8 * i) & 255);
    return 4;
}

size_t LLVMFuzzerCustomMutator(uint8_t *in, size_t n, size_t most, unsigned seed) {
    enum { ROOM = 1 << 16 };
    static uint8_t plain[ROOM];
    unsigned char *inside = NULL;
    size_t size = 0;
    if (seed % 2 || data__gunzip(in, n, ROOM, &inside, &size) || size > ROOM) {
        free(inside);
        return LLVMFuzzerMutate(in, n, most);
    }
    memcpy(plain, inside, size);
    free(inside);
    size = LLVMFuzzerMutate(plain, size, ROOM);
    int packed_size = 0;                           /* zlib: 2 bytes, the deflate stream, 4 bytes */
    unsigned char *packed = stbi_zlib_compress(plain, (int)size, &packed_size, 5);
    const size_t stream = packed && packed_size > 6 ? (size_t)packed_size - 6 : 0;
    if (stream && 18 + stream <= most) {
        static const uint8_t head[10] = { 0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 3 };
        memcpy(in, head, 10);
        memcpy(in + 10, packed + 2, stream);
        n = 10 + stream;
        n += put_little(in + n, crc32_of(0, plain, size));
        n += put_little(in + n, (unsigned long)size);
    }
    stb_free(packed);
    return n;
}

int LLVMFuzzerTestOneInput(const uint8_t *in, size_t n) {
    static const uint8_t labels[10] = { 0, 0, 8, 1, 0, 0, 0, 2, 1, 0 };
    unsigned char *out;
    size_t size;
    const char *wrong = data__gunzip(in, n, 1 << 20, &out, &size);
    if (wrong) FUZZ_CHECK(!out);
    else FUZZ_CHECK(out && size <= 1 << 20);
    free(out);
    fuzz_put("train-labels-idx1-ubyte", labels, sizeof labels);
    fuzz_put("train-images-idx3-ubyte.gz", in, n);
    fuzz_load("train");
    return 0;
}
