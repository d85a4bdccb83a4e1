/* Classifies a picture, and rates its resemblance to the training images.
       build/hello                     a digit and five other images
       build/hello picture.png         your own: any size, one digit, dark on bright or the reverse
                                       (of 28 x 28: as in MNIST, bright on dark)
   Uses the network that `make demo` trains, or else the one in examples/models. The network's
   input: build/pictures/hello.png */
#define JEM_IMPLEMENTATION
#include "jem.h"

#include "tools/support/pictures.h"

enum { MAX_SHOWN = 6 };

/* Converts a picture to 28 x 28 as the network's training images were framed, those of MNIST: white
   on black, the larger side of the ink 20 pixels, its centre of mass near the middle. A picture of
   28 x 28 remains as it is. A network that does not know its framing gets MNIST's. Returns 0
   without ink, or after an error. */
static int to_digit(const jem_net *net, const char *path, const unsigned char *pixels, int w, int h,
                    int channels, float *x) {
    jem_pixels_desc how;
    int did;
    memset(&how, 0, sizeof how);
    if (!jem_net_meta(net, "jem.framing")) how.subject = 20.0f / DIGIT;
    if (jem_pixels_to_floats(net, pixels, w, h, channels, &how, x, &did) != JEM_OK) return 0;
    if (!(did & JEM_DID_FRAME) && did & (JEM_DID_RESIZE | JEM_DID_BLANK)) {
        fprintf(stderr, "%s: no ink on a plain ground\n", path);
        return 0;
    }
    if (did & JEM_DID_INVERT) printf("(dark on bright: inverted)\n");
    if (did & JEM_DID_BLEND)
        printf("(transparent: over %s)\n", did & JEM_DID_OPPOSITE ? "white" : "black");
    return 1;
}

static int from_file(const jem_net *net, const char *path, float *x) {
    int w, h, channels;
    unsigned char *pixels = stbi_load(path, &w, &h, &channels, 0);
    if (!pixels) {
        fprintf(stderr, "%s: cannot be read: %s\n", path, stbi_failure_reason());
        return 0;
    }
    const int ok = to_digit(net, path, pixels, w, h, channels, x);
    stbi_image_free(pixels);
    return ok;
}

static int ask(jem_net *net, const char *path) {
    const char *name[MAX_SHOWN] = {
        "a held-out 4", "upside down", "its negative", "noise", "the letter M", "a shirt"
    };
    static float x[MAX_SHOWN][DIGIT_PIXELS];
    jem_answer answer[MAX_SHOWN];
    int n = MAX_SHOWN;
    if (path) {
        if (!from_file(net, path, x[0])) return 0;
        name[0] = path;
        n = 1;
    } else if (!digits_and_others(net->ctx, x)) return 0;
    if (jem_classify(net, x[0], n, answer) != JEM_OK) return 0;
    for (int i = 0; i < n; i++) {
        /* Softmax must name some digit, and is often confident. `familiarity` compares log p(x),
           its slope, the features and the image with their usual values for that digit. */
        const jem_answer *a = &answer[i];
        printf("%-12s  %d, p = %.3f  log p(x) = %6.1f  ", name[i], a->label,
               (double)a->probability, (double)a->log_density);
        const jem_verdict verdict = jem_judge(a->familiarity);
        printf("%s", jem_verdict_name(verdict));
        if (a->reason != JEM_REASON_NONE) printf(": %s", jem_reason_name(a->reason));
        if (verdict == JEM_VERDICT_FAMILIAR)
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
    jem_net *net = digits_model(ctx, NULL);       /* explains a failure */
    int failed = !net || !ask(net, argc > 1 ? argv[1] : NULL);
    if (net) failed = report(ctx) || failed;
    jem_net_free(net);
    jem_ctx_free(ctx);
    return failed;
}
