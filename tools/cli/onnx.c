/* jem export --onnx: a network as an ONNX graph, with the slope of log p(x). The graph is recorded
   on a small tape, as jem.h records it; then gradients are added by walking the tape back. A file
   is a protocol buffer (github.com/onnx/onnx, onnx/onnx.proto, fields by number), written here byte
   by byte. */
#include "tools/cli/system.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "tools/cli/onnx.h"
#include "tools/cli/train.h"
#include "tools/support/new_file.h"
#include "tools/support/options.h"

/* ---- protocol buffers ------------------------------------------------------------------------ */

typedef struct bytes {
    unsigned char *at;
    size_t n, room;
    int failed;                                    /* no memory; what follows is ignored */
} bytes;

static void put_bytes(bytes *b, const void *from, size_t n) {
    if (b->n + n > b->room && !b->failed) {
        const size_t room = 2 * (b->n + n);
        unsigned char *at = (unsigned char *)realloc(b->at, room);
        if (at) {
            b->at = at;
            b->room = room;
        } else b->failed = 1;
    }
    if (b->failed || n == 0) return;
    memcpy(b->at + b->n, from, n);
    b->n += n;
}

static void put_varint(bytes *b, uint64_t value) {
    unsigned char digits[10];
    size_t n = 0;
    while (value > 127) {
        digits[n++] = (unsigned char)(128 | (value & 127));
        value >>= 7;
    }
    digits[n++] = (unsigned char)value;
    put_bytes(b, digits, n);
}

enum { WIRE_VARINT = 0, WIRE_LENGTH = 2, WIRE_FIXED32 = 5 };

static void put_key(bytes *b, int field, int wire) {
    put_varint(b, (uint64_t)(field << 3 | wire));
}
static void put_int(bytes *b, int field, int64_t value) {
    put_key(b, field, WIRE_VARINT);
    put_varint(b, (uint64_t)value);
}
static void put_length(bytes *b, int field, const void *from, size_t n) {
    put_key(b, field, WIRE_LENGTH);
    put_varint(b, n);
    put_bytes(b, from, n);
}
static void put_text(bytes *b, int field, const char *text) {
    put_length(b, field, text, strlen(text));
}
/* Writes a message as a field of another, and frees it. */
static void put_message(bytes *b, int field, bytes *message) {
    put_length(b, field, message->at, message->n);
    b->failed |= message->failed;
    free(message->at);
    memset(message, 0, sizeof *message);
}
/* Writes a float in little-endian order. */
static void put_float(bytes *b, float value) {
    uint32_t bits;
    unsigned char four[4];
    memcpy(&bits, &value, sizeof bits);
    for (int i = 0; i < 4; i++) four[i] = (unsigned char)(bits >> 8 * i);
    put_bytes(b, four, sizeof four);
}

/* ---- the tape -------------------------------------------------------------------------------- */

typedef enum op_kind {
    INPUT, CONV, LINEAR, AFFINE, LEAKY, RELU, SILU, TANH, ADD, MUL, FLATTEN, POOL, UPSAMPLE, SUM,
    SQUARE, SCALE, SHIFT, LOG, LOGSUMEXP, UNITS
} op_kind;

enum { NAME_ROOM = 96, VALUES_MAX = 16384 };

/* A tensor and the op that computes it; number 0 is the input x. */
typedef struct value {
    int c, h, w;
    op_kind op;
    int in[2];                                     /* numbers of values; -1: not there */
    int flat;                                      /* 1: (n,c); 0: (n,c,h,w) */
    const jem_param *weight;
    int stride, pad;                               /* of a convolution; stride also of UPSAMPLE */
    float a;                                       /* constant of LEAKY, SCALE, SHIFT */
    char factor[NAME_ROOM];                        /* of AFFINE and UNITS: name of a constant */
    char name[NAME_ROOM], gradient[NAME_ROOM];     /* in the graph; "": not there */
} value;

typedef struct graph {
    const jem_net *net;
    value *values;
    int n;
    bytes nodes, constants;                        /* fields 1 and 5 of a GraphProto */
    int temporaries;
    char *message;
} graph;

/* Keeps the first reason of a failure; returns -1, the number of no value. */
static int refuse(graph *g, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    if (!*g->message) vsnprintf(g->message, ONNX_MESSAGE_SIZE, format, arguments);
    va_end(arguments);
    return -1;
}

/* ---- nodes and constants --------------------------------------------------------------------- */

