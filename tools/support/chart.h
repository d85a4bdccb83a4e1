/* Letters, boxes and charts of curves, on the plots of pictures.h. Plots here have y downwards:
   plot_create(&p, w, h, 0, w, h, 0). */
#ifndef SUPPORT_CHART_H
#define SUPPORT_CHART_H

#include "tools/support/pictures.h"

/* ---- letters --------------------------------------------------------------------------------- */

/* Draws text with its left end at x and the top of its capitals at y, `unit` pixels per square of
   the grid; returns its right end. With p NULL only measures. */
float text(plot *p, float x, float y, float unit, unsigned colour, const char *s);
void text_right(plot *p, float x, float y, float unit, unsigned colour, const char *s);
void box(plot *p, float x0, float y0, float x1, float y1, unsigned colour);

/* ---- colours --------------------------------------------------------------------------------- */

/* Colours that differ with any kind of colour vision (Okabe and Ito 2008): those of the lessons'
   pictures, and of classes in the playground. */
enum {
    INK_BLUE = 0x0072b2, INK_ORANGE = 0xe69f00, INK_GREEN = 0x009e73, INK_RED = 0xd55e00,
    INK_SKY = 0x56b4e9, INK_PINK = 0xcc79a7, INK_GREY = 0x6b6b6b, INK_YELLOW = 0xf0e442
};

/* ---- curves ---------------------------------------------------------------------------------- */

/* One curve of a panel: y[i] over x[i]; values that are not finite are omitted. */
typedef struct curve {
    const char *name;
    unsigned colour;
    const float *x, *y;
    int n;
    float width;                                   /* in pixels */
} curve;

/* Returns the numbers under `name` in a CSV file with a header, NaN where missing, to be freed;
   NULL without such a file, column or row. */
float *chart_column(const char *path, const char *name, int *n);

/* Axes and curves in a box of the picture. y_lo >= y_hi: automatic. */
typedef struct panel {
    const char *title, *x_name;
    float left, top, right, bottom;                /* of the axes, in pixels */
    float y_lo, y_hi;
    const curve *curves;
    int n;
} panel;

/* Draws the axes with ticks and numbers, the title, a legend, the curves. Below the axes, it needs
   PANEL_BELOW pixels. */
enum { PANEL_BELOW = 50 };
void draw_panel(plot *p, const panel *q);
/* The same with letters of another size: `unit` pixels per square of their grid, not 1.75. */
void draw_panel_in(plot *p, const panel *q, float unit);
/* Writes a picture, 900 pixels wide, of n panels, the last one at the bottom. Returns 1; 0: it
   cannot be written; -1: no memory. */
int draw_panels(const char *path, const panel *panels, int n);

/* ---- rows ------------------------------------------------------------------------------------ */

/* Named rows of `lines` lines each on one axis, from[row][line] -> to[row][line], which has a dot;
   if `to` is below lo, or NaN, a cross at the edge. */
typedef struct row_chart {
    const char *title, *const *names;
    int rows, lines;
    const float *from, *to;
    const unsigned *colours;                       /* [lines], and their names: */
    const char *const *line_names;
    float lo, hi, mark;                            /* mark: a black line here */
} row_chart;

void draw_rows(plot *p, const row_chart *q);

int rows_write(const row_chart *q, const char *path);

#endif
