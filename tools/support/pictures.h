/* Shared code of the examples: the digits, image grids, plots of the plane. A function that can
   fail returns 1 on success; otherwise it prints the reason to stderr, and returns 0 or NULL.
   Pictures are PNG files; a missing directory is created. */
#ifndef SUPPORT_PICTURES_H
#define SUPPORT_PICTURES_H

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "jem.h"
#include "tools/support/stb.h"

/* Returns 0 if the context has no error; otherwise prints the error and returns 1. Examples call it
   last. */
int report(const jem_ctx *ctx);

/* Reads a picture as bytes[h][w]: converted to grey, on white paper where it is transparent. Free
   them with stbi_image_free. */
unsigned char *picture_read(const char *path, int *w, int *h);

/* ---- the digits ------------------------------------------------------------------------------ */

#define DIGITS_PATH "examples/data/digits.png"
#define MODEL_PATH "build/digits.safetensors"      /* trained and saved by `make demo` */
#define SHIPPED_PATH "examples/models/mnist.safetensors"

enum {
    DIGIT = 28, DIGIT_PIXELS = DIGIT * DIGIT,      /* of one digit */
    DIGITS_TRAIN = 9000, DIGITS_TEST = 1000
};

/* Grey images of 28 x 28 in [-1,1], white ink on black. Number i is a digit i % 10 in both sets, so
   that the first 10, 100, 1000 are balanced: shuffle before training (digits_batch draws at
   random). */
typedef struct digits {
    float *x, *test_x;     /* [9000][28][28] for training, [1000][28][28] held out */
    int *y, *test_y;       /* labels 0..9 */
} digits;

void digits_free(digits *d);

/* Cuts the sheet into digits; examples/data/README.md describes the layout. */
int digits_load(const char *path, digits *d);

/* Draws n training images with replacement: x[n][28][28], y[n]. */
void digits_batch(const digits *d, jem_rng *rng, int n, float *x, int *y);

/* Loads a network. NULL: the one that `make demo` saved or, before that, the included one. */
jem_net *digits_model(jem_ctx *ctx, const char *path);

/* Records chains on their way: a watch function for one sampler, or for several in a row. Keeps
   chains 0, every, 2 every, ... after the steps in `moments` (`shots` of them, ascending). */
typedef struct chains_film {
    const int *moments;
    int shots, chains, every;
    float *all;                                    /* [n][28][28]: room for all n chains */
    float *x;                                      /* [chains][shots][28][28] */
    int step, taken;
} chains_film;

int chains_film_take(chains_film *f, jem_tensor *x);
/* Records the chains; samplers call it after every step. A nonzero result would stop them. */
int chains_film_watch(void *user, int step, jem_tensor *x);

/* ---- image files ----------------------------------------------------------------------------- */

unsigned char picture_byte(float in_0_1);

/* Writes bytes[h][w][c], c = 1 grey or 3 RGB. */
int picture_write(const char *path, const unsigned char *bytes, int w, int h, int c);

enum { PICTURE_GREY = 72 };                        /* between the images of a grid */

/* Returns 1 if picture_grid can draw a grid of this size, or prints the reason. */
int picture_grid_fits(const char *path, int n, int columns, int c, int h, int w, int zoom);
/* Writes n images x[n][c][h][w] in [-1,1] (clamped), c = 1 or 3, `columns` per row; each pixel is a
   square of zoom x zoom. */
int picture_grid(const char *path, const float *x, int n, int columns, int c, int h,
                 int w, int zoom);

/* ---- films ----------------------------------------------------------------------------------- */

/* Reduces the pixels rgb[n][3] of all frames to 256 colours, the most frequent ones and the nearest
   of them: the file is a third of the size. */
int picture_reduce(unsigned char *rgb, ptrdiff_t n);

/* Writes frames of rgb[h][w][3], one after the other; each is shown for `ms` ms, the last one
   for `hold` ms; then the film repeats. Of a frame only the rectangle that changes is written;
   frames of at most 256 colours have a palette. */
int picture_film(const char *path, const unsigned char *rgb, int frames, int w, int h,
                 int ms, int hold);

/* Adds a grid of images, as of picture_grid, to the end of a film, and shows it for `ms` ms. Frames
   with this number or a later one are dropped first, so that a resumed run continues its film; a
   film of another size, or one that is cut short, is replaced. */
int picture_film_add(const char *path, const float *x, int n, int columns, int c, int h, int w,
                     int zoom, unsigned number, int ms);

/* ---- plots of the plane ---------------------------------------------------------------------- */

/* A picture of [x0,x1] x [y0,y1], y upwards. Colours are 0xRRGGBB. */
typedef struct plot {
    int w, h;
    float x0, x1, y0, y1;
    unsigned char *rgb;    /* [h][w][3] */
    float *values;         /* [h][w]: the last result of plot_function */
    int failed;            /* 1: something could not be drawn; plot_write then fails */
} plot;

void plot_free(plot *p);

int plot_create(plot *p, int w, int h, float x0, float x1, float y0, float y1);

/* Blends the pixel in row i and column j with a colour. */
void plot_blend(plot *p, int i, int j, unsigned colour, float opacity);
/* Draws a digit x[28][28] of -1 to 1, each pixel a square of zoom x zoom, its top left at (left,
   top) in pixels of the plot. */
void plot_digit(plot *p, int left, int top, int zoom, const float *x);
/* Copies a plot into a larger one, its top left at (left, top) in pixels. */
void plot_put(plot *p, int left, int top, const plot *from);

/* Draws a line from a to b, `width` pixels wide, with round ends and smooth edges. */
void plot_line(plot *p, float ax, float ay, float bx, float by, float width, unsigned colour);

void plot_dot(plot *p, float x, float y, float width, unsigned colour);
/* Draws n points xy[n][2]: each as a dot; or joined, as a path. */
void plot_dots(plot *p, const float *xy, int n, float width, unsigned colour);
void plot_way(plot *p, const float *xy, int n, float width, unsigned colour);

/* Evaluates fn, a number per point, at every pixel. A point is an image (2,1,1): its channels are x
   and y. */
jem_status plot_function(plot *p, jem_ctx *ctx, jem_logp_fn fn, void *user);

/* Draws those values as a heat map: lo and below is almost black, hi and above pale yellow. In
   steps too small to see, which make a smaller file. */
void plot_heat(plot *p, float lo, float hi);

/* Draws the line where those values cross a level. */
void plot_contour(plot *p, float level, float width, unsigned colour);

int plot_write(const plot *p, const char *path);

/* ---- digits and other images ----------------------------------------------------------------- */

/* Draws lines on a black canvas of 28 x 28, y upwards. */
int digits_draw(const float (*line)[4], int n, float width, float *x);

/* Makes six images: a 4 by a writer not in the training set, the same upside down, its negative,
   noise, the letter M, a shirt. */
int digits_and_others(jem_ctx *ctx, float (*x)[DIGIT_PIXELS]);

#endif
