/* Small pictures made of known factors: a shape, its colour, its place, its size. Because we draw
   them, we can also identify the content of a picture: draw all possible pictures and take the
   nearest. For programs of one file. */
#ifndef EXAMPLES_SHAPES_H
#define EXAMPLES_SHAPES_H

#include "worlds.h"

enum { SHAPE, COLOUR, PLACE, SIZE, FACTORS };
enum { CIRCLE, SQUARE, TRIANGLE };
enum { RED, GREEN, BLUE };
enum { LEFT, RIGHT };
enum { SMALL, LARGE };
enum { SIDE = 16, SHAPE_PIXELS = SIDE * SIDE, SHAPE_NUMBERS = 3 * SHAPE_PIXELS };

typedef struct factor { const char *name; int values; const char *value[3]; } factor;
static const factor factors[FACTORS] = {
    { "shape", 3, { "circle", "square", "triangle" } }, { "colour", 3, { "red", "green", "blue" } },
    { "place", 2, { "left", "right", "" } }, { "size", 2, { "small", "large", "" } }
};
static const float shape_colours[3][3] = { { 0.9f, -0.7f, -0.6f }, { -0.7f, 0.7f, 0.2f },
                                           { -0.7f, -0.3f, 1 } };

/* is[k]: the value of factor k. x, y: the middle, in pixels; r: about half the width. */
typedef struct scene { int is[FACTORS]; float x, y, r; } scene;

/* Statements about a scene: a factor has a value; and, or, not of statements. */
typedef enum words_kind { IS, AND, OR, NOT } words_kind;
typedef struct words { words_kind what; int factor, value; const struct words *a, *b; } words;
#define WORD(name, factor, value) static const words name = { IS, factor, value, NULL, NULL }
#define JOIN(name, what, a, b) static const words name = { what, 0, 0, a, b }
static inline int words_hold(const words *w, const scene *s) {
    if (w->what == IS) return s->is[w->factor] == w->value;
    if (w->what == NOT) return !words_hold(w->a, s);
    if (w->what == AND) return words_hold(w->a, s) && words_hold(w->b, s);
    return words_hold(w->a, s) || words_hold(w->b, s);
}

/* Computes the part of each pixel that a shape covers, mask[SIDE][SIDE], from its distance to the
   edge. */
static inline void shape_mask(int shape, float x, float y, float r, float *mask) {
    for (int k = 0; k < SHAPE_PIXELS; k++) {
        const float u = (float)(k % SIDE) + .5f - x;
        const float v = (float)(k / SIDE) + .5f - y;
        float out = hypotf(u, v) - r;              /* distance outside */
        if (shape == SQUARE) out = fmaxf(fabsf(u), fabsf(v)) - 0.886f * r;     /* the same area */
        if (shape == TRIANGLE) out = fmaxf(v, 0.866f * fabsf(u) - 0.5f * v) - 0.625f * r;
        mask[k] = fminf(fmaxf(0.5f - out, 0), 1);
    }
}

/* Draws a colour on black: x[3][SIDE][SIDE] in [-1,1]. */
static inline void shape_paint(int colour, const float *mask, float *x) {
    for (int k = 0; k < SHAPE_NUMBERS; k++)
        x[k] = mask[k % SHAPE_PIXELS] * (shape_colours[colour][k / SHAPE_PIXELS] + 1) - 1;
}

/* Draws random factors, at a random place in the half that they name. */
static inline scene scene_random(jem_rng *rng) {
    scene s;
    for (int k = 0; k < FACTORS; k++) s.is[k] = jem_rng_below(rng, factors[k].values);
    s.x = (s.is[PLACE] == LEFT ? 4.4f : 10.6f) + jem_rng_uniform(rng);
    s.y = 5.2f + 5 * jem_rng_uniform(rng);
    s.r = (s.is[SIZE] == SMALL ? 2.4f : 3.6f) + 0.4f * jem_rng_uniform(rng);
    return s;
}
static inline void scene_draw(const scene *s, float *x) {
    float mask[SHAPE_PIXELS];
    shape_mask(s->is[SHAPE], s->x, s->y, s->r, mask);
    shape_paint(s->is[COLOUR], mask, x);
}

/* Identifies the scene in x: the nearest of all pictures, on a grid of places and sizes. Returns
   the fraction of x that it explains, 1 - distance^2 / (distance from black)^2: above .9 if
   scene_draw drew x; 0 or less if a black picture is nearer; 0 if a shape in the other half
   explains more than a twentieth: there are two shapes. Below SHAPE_SEEN x shows no known scene. */
#define SHAPE_SEEN 0.67f
static inline float scene_nearest(const float *x, scene *found) {
    enum { ROWS = 13, COLUMNS = 8, RADII = 4, ALL = 3 * ROWS * COLUMNS * RADII };
    static float masks[ALL][SHAPE_PIXELS];
    static scene scenes[ALL];
    static int ready;
    for (int k = 0; k < ALL && !ready; k++) {
        const int column = k / 3 % COLUMNS;
        const int row = k / (3 * COLUMNS) % ROWS;
        const int r = k / (ALL / RADII);
        scene *s = scenes + k;
        s->is[SHAPE] = k % 3;
        s->is[PLACE] = column / 4;
        s->is[SIZE] = r / 2;
        s->x = (column / 4 ? 10.75f : 4.55f) + 0.25f * (float)(column % 4);
        s->y = 5.2f + 0.4f * (float)row;
        s->r = (r / 2 ? 3.7f : 2.5f) + 0.2f * (float)(r % 2);
        shape_mask(s->is[SHAPE], s->x, s->y, s->r, masks[k]);
    }
    ready = 1;
    float best[2] = { 1e30f, 1e30f };              /* left, right */
    float black = 1e-30f;
    scene nearest[2] = { scenes[0], scenes[0] };
    for (int j = 0; j < SHAPE_NUMBERS; j++) black += (x[j] + 1) * (x[j] + 1);
    for (int k = 0; k < ALL; k++)
        for (int c = 0; c < 3; c++) {
            float off = 0;
            for (int j = 0; j < SHAPE_NUMBERS; j++) {
                const float d = masks[k][j % SHAPE_PIXELS] *
                                (shape_colours[c][j / SHAPE_PIXELS] + 1) - 1 - x[j];
                off += d * d;
            }
            const int half = scenes[k].is[PLACE];
            if (off >= best[half]) continue;
            best[half] = off;
            nearest[half] = scenes[k];
            nearest[half].is[COLOUR] = c;
        }
    const int half = best[1] < best[0];
    *found = nearest[half];
    if (best[!half] < 0.95f * black) return 0;     /* two shapes */
    return 1 - best[half] / black;
}

/* Copies a picture x[3][SIDE][SIDE] to paper with y downwards, its top left at (left, top). */
static inline void shape_put(plot *paper, int left, int top, int zoom, const float *x) {
    for (int i = 0; i < SIDE * zoom; i++)
        for (int j = 0; j < SIDE * zoom; j++)
            for (int c = 0; c < 3; c++)
                paper->rgb[((ptrdiff_t)(top + i) * paper->w + left + j) * 3 + c] =
                    picture_byte((x[c * SHAPE_PIXELS + i / zoom * SIDE + j / zoom] + 1) / 2);
}

#endif
