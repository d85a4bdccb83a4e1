/* Classifies a picture, and rates its resemblance to the training images.
       build/hello                     a digit and five other images
       build/hello picture.png         your own: any size, one digit, dark on bright or the reverse
   Uses the network that `make demo` trains, or else the one in examples/models. The network's
   input: build/pictures/hello.png */
#define JEM_IMPLEMENTATION
#include "jem.h"

#include "tools/support/pictures.h"

enum { MAX_SHOWN = 6 };

/* Converts a grey picture to 28 x 28 in [-1,1] like the images of MNIST: white on black, the
   bounding box of the ink scaled to 20 pixels (keeping its aspect ratio), its centre of mass in the
   middle. Each pixel is the mean of the pixels that it covers. Paper is the more frequent of the
   brightest and the darkest grey; ink is the other. Returns 0 if there is no ink. */
static int to_digit(const unsigned char *grey, int w, int h, float *x) {
    int darkest = 255, brightest = 0;
    double mean = 0, mass = 0, y_mass = 0, x_mass = 0;
    for (ptrdiff_t k = 0; k < (ptrdiff_t)w * h; k++) {
        if (grey[k] < darkest) darkest = grey[k];
        if (grey[k] > brightest) brightest = grey[k];
        mean += grey[k] / ((double)w * h);
    }
    if (brightest - darkest < 32) return fprintf(stderr, "the picture has no ink\n"), 0;
    const int flip = 2 * mean > darkest + brightest, paper = flip ? brightest : darkest;
    const double most = brightest - darkest;
    if (flip) printf("(dark on bright: inverted)\n");
    int top = h, bottom = 0, left = w, right = 0;  /* the bounding box of the ink */
    for (int i = 0; i < h; i++)
        for (int j = 0; j < w; j++) {
            const double ink = abs(paper - grey[(ptrdiff_t)i * w + j]) / most;
            mass += ink, y_mass += ink * (i + .5), x_mass += ink * (j + .5);
            if (ink <= .5) continue;
            if (i < top) top = i;
            if (j < left) left = j;
            if (j >= right) right = j + 1;
            bottom = i + 1;
        }
    const double pixel = fmax(bottom - top, right - left) / 20.0;
    const double y0 = y_mass / mass - 14 * pixel, x0 = x_mass / mass - 14 * pixel;
    for (int k = 0; k < DIGIT_PIXELS; k++) {
        const double y = y0 + k / DIGIT * pixel, c = x0 + k % DIGIT * pixel;
        double sum = 0, count = 0;
        for (int i = (int)floor(y); i < y + pixel; i++)
            for (int j = (int)floor(c); j < c + pixel; j++, count++)
                if (i >= 0 && i < h && j >= 0 && j < w)                /* outside: black */
                    sum += abs(paper - grey[(ptrdiff_t)i * w + j]) / most;
        x[k] = (float)(2 * sum / count - 1);
    }
    return 1;
}

static int from_file(const char *path, float *x) {
    int w, h;
    unsigned char *grey = picture_read(path, &w, &h);
    if (!grey) return 0;
    const int ok = to_digit(grey, w, h, x);
    stbi_image_free(grey);
    return ok;
}

static int ask(jem_net *net, const char *path) {
    static const char *const name[MAX_SHOWN] = {
        "a held-out 4", "upside down", "its negative", "noise", "the letter M", "a shirt"
    };
    static float x[MAX_SHOWN][DIGIT_PIXELS];
    jem_answer answer[MAX_SHOWN];
    const int n = path ? 1 : MAX_SHOWN;
    if (path ? !from_file(path, x[0]) : !digits_and_others(net->ctx, x)) return 0;
    if (jem_classify(net, x[0], n, answer) != JEM_OK) return 0;
    for (int i = 0; i < n; i++) {
        /* Softmax must name some digit, and is often confident. `familiarity` compares log p(x),
           its slope, the features and the image with their usual values for that digit. */
        const jem_answer *a = &answer[i];
        printf("%-12s  %d, p = %.3f  log p(x) = %6.1f  ", path ? path : name[i], a->label,
               (double)a->probability, (double)a->log_density);
        const jem_verdict verdict = jem_judge(a->familiarity);
        printf("%s", jem_verdict_name(verdict));
        if (a->reason != JEM_REASON_NONE) printf(": %s", jem_reason_name(a->reason));
        if (verdict == JEM_FAMILIAR)
            printf(": more typical than %.0f%% of held-out digits", 100 * (double)a->familiarity);
        printf("\n");
    }
    return picture_grid("build/pictures/hello.png", x[0], n, n, 1, DIGIT, DIGIT, 5);
}

int main(int argc, char **argv) {
    if (argc > 2) {
        fprintf(stderr, "usage: %s [picture]\n", argv[0]);
        return 1;
    }
    jem_ctx *ctx = jem_ctx_create(NULL);
    jem_net *net = digits_model(ctx, NULL);       /* build/digits.safetensors; explains a failure */
    int failed = !net || !ask(net, argc > 1 ? argv[1] : NULL);
    if (net) failed = report(ctx) || failed;
    jem_net_free(net);
    jem_ctx_free(ctx);
    return failed;
}