/* Begins a NodeProto; names of inputs may be "". */
static bytes node_open(const char *op, const char *output, const char *a, const char *b,
                       const char *c) {
    bytes node = { NULL, 0, 0, 0 };
    put_text(&node, 1, a);
    if (b) put_text(&node, 1, b);
    if (c) put_text(&node, 1, c);
    put_text(&node, 2, output);
    put_text(&node, 3, output);
    put_text(&node, 4, op);
    return node;
}
static void node_int(bytes *node, const char *name, int number) {
    bytes attribute = { NULL, 0, 0, 0 };
    put_text(&attribute, 1, name);
    put_int(&attribute, 3, number);
    put_int(&attribute, 20, 2);
    put_message(node, 5, &attribute);
}
static void node_float(bytes *node, const char *name, float number) {
    bytes attribute = { NULL, 0, 0, 0 };
    put_text(&attribute, 1, name);
    put_key(&attribute, 2, WIRE_FIXED32);
    put_float(&attribute, number);
    put_int(&attribute, 20, 1);
    put_message(node, 5, &attribute);
}
static void node_text(bytes *node, const char *name, const char *text) {
    bytes attribute = { NULL, 0, 0, 0 };
    put_text(&attribute, 1, name);
    put_text(&attribute, 4, text);
    put_int(&attribute, 20, 3);
    put_message(node, 5, &attribute);
}
static void node_ints(bytes *node, const char *name, int count, int number) {
    bytes attribute = { NULL, 0, 0, 0 };
    put_text(&attribute, 1, name);
    for (int i = 0; i < count; i++) put_int(&attribute, 8, number);
    put_int(&attribute, 20, 7);
    put_message(node, 5, &attribute);
}
static void node_close(graph *g, bytes *node) { put_message(&g->nodes, 1, node); }

static void node(graph *g, const char *op, const char *output, const char *a, const char *b) {
    bytes made = node_open(op, output, a, b, NULL);
    node_close(g, &made);
}

/* Makes up the name of an intermediate result. */
static void temporary(graph *g, char to[NAME_ROOM]) {
    snprintf(to, NAME_ROOM, "t%d", g->temporaries++);
}

/* Begins a constant, a TensorProto; `data` receives its bytes. */
static bytes constant_open(const char *name, int type, const int *shape, int ndim) {
    bytes tensor = { NULL, 0, 0, 0 };
    for (int i = 0; i < ndim; i++) put_int(&tensor, 1, shape[i]);
    put_int(&tensor, 2, type);
    put_text(&tensor, 8, name);
    return tensor;
}
static void constant_close(graph *g, bytes *tensor, bytes *data) {
    put_message(tensor, 9, data);
    put_message(&g->constants, 5, tensor);
}

/* Adds an array of floats. */
static void constant(graph *g, const char *name, const float *from, const int *shape, int ndim) {
    bytes tensor = constant_open(name, 1, shape, ndim);
    bytes data = { NULL, 0, 0, 0 };
    ptrdiff_t n = 1;
    for (int i = 0; i < ndim; i++) n *= shape[i];
    for (ptrdiff_t i = 0; i < n; i++) put_float(&data, from[i]);
    constant_close(g, &tensor, &data);
}
/* Adds a number, and writes its name. */
static void number(graph *g, float from, char name[NAME_ROOM]) {
    temporary(g, name);
    constant(g, name, &from, NULL, 0);
}
/* Adds a list of integers, and writes its name. */
static void integers(graph *g, const int *from, int n, char name[NAME_ROOM]) {
    bytes data = { NULL, 0, 0, 0 };
    temporary(g, name);
    bytes tensor = constant_open(name, 7, &n, 1);
    for (int i = 0; i < n; i++) {
        unsigned char eight[8];
        for (int k = 0; k < 8; k++) eight[k] = (unsigned char)((uint64_t)from[i] >> 8 * k);
        put_bytes(&data, eight, sizeof eight);
    }
    constant_close(g, &tensor, &data);
}

static void weights(graph *g, const jem_param *p) {
    constant(g, p->name, p->value, p->shape, p->ndim);
}
/* Adds a convolution's weights with the roles of its channels exchanged, turned by 180 degrees. */
static void turned_weights(graph *g, const jem_param *p, const char *name) {
    const int shape[4] = { p->shape[1], p->shape[0], p->shape[2], p->shape[3] };
    const int pixels = p->shape[2] * p->shape[3];
    bytes tensor = constant_open(name, 1, shape, 4);
    bytes data = { NULL, 0, 0, 0 };
    for (int i = 0; i < shape[0]; i++)
        for (int o = 0; o < shape[1]; o++)
            for (int k = pixels - 1; k >= 0; k--)
                put_float(&data, p->value[((ptrdiff_t)o * shape[0] + i) * pixels + k]);
    constant_close(g, &tensor, &data);
}

/* ---- ops, forward ---------------------------------------------------------------------------- */

/* Appends a value that `op` computes from x (and y, or -1). Returns its number, or -1. */
static int record(graph *g, op_kind op, int x, int y, int c, int h, int w) {
    if (x < 0 || g->n == VALUES_MAX) return refuse(g, "too many ops");
    value *v = &g->values[g->n];
    memset(v, 0, sizeof *v);
    v->op = op;
    v->in[0] = x;
    v->in[1] = y;
    v->c = c;
    v->h = h;
    v->w = w;
    v->flat = op == LINEAR || op == FLATTEN || op == POOL || op == SUM || op == LOGSUMEXP;
    snprintf(v->name, sizeof v->name, "v%d", g->n);
    return g->n++;
}
static int record_like(graph *g, op_kind op, int x, int y) {
    if (x < 0 || (y < 0 && (op == ADD || op == MUL))) return -1;
    const value in = g->values[x];
    const int made = record(g, op, x, y, in.c, in.h, in.w);
    if (made >= 0) g->values[made].flat = in.flat;
    return made;
}

