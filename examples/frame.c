/* Five digits that form while a game runs: they use the rest of each frame of 16 ms. The sampler
   takes as many steps as fit, and the pixels can be shown at any time.
       make build/frame && build/frame
   Picture: build/pictures/frame.png: the digits after an eighth, two eighths, .. of all frames, and
   below it the time of each frame, with a line at 16 ms */
#ifndef _WIN32
#define _POSIX_C_SOURCE 200809L                    /* clock_gettime */
#endif
#define JEM_IMPLEMENTATION
#include "jem.h"

#ifdef _WIN32
#include <windows.h>
#else
#include <time.h>
#endif

#include "tools/support/chart.h"

enum { DIGITS = 5, SHOTS = 8, MOST_FRAMES = 4000, ZOOM = 3, LEFT = 40, TOP = 20, CELL = 96 };
enum { WIDTH = 2 * LEFT + SHOTS * CELL, PLOT_TOP = TOP + DIGITS * CELL + 20, PLOT_HEIGHT = 160 };
enum { HEIGHT = PLOT_TOP + PLOT_HEIGHT + TOP };

static const double FRAME = 16000;                 /* microseconds, .. */
static const double DRAWING = 2000;                /* .. of which the game uses these, .. */
static const double MARGIN = 2000;                 /* .. and these remain for a slow step */

/* Returns the time in microseconds. */
static double now(void *user) {
    (void)user;
#ifdef _WIN32
    LARGE_INTEGER ticks;
    LARGE_INTEGER per_second;
    QueryPerformanceCounter(&ticks);
    QueryPerformanceFrequency(&per_second);
    return 1e6 * (double)ticks.QuadPart / (double)per_second.QuadPart;
#else
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
#endif
}

/* Times of all frames, and the digits after each of them. */
typedef struct run {
    int frames;
    float ms[MOST_FRAMES];
    float x[MOST_FRAMES][DIGITS][DIGIT_PIXELS];
} run;
static run r;

/* Runs the game's loop. The game does nothing; its time, DRAWING, is added to each frame. */
static jem_status play(jem_net *net) {
    const int labels[DIGITS] = { 2, 0, 2, 6, 7 };
    jem_sampler *s = jem_net_sampler(net, labels, DIGITS, 1, NULL);
    if (!s) return JEM_BAD_ARGUMENT;
    const jem_budget one = { 1, 0, NULL, NULL };               /* a single step */
    jem_budget budget = { 0, FRAME - DRAWING - MARGIN, now, NULL };
    jem_sampler_step(s, &one);                     /* before the first frame: it takes longer */
    while (s->step < s->steps && r.frames < MOST_FRAMES && jem_ok(net->ctx)) {
        const double start = now(NULL);
        jem_sampler_step(s, &budget);
        memcpy(r.x[r.frames], s->x, sizeof r.x[0]);            /* the digits to be shown now */
        r.ms[r.frames++] = (float)(1e-3 * (now(NULL) - start + DRAWING));
    }
    printf("%d steps in %d frames; the slowest recent step took %.1f ms\n", s->step, r.frames,
           1e-3 * s->slowest);
    jem_sampler_free(s);
    return jem_error_status(net->ctx);
}

/* Returns the frame whose digits a column shows. */
static int frame_of(int column) {
    const int frames = (column + 1) * r.frames / SHOTS;
    return frames > 0 ? frames - 1 : 0;            /* a fast machine makes only a few frames */
}

/* Draws the digits of a frame in a column. */
static void draw_digits(plot *p, int column, float (*x)[DIGIT_PIXELS]) {
    for (int k = 0; k < DIGITS; k++) {
        plot_digit(p, LEFT + column * CELL, TOP + k * CELL, ZOOM, x[k]);
    }
}

/* Draws the time of each frame, from 0 to 20 ms, and the limit. */
static void draw_times(plot *p) {
    plot letters = *p;                             /* the same picture, y downwards */
    letters.y0 = HEIGHT;
    letters.y1 = 0;
    text(&letters, LEFT, PLOT_TOP - 22, 2.4f, 0x333333, "time of each frame,");
    text(&letters, LEFT + 216, PLOT_TOP - 22, 2.4f, 0xb03030, "the limit: 16 ms");
    const float ms = (float)PLOT_HEIGHT / 20;
    const float low = (float)TOP;
    const float step = (float)(SHOTS * CELL) / (float)r.frames;
    const float width = fminf(4, fmaxf(1, 0.7f * step));       /* its round ends are half as high */
    plot_line(p, LEFT, low, WIDTH - LEFT, low, 2, 0x808080);
    plot_line(p, LEFT, low + 16 * ms, WIDTH - LEFT, low + 16 * ms, 2, 0xd04040);
    for (int i = 0; i < r.frames; i++) {
        const float x = LEFT + ((float)i + 0.5f) * step;
        plot_line(p, x, low, x, low + fminf(r.ms[i], 20) * ms, width, 0x60a0e0);
    }
}

int main(int argc, char **argv) {
    const char *path = "build/pictures/frame.png";
    jem_ctx_desc desc = { 0 };
    desc.threads = 1;                              /* the game's other threads need the cores */
    jem_ctx *ctx = jem_ctx_create(&desc);
    jem_net *net = digits_model(ctx, argc > 1 ? argv[1] : "examples/models/mnist.safetensors");
    int ok = net && play(net) == JEM_OK;
    plot p;
    if (ok && plot_create(&p, WIDTH, HEIGHT, 0, WIDTH, 0, HEIGHT)) {
        for (int k = 0; k < SHOTS; k++)
            draw_digits(&p, k, r.x[frame_of(k)]);
        draw_times(&p);
        ok = plot_write(&p, path);
        plot_free(&p);
    } else ok = 0;
    int late = 0;
    for (int i = 0; i < r.frames; i++) late += r.ms[i] > (float)(1e-3 * FRAME);
    if (ok) printf("%d of %d frames took more than 16 ms\npicture: %s\n", late, r.frames, path);
    const int failed = !net || report(ctx) || !ok;   /* digits_model explains its failure */
    jem_net_free(net);
    jem_ctx_free(ctx);
    return failed;
}
