/* Makes examples/data/digits.png, the data of the examples, from the four files of MNIST. One
   sheet of 100 x 100 digits, so that readers can look at the data, and a single png is all the I/O
   that an example needs. The row determines the rest: label = row / 10, held out = row % 10 == 9.
   */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/support/stb.h"

enum { SIDE = 28, PIXELS = SIDE * SIDE, ACROSS = 100, CLASSES = 10, ROWS = 10 };
enum { WIDTH = ACROSS * SIDE };

static void fail(const char *what, const char *which)
{
    fprintf(stderr, "make_digits: %s: %s\n", which, what);
    exit(1);
}

static long big_endian(const unsigned char *p)
{
    return ((long)p[0] << 24) | ((long)p[1] << 16) | ((long)p[2] << 8) | (long)p[3];
}

/* Reads an IDX file: a magic number (0x08, the number of dimensions), the dimensions, the bytes.
   Returns the bytes of `*count` items of `item` bytes each. */
static unsigned char *read_idx(const char *path, int dims, long item, long *count)
{
    unsigned char head[16], *data;
    size_t head_bytes = 4 + 4 * (size_t)dims;
    size_t bytes;
    FILE *f = fopen(path, "rb");
    if (!f) fail("cannot be opened", path);
    if (fread(head, 1, head_bytes, f) != head_bytes || big_endian(head) != 0x0800 + dims)
        fail("is not an unpacked IDX file of that kind (order: images labels images labels)", path);
    if (dims == 3 && (big_endian(head + 8) != SIDE || big_endian(head + 12) != SIDE))
        fail("its images are not 28 x 28", path);
    *count = big_endian(head + 4);
    if (*count < 1 || *count > 1000000) fail("has an impossible number of items", path);
    bytes = (size_t)(*count * item);
    data = (unsigned char *)malloc(bytes);
    if (!data) fail("no memory", path);
    if (fread(data, 1, bytes, f) != bytes) fail("is cut short", path);
    fclose(f);
    return data;
}

/* Copies the first `rows` rows of each class into the sheet, from row `first` of its block. */
static void place(unsigned char *sheet, const char *image_path, const char *label_path,
                  int first, int rows)
{
    long images, labels, i;
    int used[CLASSES] = { 0 };
    int k;
    unsigned char *x = read_idx(image_path, 3, PIXELS, &images);
    unsigned char *y = read_idx(label_path, 1, 1, &labels);
    if (images != labels) fail("does not have as many labels as there are images", label_path);
    for (i = 0; i < images; i++) {
        int row, column, h;
        if (y[i] >= CLASSES) fail("has a label above 9", label_path);
        if (used[y[i]] == rows * ACROSS) continue;
        row = y[i] * ROWS + first + used[y[i]] / ACROSS;
        column = used[y[i]] % ACROSS;
        used[y[i]]++;
        for (h = 0; h < SIDE; h++)
            memcpy(sheet + ((size_t)row * SIDE + (size_t)h) * WIDTH + (size_t)column * SIDE,
                   x + i * PIXELS + h * SIDE, SIDE);
    }
    for (k = 0; k < CLASSES; k++)
        if (used[k] < rows * ACROSS) fail("has too few digits of some class", label_path);
    free(x);
    free(y);
}

int main(int argc, char **argv)
{
    unsigned char *sheet;
    if (argc != 6) {
        fprintf(stderr, "usage: make_digits train-images-idx3-ubyte train-labels-idx1-ubyte"
                        " t10k-images-idx3-ubyte t10k-labels-idx1-ubyte out.png\n");
        return 1;
    }
    sheet = (unsigned char *)calloc((size_t)WIDTH * CLASSES * ROWS, SIDE);
    if (!sheet) fail("no memory", "the sheet");
    place(sheet, argv[1], argv[2], 0, ROWS - 1);    /* rows 0..8 of a block: for training */
    place(sheet, argv[3], argv[4], ROWS - 1, 1);    /* row 9: other writers, held out */
    stbi_write_png_compression_level = 32;
    if (!stbi_write_png(argv[5], WIDTH, CLASSES * ROWS * SIDE, 1, sheet, WIDTH))
        fail("cannot be written", argv[5]);
    free(sheet);
    return 0;
}