/* Returns a parameter of the layer of that name, or NULL and reports that it is missing. */
static const jem_param *find_param(graph *g, const char *layer, const char *suffix) {
    char name[NAME_ROOM];
    snprintf(name, sizeof name, "%s.%s", layer, suffix);
    const jem_param *p = jem_net_find(g->net, name);
    if (!p) refuse(g, "the network has no %s", name);
    return p;
}

static int conv(graph *g, int x, const char *layer, int stride) {
    const jem_param *weight = find_param(g, layer, "weight");
    const jem_param *bias = find_param(g, layer, "bias");
    if (x < 0 || !weight || !bias) return -1;
    const int k = weight->shape[2];
    const int pad = (k - 1) / 2;
    const value in = g->values[x];
    const int y = record(g, CONV, x, -1, weight->shape[0], (in.h + 2 * pad - k) / stride + 1,
                         (in.w + 2 * pad - k) / stride + 1);
    if (y < 0) return -1;
    value *v = &g->values[y];
    v->weight = weight;
    v->stride = stride;
    v->pad = pad;
    weights(g, weight);
    weights(g, bias);
    bytes made = node_open("Conv", v->name, in.name, weight->name, bias->name);
    node_ints(&made, "kernel_shape", 2, k);
    node_ints(&made, "strides", 2, stride);
    node_ints(&made, "pads", 4, pad);
    node_close(g, &made);
    return y;
}

static int linear(graph *g, int x, const jem_param *weight, const jem_param *bias) {
    if (x < 0 || !weight) return -1;
    const int y = record(g, LINEAR, x, -1, weight->shape[0], 1, 1);
    if (y < 0) return -1;
    g->values[y].weight = weight;
    weights(g, weight);
    if (bias) weights(g, bias);
    const char *bias_name = NULL;
    if (bias) bias_name = bias->name;
    bytes made = node_open("Gemm", g->values[y].name, g->values[x].name, weight->name, bias_name);
    node_int(&made, "transB", 1);
    node_close(g, &made);
    return y;
}
static int linear_layer(graph *g, int x, const char *layer) {
    const jem_param *weight = find_param(g, layer, "weight");
    const jem_param *bias = find_param(g, layer, "bias");
    if (!weight || !bias) return -1;
    return linear(g, x, weight, bias);
}

/* Records x * a[c] + b[c]. */
static int affine(graph *g, int x, const char *layer, const float *a, const float *b) {
    const int y = record_like(g, AFFINE, x, -1);
    if (y < 0) return -1;
    const int shape[4] = { 1, g->values[y].c, 1, 1 };
    char factor[NAME_ROOM], term[NAME_ROOM], product[NAME_ROOM];
    snprintf(factor, sizeof factor, "%.80s.a", layer);
    snprintf(term, sizeof term, "%.80s.b", layer);
    constant(g, factor, a, shape, 4);
    constant(g, term, b, shape, 4);
    temporary(g, product);
    node(g, "Mul", product, g->values[x].name, factor);
    node(g, "Add", g->values[y].name, product, term);
    snprintf(g->values[y].factor, NAME_ROOM, "%s", factor);
    return y;
}

/* Records a norm in evaluation mode, where it is a factor and a term for each channel. */
static int norm(graph *g, int x, const char *layer, jem_norm how) {
    if (x < 0 || how == JEM_NORM_NONE) return x;
    if (how != JEM_NORM_BATCH && how != JEM_NORM_ACT)
        return refuse(g, "instance and layer norm are not supported: their statistics depend on "
                      "the image");
    const int channels = g->values[x].c;
    const int batch = how == JEM_NORM_BATCH;
    const jem_param *gain = find_param(g, layer, batch ? "weight" : "scale");
    const jem_param *offset = find_param(g, layer, batch ? "bias" : "loc");
    const jem_param *mean = gain;
    const jem_param *var = gain;
    if (batch) {
        mean = find_param(g, layer, "running_mean");
        var = find_param(g, layer, "running_var");
    }
    float *a = (float *)calloc((size_t)channels * 2, sizeof *a);
    int y = -1;
    if (!a) refuse(g, "no memory");
    if (a && gain && offset && mean && var) {
        float *b = a + channels;
        for (int c = 0; c < channels; c++) {
            a[c] = gain->value[c];
            b[c] = gain->value[c] * offset->value[c];
            if (!batch) continue;
            a[c] = gain->value[c] / sqrtf(var->value[c] + 1e-5f);
            b[c] = offset->value[c] - mean->value[c] * a[c];
        }
        y = affine(g, x, layer, a, b);
    }
    free(a);
    return y;
}

static int activate(graph *g, int x, jem_activation how, float slope) {
    static const op_kind kinds[] = { LEAKY, RELU, SILU, TANH };
    const int y = record_like(g, kinds[how], x, -1);
    if (y < 0) return -1;
    value *v = &g->values[y];
    const char *from = g->values[x].name;
    v->a = slope;
    if (how == JEM_ACTIVATION_LEAKY_RELU) {
        bytes made = node_open("LeakyRelu", v->name, from, NULL, NULL);
        node_float(&made, "alpha", slope);
        node_close(g, &made);
    } else if (how == JEM_ACTIVATION_SILU) {
        char sigmoid[NAME_ROOM];
        snprintf(sigmoid, sizeof sigmoid, "sigmoid%d", y);
        node(g, "Sigmoid", sigmoid, from, NULL);
        node(g, "Mul", v->name, from, sigmoid);
    } else node(g, how == JEM_ACTIVATION_RELU ? "Relu" : "Tanh", v->name, from, NULL);
    return y;
}

static int pair(graph *g, op_kind op, int x, int y) {
    const int z = record_like(g, op, x, y);
    if (z < 0) return -1;
    node(g, op == ADD ? "Add" : "Mul", g->values[z].name, g->values[x].name, g->values[y].name);
    return z;
}

/* Records an op with a number: x * a, x + a, x * x or log x. */
static int with_number(graph *g, op_kind op, int x, float a) {
    const int y = record_like(g, op, x, -1);
    char other[NAME_ROOM];
    if (y < 0) return -1;
    const char *from = g->values[x].name;
    const char *to = g->values[y].name;
    g->values[y].a = a;
    if (op == SCALE || op == SHIFT) number(g, a, other);
    if (op == SCALE) node(g, "Mul", to, from, other);
    if (op == SHIFT) node(g, "Add", to, from, other);
    if (op == SQUARE) node(g, "Mul", to, from, from);
    if (op == LOG) node(g, "Log", to, from, NULL);
    return y;
}

static int flatten(graph *g, int x) {
    static const int shape[2] = { 0, -1 };
    if (x < 0) return -1;
    const value in = g->values[x];
    const int y = record(g, FLATTEN, x, -1, in.c * in.h * in.w, 1, 1);
    char name[NAME_ROOM];
    if (y < 0) return -1;
    integers(g, shape, 2, name);
    node(g, "Reshape", g->values[y].name, in.name, name);
    return y;
}

/* Records the mean over pixels, (n,c). */
static int pool(graph *g, int x) {
    static const int shape[2] = { 0, -1 };
    const int y = x < 0 ? -1 : record(g, POOL, x, -1, g->values[x].c, 1, 1);
    char name[NAME_ROOM], mean[NAME_ROOM];
    if (y < 0) return -1;
    integers(g, shape, 2, name);
    temporary(g, mean);
    node(g, "GlobalAveragePool", mean, g->values[x].name, NULL);
    node(g, "Reshape", g->values[y].name, mean, name);
    return y;
}

static int upsample(graph *g, int x, int k) {
    if (x < 0) return -1;
    const value in = g->values[x];
    const int y = record(g, UPSAMPLE, x, -1, in.c, in.h * k, in.w * k);
    const float scales[4] = { 1, 1, (float)k, (float)k };
    static const int four = 4;
    char name[NAME_ROOM];
    if (y < 0) return -1;
    g->values[y].stride = k;
    temporary(g, name);
    constant(g, name, scales, &four, 1);
    bytes made = node_open("Resize", g->values[y].name, in.name, "", name);
    node_text(&made, "mode", "nearest");
    node_text(&made, "coordinate_transformation_mode", "asymmetric");
    node_text(&made, "nearest_mode", "floor");
    node_close(g, &made);
    return y;
}

/* Records the sum of an image, (n,1), of (n,c,h,w) or (n,c). */
static int sum_image(graph *g, int x) {
    static const int axes[] = { 1, 2, 3 };
    static const int shape[2] = { 0, 1 };
    const int y = x < 0 ? -1 : record(g, SUM, x, -1, 1, 1, 1);
    char name[NAME_ROOM], sum[NAME_ROOM], flat[NAME_ROOM];
    if (y < 0) return -1;
    integers(g, axes, g->values[x].flat ? 1 : 3, name);
    temporary(g, sum);
    bytes made = node_open("ReduceSum", sum, g->values[x].name, name, NULL);
    node_int(&made, "keepdims", 1);
    node_close(g, &made);
    integers(g, shape, 2, flat);
    node(g, "Reshape", g->values[y].name, sum, flat);
    return y;
}

static int logsumexp(graph *g, int x) {
    const int y = x < 0 ? -1 : record(g, LOGSUMEXP, x, -1, 1, 1, 1);
    if (y < 0) return -1;
    bytes made = node_open("ReduceLogSumExp", g->values[y].name, g->values[x].name, NULL, NULL);
    node_ints(&made, "axes", 1, 1);
    node_int(&made, "keepdims", 1);
    node_close(g, &made);
    return y;
}

/* ---- ops, backward --------------------------------------------------------------------------- */

/* Adds `name` to the gradient of a value. */
static void gradient_add(graph *g, int x, const char *name) {
    char sum[NAME_ROOM];
    value *v = &g->values[x];
    if (*v->gradient) {
        temporary(g, sum);
        node(g, "Add", sum, v->gradient, name);
        snprintf(v->gradient, NAME_ROOM, "%s", sum);
    } else snprintf(v->gradient, NAME_ROOM, "%s", name);
}

/* Computes a convolution's input gradient: with stride 1 as a convolution with turned weights. */
static void conv_back(graph *g, const value *v, const char *dx) {
    const value *in = &g->values[v->in[0]];
    const int k = v->weight->shape[2];
    char name[NAME_ROOM];
    snprintf(name, sizeof name, "%s", v->weight->name);
    if (v->stride == 1) {
        snprintf(name, sizeof name, "%.80s.turned", v->weight->name);
        turned_weights(g, v->weight, name);
    }
    bytes made = node_open(v->stride == 1 ? "Conv" : "ConvTranspose", dx, v->gradient, name, NULL);
    node_ints(&made, "kernel_shape", 2, k);
    node_ints(&made, "strides", 2, v->stride);
    node_ints(&made, "pads", 4, v->stride == 1 ? k - 1 - v->pad : v->pad);
    if (v->stride > 1) {
        bytes attribute = { NULL, 0, 0, 0 };       /* two numbers: sides may differ */
        put_text(&attribute, 1, "output_padding");
        put_int(&attribute, 8, (in->h + 2 * v->pad - k) % v->stride);
        put_int(&attribute, 8, (in->w + 2 * v->pad - k) % v->stride);
        put_int(&attribute, 20, 7);
        put_message(&made, 5, &attribute);
    }
    node_close(g, &made);
}

/* Computes dx = dy f'(x) of an activation. */
static void activation_back(graph *g, int at, const char *dx) {
    const value *v = &g->values[at];
    const char *x = g->values[v->in[0]].name;
    const char *dy = v->gradient;
    char t[4][NAME_ROOM], one[NAME_ROOM], sigmoid[NAME_ROOM];
    for (int i = 0; i < 4; i++) temporary(g, t[i]);
    number(g, v->op == LEAKY || v->op == RELU ? 0 : 1, one);
    if (v->op == LEAKY || v->op == RELU) {
        char leak[NAME_ROOM];
        number(g, v->op == RELU ? 0 : v->a, leak);
        node(g, "Less", t[0], x, one);
        node(g, "Mul", t[1], dy, leak);
        bytes made = node_open("Where", dx, t[0], t[1], dy);
        node_close(g, &made);
    } else if (v->op == SILU) {                    /* s + y (1 - s) */
        snprintf(sigmoid, sizeof sigmoid, "sigmoid%d", at);
        node(g, "Sub", t[0], one, sigmoid);
        node(g, "Mul", t[1], v->name, t[0]);
        node(g, "Add", t[2], sigmoid, t[1]);
        node(g, "Mul", dx, dy, t[2]);
    } else {                                       /* 1 - y^2 */
        node(g, "Mul", t[0], v->name, v->name);
        node(g, "Sub", t[1], one, t[0]);
        node(g, "Mul", dx, dy, t[1]);
    }
}

/* Spreads a number per channel or image, times a factor, over the values of x. */
static void spread(graph *g, const value *x, const char *from, float factor, const char *dx) {
    static const int shape[4] = { 0, -1, 1, 1 };
    char name[NAME_ROOM], view[NAME_ROOM], other[NAME_ROOM], scaled[NAME_ROOM], like[NAME_ROOM];
    temporary(g, view);
    temporary(g, scaled);
    temporary(g, like);
    integers(g, shape, x->flat ? 2 : 4, name);
    number(g, factor, other);
    node(g, "Mul", scaled, from, other);
    node(g, "Reshape", view, scaled, name);
    node(g, "Shape", like, x->name, NULL);
    node(g, "Expand", dx, view, like);
}

/* Computes the gradient of what was upsampled: the sum of each window. */
static void upsample_back(graph *g, const value *v, const char *dx) {
    char mean[NAME_ROOM], area[NAME_ROOM];
    temporary(g, mean);
    number(g, (float)(v->stride * v->stride), area);
    bytes made = node_open("AveragePool", mean, v->gradient, NULL, NULL);
    node_ints(&made, "kernel_shape", 2, v->stride);
    node_ints(&made, "strides", 2, v->stride);
    node_close(g, &made);
    node(g, "Mul", dx, mean, area);
}

static void flatten_back(graph *g, const value *v, const char *dx) {
    const value *in = &g->values[v->in[0]];
    const int shape[4] = { 0, in->c, in->h, in->w };
    char name[NAME_ROOM];
    integers(g, shape, 4, name);
    node(g, "Reshape", dx, v->gradient, name);
}

/* Computes dx of an op with a number, or of the square. */
static void number_back(graph *g, const value *v, const char *dx) {
    const char *x = g->values[v->in[0]].name;
    char other[NAME_ROOM], twice[NAME_ROOM];
    if (v->op == LOG) {
        node(g, "Div", dx, v->gradient, x);
        return;
    }
    number(g, v->op == SQUARE ? 2 : v->a, other);
    if (v->op == SCALE) {
        node(g, "Mul", dx, v->gradient, other);
        return;
    }
    temporary(g, twice);
    node(g, "Mul", twice, x, other);
    node(g, "Mul", dx, v->gradient, twice);
}

static void logsumexp_back(graph *g, const value *v, const char *dx) {
    char softmax[NAME_ROOM];
    temporary(g, softmax);
    bytes made = node_open("Softmax", softmax, g->values[v->in[0]].name, NULL, NULL);
    node_int(&made, "axis", 1);
    node_close(g, &made);
    node(g, "Mul", dx, v->gradient, softmax);
}

/* Adds the gradients of the inputs of one op. */
static void back(graph *g, int at) {
    const value v = g->values[at];
    const value *in = &g->values[v.in[0]];
    char dx[NAME_ROOM], dy[NAME_ROOM];
    temporary(g, dx);
    switch (v.op) {
    case CONV: conv_back(g, &v, dx); break;
    case LINEAR: node(g, "MatMul", dx, v.gradient, v.weight->name); break;
    case AFFINE: node(g, "Mul", dx, v.gradient, v.factor); break;
    case UNITS: node(g, "Div", dx, v.gradient, v.factor); break;
    case LEAKY: case RELU: case SILU: case TANH: activation_back(g, at, dx); break;
    case FLATTEN: flatten_back(g, &v, dx); break;
    case POOL: spread(g, in, v.gradient, 1 / (float)(in->h * in->w), dx); break;
    case SUM: spread(g, in, v.gradient, 1, dx); break;
    case UPSAMPLE: upsample_back(g, &v, dx); break;
    case SCALE: case SQUARE: case LOG: number_back(g, &v, dx); break;
    case LOGSUMEXP: logsumexp_back(g, &v, dx); break;
    case MUL:
        temporary(g, dy);
        node(g, "Mul", dx, v.gradient, g->values[v.in[1]].name);
        node(g, "Mul", dy, v.gradient, in->name);
        gradient_add(g, v.in[1], dy);
        break;
    case ADD:
        gradient_add(g, v.in[1], v.gradient);
        snprintf(dx, sizeof dx, "%s", v.gradient);
        break;
    default: snprintf(dx, sizeof dx, "%s", v.gradient); break;      /* SHIFT */
    }
    gradient_add(g, v.in[0], dx);
}

/* ---- networks -------------------------------------------------------------------------------- */

/* Returns a field of the network's description. */
static double field(const graph *g, const char *key, double missing) {
    const char *text = jem_net_meta(g->net, key);
    return text ? strtod(text, NULL) : missing;
}
static int int_field(const graph *g, const char *key) { return (int)field(g, key, 0); }

static int activation(graph *g, int x) {
    return activate(g, x, (jem_activation)int_field(g, "jem.activation"),
                    (float)field(g, "jem.slope", 0));
}

/* The numbers of a network's outputs; -1: the network does not have it. */
typedef struct outputs { int logits, energy, shift; } outputs;

/* Records the log-density of Student's distribution of z = A u, as jem.h does. */
static int student(graph *g, int z, const jem_param *whiten) {
    const double nu = field(g, "jem.student", 0);
    const int d = g->net->channels;
    double constant = lgamma((nu + d) / 2) - lgamma(nu / 2) - d / 2.0 * log(nu * 3.14159265358979);
    for (int i = 0; i < d; i++) constant += log(fabs((double)whiten->value[i * d + i]));
    int y = sum_image(g, with_number(g, SQUARE, z, 0));
    y = with_number(g, SCALE, y, (float)(1 / nu));
    y = with_number(g, SHIFT, y, 1);
    y = with_number(g, LOG, y, 0);
    y = with_number(g, SCALE, y, (float)(-(nu + d) / 2));
    return with_number(g, SHIFT, y, (float)constant);
}

/* Records a convnet or an MLP. */
static outputs record_stack(graph *g, int x, int convs) {
    outputs made = { -1, -1, -1 };
    const float quadratic = (float)field(g, "jem.quadratic", 0);
    if (quadratic > 0) {
        const int square = sum_image(g, with_number(g, SQUARE, x, 0));
        made.shift = with_number(g, SCALE, square, -0.5f * quadratic);
    }
    if (!convs) x = flatten(g, x);
    if (int_field(g, "jem.student")) {
        const jem_param *whiten = find_param(g, "whiten", "weight");
        x = linear(g, x, whiten, NULL);
        if (whiten) made.shift = student(g, x, whiten);
    }
    for (int i = 0; i < int_field(g, "jem.layers"); i++) {
        char name[NAME_ROOM];
        snprintf(name, sizeof name, "%s%d", convs ? "conv" : "linear", i + 1);
        if (convs) x = conv(g, x, name, i > 0 ? 2 : 1);
        else x = linear_layer(g, x, name);
        x = activation(g, x);
    }
    if (convs) x = flatten(g, x);
    if (int_field(g, "jem.uncond")) made.energy = linear_layer(g, x, "energy_output");
    made.logits = linear_layer(g, x, "class_output");
    return made;
}

/* Writes the name of a part of a block. */
static const char *part(char to[NAME_ROOM], const char *block, const char *suffix) {
    snprintf(to, NAME_ROOM, "%.60s.%.30s", block, suffix);
    return to;
}

/* Records a block of a wide residual network; `name` begins the names of its layers. */
static int record_block(graph *g, int x, const char *name, int stride) {
    const jem_norm how = (jem_norm)int_field(g, "jem.norm");
    char layer[NAME_ROOM];
    int y = norm(g, x, part(layer, name, "bn1"), how);
    y = conv(g, activation(g, y), part(layer, name, "conv1"), 1);
    y = norm(g, y, part(layer, name, "bn2"), how);
    y = conv(g, activation(g, y), part(layer, name, "conv2"), stride);
    if (jem_net_find(g->net, part(layer, name, "shortcut.0.weight")))
        x = conv(g, x, part(layer, name, "shortcut.0"), stride);
    return pair(g, ADD, y, x);
}

enum { STAGES = 3 };

/* Records e(x) = sum of x U(x), as jem.h does. */
static int record_unet(graph *g, int x, const int features[STAGES]) {
    const int stem_stride = int_field(g, "jem.stem_stride");
    int y = features[STAGES - 1];
    for (int i = STAGES - 2; i >= 0; i--) {
        char name[NAME_ROOM];
        snprintf(name, sizeof name, "u.up%d", i + 1);
        const int coarse = conv(g, upsample(g, y, 2), name, 1);
        snprintf(name, sizeof name, "u.skip%d", i + 1);
        const int fine = conv(g, activation(g, features[i]), name, 1);
        y = activation(g, pair(g, ADD, coarse, fine));
    }
    if (stem_stride > 1) y = upsample(g, y, stem_stride);
    y = conv(g, y, "u.energy_output", 1);
    return sum_image(g, pair(g, MUL, y, x));
}

/* Records a wide residual network. */
static outputs record_wrn(graph *g, int x) {
    const int zero = (int)field(g, "jem.blocks", 0) == JEM_BLOCKS_ZERO;
    const int per_stage = (int_field(g, "jem.depth") - 4) / 6;
    outputs made = { -1, -1, -1 };
    int features[STAGES];
    int y = conv(g, x, "f.conv1", int_field(g, "jem.stem_stride"));
    for (int stage = 0; stage < STAGES; stage++) {
        char name[NAME_ROOM];
        if (stage > 0 && zero) {
            snprintf(name, sizeof name, "f.down%d", stage);
            y = conv(g, activation(g, y), name, 2);
        }
        for (int i = 0; i < per_stage; i++) {
            snprintf(name, sizeof name, "f.layer%d.%d", stage + 1, i);
            y = record_block(g, y, name, stage > 0 && i == 0 && !zero ? 2 : 1);
        }
        features[stage] = y;
    }
    y = activation(g, norm(g, y, "f.bn1", (jem_norm)int_field(g, "jem.norm")));
    features[STAGES - 1] = y;
    if (int_field(g, "jem.unet")) made.shift = record_unet(g, x, features);
    if (int_field(g, "jem.head") == JEM_HEAD_FLAT) y = flatten(g, y);
    else y = pool(g, y);
    if (int_field(g, "jem.uncond")) made.energy = linear_layer(g, y, "energy_output");
    made.logits = linear_layer(g, y, "class_output");
    return made;
}

/* Records u = (x - mean) / scale, limited as in jem.h; log_scale is log p(u) - log p(x). Returns x
   if the network has no units. */
static int record_units(graph *g, int x, double *log_scale) {
    const char *text = jem_net_meta(g->net, "jem.units");
    const int channels = g->net->channels;
    const int shape[4] = { 1, channels, 1, 1 };
    *log_scale = 0;
    if (!text) return x;
    float *units = (float *)calloc((size_t)channels * 2, sizeof *units);
    if (!units) return refuse(g, "no memory");
    for (int c = 0; c < channels; c++) {
        char *rest = NULL;
        units[c] = (float)strtod(text, &rest);
        units[channels + c] = (float)strtod(rest, &rest);
        *log_scale += g->net->height * g->net->width * log((double)units[channels + c]);
        text = rest;
    }
    const int y = record_like(g, UNITS, x, -1);
    value *v = &g->values[y];
    char mean[NAME_ROOM], centred[NAME_ROOM], divided[NAME_ROOM], lo[NAME_ROOM], hi[NAME_ROOM];
    temporary(g, mean);
    temporary(g, v->factor);
    temporary(g, centred);
    temporary(g, divided);
    constant(g, mean, units, shape, 4);
    constant(g, v->factor, units + channels, shape, 4);
    number(g, -1e4f, lo);
    number(g, 1e4f, hi);
    node(g, "Sub", centred, g->values[x].name, mean);
    node(g, "Div", divided, centred, v->factor);
    bytes made = node_open("Clip", v->name, divided, lo, hi);
    node_close(g, &made);
    free(units);
    return y;
}

/* Records the network and log p(x); returns the number of the latter. */
static int record_net(graph *g, int *logits) {
    const char *kind = jem_net_meta(g->net, "jem.net");
    double log_scale;
    int x = record_units(g, 0, &log_scale);
    outputs made = { -1, -1, -1 };
    if (kind && !strcmp(kind, "wrn")) made = record_wrn(g, x);
    else if (kind && (!strcmp(kind, "convnet") || !strcmp(kind, "mlp")))
        made = record_stack(g, x, !strcmp(kind, "convnet"));
    else
        return refuse(g, "cannot be an ONNX graph: of the kinds of networks (jem.net), wrn, "
                      "convnet and mlp are supported, not '%.40s'", kind ? kind : "your own");
    *logits = made.logits;
    int logp = made.energy;
    if (logp < 0) logp = logsumexp(g, made.logits);
    if (g->net->scale != 1) logp = with_number(g, SCALE, logp, g->net->scale);
    if (made.shift >= 0) logp = pair(g, ADD, logp, made.shift);
    if (log_scale > 0 || log_scale < 0) logp = with_number(g, SHIFT, logp, (float)-log_scale);
    return logp;
}

/* ---- the file -------------------------------------------------------------------------------- */

/* Adds a ValueInfoProto: n floats for each of the other sizes. */
static void describe(bytes *to, int field_number, const char *name, const int *sizes, int count) {
    bytes dimension = { NULL, 0, 0, 0 };
    bytes shape = { NULL, 0, 0, 0 };
    bytes tensor = { NULL, 0, 0, 0 };
    bytes type = { NULL, 0, 0, 0 };
    bytes info = { NULL, 0, 0, 0 };
    put_text(&dimension, 2, "n");
    put_message(&shape, 1, &dimension);
    for (int i = 0; i < count; i++) {
        put_int(&dimension, 1, sizes[i]);
        put_message(&shape, 1, &dimension);
    }
    put_int(&tensor, 1, 1);                        /* of float */
    put_message(&tensor, 2, &shape);
    put_message(&type, 1, &tensor);
    put_text(&info, 1, name);
    put_message(&info, 2, &type);
    put_message(to, field_number, &info);
}

/* Adds a text about the network to the ModelProto. */
static void property(bytes *model, const char *key, const char *text) {
    bytes entry = { NULL, 0, 0, 0 };
    put_text(&entry, 1, key);
    put_text(&entry, 2, text);
    put_message(model, 14, &entry);
}

/* Copies a text of the network, if it has it. */
static void copy_property(bytes *model, const jem_net *net, const char *key) {
    const char *text = jem_net_meta(net, key);
    if (text) property(model, key, text);
}

/* Names the outputs, adds the gradients, and returns the ModelProto. */
static bytes finish(graph *g, int logits, int logp, int slope) {
    static const int flat[1] = { -1 };
    const jem_net *net = g->net;
    const int image[3] = { net->channels, net->height, net->width };
    bytes whole = { NULL, 0, 0, 0 };
    bytes model = { NULL, 0, 0, 0 };
    bytes opset = { NULL, 0, 0, 0 };
    char shape[NAME_ROOM], like[NAME_ROOM], one[NAME_ROOM];
    node(g, "Identity", "logits", g->values[logits].name, NULL);
    integers(g, flat, 1, shape);
    node(g, "Reshape", "logp", g->values[logp].name, shape);
    if (slope) {
        value *target = &g->values[logp];          /* d logp / d logp = 1, of its shape */
        number(g, 1, one);
        temporary(g, like);
        temporary(g, target->gradient);
        node(g, "Shape", like, target->name, NULL);
        node(g, "Expand", target->gradient, one, like);
        for (int i = logp; i > 0; i--)
            if (*g->values[i].gradient) back(g, i);
        node(g, "Identity", "slope", g->values[0].gradient, NULL);
    }
    put_bytes(&whole, g->nodes.at, g->nodes.n);
    put_text(&whole, 2, "jem");
    put_bytes(&whole, g->constants.at, g->constants.n);
    describe(&whole, 11, "x", image, 3);
    describe(&whole, 12, "logits", &net->classes, 1);
    describe(&whole, 12, "logp", NULL, 0);
    if (slope) describe(&whole, 12, "slope", image, 3);
    put_int(&model, 1, 7);                         /* the version of the format */
    put_text(&model, 2, "jem.h");
    whole.failed |= g->nodes.failed | g->constants.failed;
    put_message(&model, 7, &whole);
    put_text(&opset, 1, "");
    put_int(&opset, 2, 13);
    put_message(&model, 8, &opset);
    copy_property(&model, net, "jem.net");
    copy_property(&model, net, "jem.temperature");
    for (int i = 0; i < net->classes; i++) {
        char key[NAME_ROOM];
        snprintf(key, sizeof key, CLASS_PREFIX "%d", i);
        copy_property(&model, net, key);
    }
    return model;
}

int onnx_export(const jem_net *net, const char *path, int slope, char message[ONNX_MESSAGE_SIZE]) {
    graph g;
    new_file file;
    bytes model = { NULL, 0, 0, 0 };
    int logits = -1;
    int written = 0;
    memset(&g, 0, sizeof g);
    *message = 0;
    g.net = net;
    g.message = message;
    g.values = (value *)calloc(VALUES_MAX, sizeof *g.values);
    if (!g.values) {
        refuse(&g, "no memory");
        return 0;
    }
    g.n = 1;
    g.values[0].c = net->channels;
    g.values[0].h = net->height;
    g.values[0].w = net->width;
    snprintf(g.values[0].name, NAME_ROOM, "x");
    const int logp = record_net(&g, &logits);
    if (logp >= 0 && logits >= 0) model = finish(&g, logits, logp, slope);
    if (model.failed) refuse(&g, "no memory");
    if (model.n > INT32_MAX) refuse(&g, "larger than 2 GB, the limit of the format");
    if (!*message) {
        int ok = new_file_open(&file, path);
        ok = ok && new_file_put(&file, model.at, model.n);
        written = new_file_done(&file, ok);
        if (!written) snprintf(message, ONNX_MESSAGE_SIZE, "%s", file.message);
    }
    free(model.at);
    free(g.nodes.at);
    free(g.constants.at);
    free(g.values);
    return written;
}
