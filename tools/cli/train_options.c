/* The options of `jem train`, their defaults, and invalid combinations. */
#include "tools/cli/system.h"

#include <limits.h>
#include <string.h>

#include "tools/cli/train_options.h"

#define AT(field) offsetof(train_options, field)
const option train_table[] = {
    { "the run", OPTION_TITLE, OPTION_NOW, 0, NULL, { NULL, NULL }, 0, 0, NULL },
    { "preset", OPTION_CHOICE, OPTION_FIXED, AT(preset), "paper|fast", { "paper", "fast" }, 0, 0,
      "column of defaults (default: fast)" },
    { "dataset", OPTION_TEXT, OPTION_FREE, AT(dataset), "NAME", { "cifar10", "digits" }, 0, 0,
      "digits, mnist, fashion-mnist, cifar10, cifar100, a CSV file, or a folder, whose pictures "
      "must all be readable" },
    { "data", OPTION_TEXT, OPTION_FREE, AT(data), "DIR", NO_PRESETS("data"), 0, 0,
      "the folder that tools/get-data filled" },
    PICTURE_OPTIONS(train_options, OPTION_FIXED),
    { "label", OPTION_TEXT, OPTION_FIXED, AT(label), "NAME", NO_PRESETS(""), 0, 0,
      "CSV: column of labels: name, number, last, none (label)" },
    { "drop", OPTION_TEXT, OPTION_FIXED, AT(drop), "NAMES", NO_PRESETS(""), 0, 0,
      "CSV: columns to skip, separated by commas" },
    { "skip-rows", OPTION_FLAG, OPTION_FIXED, AT(skip_rows), "", NO_PRESETS("off"), 0, 0,
      "CSV: leave out rows that cannot be read, such as rows with missing values" },
    { "epochs", OPTION_INT, OPTION_FREE, AT(epochs), "N", { "200", "0" }, 0, 1e6,
      "length of the run in epochs; schedules depend on it" },
    { "iters", OPTION_INT, OPTION_FREE, AT(iters), "N", { "0", "1500" }, 0, 1e9,
      "the length in updates instead" },
    { "stop-at", OPTION_INT, OPTION_NOW, AT(stop_at), "K", NO_PRESETS("0"), 0, 1e9,
      "stop after K updates, as if interrupted" },
    { "out", OPTION_TEXT, OPTION_NOW, AT(out), "DIR", NO_PRESETS(""), 0, 0,
      "directory for the results (runs/DATASET)" },
    { "resume", OPTION_TEXT, OPTION_NOW, AT(resume), "DIR", NO_PRESETS(""), 0, 0,
      "continue the run in DIR" },
    { "init", OPTION_TEXT, OPTION_FIXED, AT(init), "FILE", NO_PRESETS(""), 0, 0,
      "start from the weights in FILE (not its units; --blocks zero: it may be smaller)" },
    { "seed", OPTION_INT, OPTION_FIXED, AT(seed), "N", NO_PRESETS("1"), 0, 2147483647,
      "seed for all random numbers" },

    { "the network", OPTION_TITLE, OPTION_NOW, 0, NULL, { NULL, NULL }, 0, 0, NULL },
    { "net", OPTION_CHOICE, OPTION_FIXED, AT(net), "wrn|convnet|mlp", { "wrn", "convnet" }, 0, 0,
      "" },
    { "depth", OPTION_INT, OPTION_FIXED, AT(depth), "N", { "28", "10" }, 10, 1000,
      "wrn: layers, 6k + 4" },
    { "width", OPTION_INT, OPTION_FIXED, AT(width), "N", { "10", "2" }, 1, 100,
      "wrn: multiplies 16, 32, 64 channels" },
    { "stem-stride", OPTION_INT, OPTION_FIXED, AT(stem_stride), "N", NO_PRESETS("1"), 1, 8,
      "wrn: stride of the first convolution" },
    { "blocks", OPTION_CHOICE, OPTION_FIXED, AT(blocks), "wrn|zero", NO_PRESETS("wrn"), 0, 0,
      "wrn: zero: blocks begin as the identity" },
    { "unet", OPTION_FLAG, OPTION_FIXED, AT(unet), "", NO_PRESETS("off"), 0, 0,
      "wrn: log p(x) has a separate U-Net" },
    { "norm", OPTION_CHOICE, OPTION_FIXED, AT(norm), "none|batch|instance|layer|act",
      NO_PRESETS("none"), 0, 0, "wrn" },
    { "dropout-rate", OPTION_FLOAT, OPTION_FIXED, AT(dropout), "P", NO_PRESETS("0"), 0, .99,
      "wrn" },
    { "head", OPTION_CHOICE, OPTION_FIXED, AT(head), "pooled|flat", { "pooled", "flat" }, 0, 0,
      "wrn" },
    { "widths", OPTION_LIST, OPTION_FIXED, AT(widths), "N...", NO_PRESETS("16 32 64 64"), 1, 4096,
      "convnet, mlp: channels of each layer" },
    { "uncond", OPTION_FLAG, OPTION_FIXED, AT(uncond), "", NO_PRESETS("off"), 0, 0,
      "separate output for log p(x)" },
    { "activation", OPTION_CHOICE, OPTION_FIXED, AT(activation), "leaky-relu|relu|silu|tanh",
      { "leaky-relu", "silu" }, 0, 0, "" },

    { "learning", OPTION_TITLE, OPTION_NOW, 0, NULL, { NULL, NULL }, 0, 0, NULL },
    { "batch-size", OPTION_INT, OPTION_FIXED, AT(batch_size), "N", { "64", "64" }, 1, 65536,
      "images per update" },
    { "batches", OPTION_CHOICE, OPTION_FIXED, AT(batches), "separate|shared",
      { "separate", "shared" }, 0, 0, "batches for p(x) and p(y|x)" },
    { "p-x-batch", OPTION_INT, OPTION_FIXED, AT(batch_x), "N", NO_PRESETS("0"), 0, 65536,
      "separate: N images for p(x) (0: batch-size)" },
    { "optimizer", OPTION_CHOICE, OPTION_FIXED, AT(optimizer), "adam|sgd|muon",
      NO_PRESETS("adam"), 0, 0, "(sgd: momentum .9)" },
    { "lr", OPTION_FLOAT, OPTION_FREE, AT(lr), "X", { "1e-4", "1e-3" }, 1e-12, 1e6,
      "learning rate" },
    { "adam-rate", OPTION_FLOAT, OPTION_FREE, AT(adam_rate), "X", NO_PRESETS("1"), 0, 1e6,
      "muon: Adam's rate for biases and last layers, in units of lr" },
    { "schedule", OPTION_CHOICE, OPTION_FIXED, AT(schedule), "steps|cosine",
      { "steps", "cosine" }, 0, 0, "course of the learning rate" },
    { "warmup-iters", OPTION_INT, OPTION_FIXED, AT(warmup), "N", { "1000", "100" }, -1, 1e9,
      "raise the learning rate from 0 over N updates" },
    { "decay-epochs", OPTION_LIST, OPTION_FIXED, AT(decay_epochs), "N...", NO_PRESETS("160 180"),
      0, 1e6, "steps: epochs at which the rate falls (4 at most)" },
    { "decay-rate", OPTION_FLOAT, OPTION_FIXED, AT(decay_rate), "X", NO_PRESETS(".3"), 0, 1,
      "steps: factor of each fall" },
    { "weight-decay", OPTION_FLOAT, OPTION_FREE, AT(weight_decay), "X", NO_PRESETS("0"), 0, 1e3,
      "L2 penalty, added to the gradient; muon: matrices shrink by lr X per update" },
    { "clip-grad", OPTION_FLOAT, OPTION_FREE, AT(clip_grad), "X", { "0", "20" }, 0, 1e9,
      "limit on the gradient's norm (0: no limit)" },
    { "ema", OPTION_FLOAT, OPTION_FIXED, AT(ema), "X", { "0", ".999" }, 0, .999999,
      "decay of the averaged weights (0: off)" },
    { "p-y-given-x-weight", OPTION_FLOAT, OPTION_FIXED, AT(w_y), "X", NO_PRESETS("1"), 0, 1e6,
      "weight of the loss on log p(y|x)" },
    { "p-x-weight", OPTION_FLOAT, OPTION_FIXED, AT(w_x), "X", { "1", ".1" }, 0, 1e6,
      "weight of the loss on log p(x)" },
    { "p-x-y-weight", OPTION_FLOAT, OPTION_FIXED, AT(w_xy), "X", NO_PRESETS("0"), 0, 1e6,
      "weight of the loss on log p(x,y)" },
    { "energy-l2", OPTION_FLOAT, OPTION_FREE, AT(energy_l2), "X", NO_PRESETS("0"), 0, 1e6,
      "weight of the mean square of f(x)" },
    { "kl-weight", OPTION_FLOAT, OPTION_FIXED, AT(w_kl), "X", NO_PRESETS("0"), 0, 1e6,
      "weight of L_KL: samples depend on weights (0: off)" },
    { "entropy", OPTION_FLOAT, OPTION_FIXED, AT(entropy), "X", NO_PRESETS("1"), 0, 1e6,
      "weight of the samples' entropy in L_KL; images: about .3 / values" },
    { "sam", OPTION_FLOAT, OPTION_FIXED, AT(sam), "X", NO_PRESETS("0"), 0, 1e6,
      "sharpness-aware: gradients this far uphill (0: off)" },
    { "spectral-norm", OPTION_FLOAT, OPTION_FIXED, AT(spectral), "X", NO_PRESETS("0"), 0, 1e6,
      "limit on the norm of each weight (0: no limit)" },
    { "labels-per-class", OPTION_INT, OPTION_FIXED, AT(labels_per_class), "N", NO_PRESETS("0"),
      -1, 1e9, "use only N labels; p(x) uses all images (0: all)" },
    { "clf-only", OPTION_FLAG, OPTION_FIXED, AT(clf_only), "", NO_PRESETS("off"), 0, 0,
      "train the last layer only" },
    { "sigma", OPTION_FLOAT, OPTION_FREE, AT(sigma), "X", NO_PRESETS(".03"), 0, 1e3,
      "std of the noise added to images" },
    { "shift", OPTION_INT, OPTION_FIXED, AT(shift), "N", { "4", "1" }, 0, 64,
      "shift images by up to N pixels; borders are reflected" },
    { "flip", OPTION_FLAG, OPTION_FIXED, AT(flip), "", { "on", "off" }, 0, 0,
      "mirror each image in every second epoch (--no-flip: off)" },
    { "plain-p-x", OPTION_FLAG, OPTION_FIXED, AT(plain_px), "", NO_PRESETS("off"), 0, 0,
      "neither move nor mirror the images for p(x)" },
    { "cutout", OPTION_INT, OPTION_FIXED, AT(cutout), "N", NO_PRESETS("0"), 0, 1e4,
      "hide N x N pixels of the images for p(y|x) (0: no)" },
    { "label-smoothing", OPTION_FLOAT, OPTION_FIXED, AT(label_smoothing), "X", NO_PRESETS("0"), 0,
      1, "spread this much of each label over all classes" },

    { "nce-weight", OPTION_FLOAT, OPTION_FIXED, AT(w_nce), "X", NO_PRESETS("0"), 0, 1e6,
      "CSV: weight of noise-contrastive estimation of p(x)" },

    { "score matching (see examples/models/README.md)", OPTION_TITLE, OPTION_NOW, 0, NULL,
      { NULL, NULL }, 0, 0, NULL },
    { "score-weight", OPTION_FLOAT, OPTION_FIXED, AT(w_score), "X", NO_PRESETS("0"), 0, 1e6,
      "weight of score matching (0: off)" },
    { "scale", OPTION_FLOAT, OPTION_FIXED, AT(scale), "K", NO_PRESETS("1"), 1e-3, 1e4,
      "log p(x) = K logsumexp f(x)" },
    { "noise-lo", OPTION_FLOAT, OPTION_FIXED, AT(noise_lo), "X", NO_PRESETS(".12"), 1e-6, 1e3,
      "lowest noise level" },
    { "noise-hi", OPTION_FLOAT, OPTION_FIXED, AT(noise_hi), "X", NO_PRESETS("2"), 1e-6, 1e3,
      "highest noise level" },
    { "label-noise", OPTION_FLOAT, OPTION_FIXED, AT(label_noise), "X", NO_PRESETS("0"), 0, 1e3,
      "noise on labelled images: std up to X" },
    { "label-wide", OPTION_FLOAT, OPTION_FIXED, AT(label_wide), "P", NO_PRESETS("0"), 0, 1,
      "fraction of them with all noise levels" },
    { "chains-from", OPTION_FLOAT, OPTION_FIXED, AT(chains_from), "P", NO_PRESETS("0"), 0, 1,
      "start the chains after this fraction of the run" },
    { "chains-lr", OPTION_FLOAT, OPTION_FIXED, AT(chains_lr), "X", NO_PRESETS("0"), 0, 1e6,
      "rate of a second cosine, for the chains (0: one cosine)" },
    { "fresh-steps", OPTION_INT, OPTION_FIXED, AT(fresh_steps), "N", NO_PRESETS("0"), 0, 1e5,
      "noise-blind steps of a new chain (0: uniform noise)" },

    { "sampling", OPTION_TITLE, OPTION_NOW, 0, NULL, { NULL, NULL }, 0, 0, NULL },
    { "n-steps", OPTION_INT, OPTION_FREE, AT(n_steps), "N", { "20", "10" }, 0, 100000,
      "SGLD steps per update" },
    { "sgld-lr", OPTION_FLOAT, OPTION_FREE, AT(sgld_lr), "X", NO_PRESETS("1"), -1e9, 1e9,
      "step size" },
    { "sgld-std", OPTION_FLOAT, OPTION_FREE, AT(sgld_std), "X", NO_PRESETS(".01"), 0, 1e9,
      "std of the noise of a step" },
    { "clamp", OPTION_FLOAT, OPTION_FREE, AT(clamp), "X", { "0", "2" }, 0, 1e9,
      "keep samples within +-X (0: off)" },
    { "clamp-grad", OPTION_FLOAT, OPTION_FREE, AT(clamp_grad), "X", NO_PRESETS("0"), 0, 1e9,
      "limit gradients to +-X: proximal SGLD (0: off)" },
    { "negatives", OPTION_INT, OPTION_FIXED, AT(negatives), "N", { "0", "32" }, 0, 65536,
      "chains per update (0: batch-size)" },
    { "buffer-size", OPTION_INT, OPTION_FIXED, AT(buffer_size), "N", { "10000", "1000" }, 1, 1e7,
      "chains in the replay buffer" },
    { "reinit-freq", OPTION_FLOAT, OPTION_FREE, AT(reinit), "P", { ".05", ".025" }, 0, 1,
      "fraction of chains restarted from noise" },
    { "informative", OPTION_INT, OPTION_FIXED, AT(informative), "N", NO_PRESETS("0"), 0, 1e6,
      "chains start like N images of a class (0: noise)" },
    { "move-chains", OPTION_FLOAT, OPTION_FIXED, AT(move_chains), "P", NO_PRESETS("0"), 0, 1,
      "fraction of chains moved like images (--shift, --flip)" },
    { "class-cond-p-x-sample", OPTION_FLAG, OPTION_FIXED, AT(class_cond), "", NO_PRESETS("off"), 0,
      0, "chains follow p(x|y), for the y of the batch" },
    { "guidance", OPTION_FLOAT, OPTION_FREE, AT(guidance), "X", NO_PRESETS("0"), 0, 1e6,
      "weight of log p(y|x) in later samples (0: by the scale)" },
    { "sample-steps", OPTION_INT, OPTION_FREE, AT(sample_steps), "N", NO_PRESETS("0"), 0, 1e5,
      "noise-blind steps of later samples (0: 300)" },
    { "sample-fraction", OPTION_FLOAT, OPTION_FREE, AT(sample_fraction), "X", NO_PRESETS("0"), 0, 1,
      "part of the noise that each removes (0: .05)" },
    { "sample-last-sigma", OPTION_FLOAT, OPTION_FREE, AT(sample_last_sigma), "X", NO_PRESETS("0"),
      0, 1e6, "noise that their last step removes, at most (0: twice --noise-lo)" },

    { "machine and reports", OPTION_TITLE, OPTION_NOW, 0, NULL, { NULL, NULL }, 0, 0, NULL },
    { "precision", OPTION_CHOICE, OPTION_FIXED, AT(precision), "exact|fast|direct|bf16",
      { "exact", "fast" }, 0, 0, "arithmetic" },
    { "threads", OPTION_INT, OPTION_FREE, AT(threads), "N", NO_PRESETS("0"), 0, 1024,
      "(0: all cores; results do not depend on it)" },
    { "n-valid", OPTION_INT, OPTION_FIXED, AT(n_valid), "N", { "5000", "500" }, -1, 1e8,
      "images held out for validation (CSV: -1: a fifth)" },
    { "print-every", OPTION_INT, OPTION_FIXED, AT(print_every), "N", { "100", "20" }, 1, 1e9,
      "updates per row of log.csv" },
    { "eval-every", OPTION_INT, OPTION_FIXED, AT(eval_every), "N", NO_PRESETS("1"), 1, 1e6,
      "epochs between validations and pictures (more if epochs are short)" },
    { "save-minutes", OPTION_FLOAT, OPTION_FREE, AT(save_minutes), "X", NO_PRESETS("10"), 0, 1e6,
      "minutes between further checkpoints (0: after each update)" },
    { "pause-gap", OPTION_FLOAT, OPTION_FREE, AT(pause_gap), "X", NO_PRESETS("0"), 0, 1e30,
      "(f(x+) - f(x-)) / scale above this pauses the contrastive loss (0: never)" },
    { "max-gap", OPTION_FLOAT, OPTION_FREE, AT(max_gap), "X", NO_PRESETS("100"), 1e-6, 1e30,
      "|f(x+) - f(x-)| / scale above this is divergence" },
    { "retries", OPTION_INT, OPTION_FREE, AT(retries), "N", NO_PRESETS("8"), 0, 1e6,
      "limit on rollbacks after divergence (0: none, and no guard)" },
    LIMIT_OPTIONS(train_options, "0")
};
const int train_count = (int)(sizeof train_table / sizeof *train_table);
typedef char train_table_fits[sizeof train_table / sizeof *train_table <= OPTIONS_MAX ? 1 : -1];

/* Best values per data set, in the fast preset; from examples/models/recipes.md. */
static const struct { const char *dataset, *name, *value; } train_fast[] = {
    { "mnist", "widths", "24 48 96 96" },
    { "mnist", "iters", "9000" }, { "mnist", "warmup-iters", "200" },
    { "mnist", "optimizer", "muon" }, { "mnist", "lr", "5e-3" }, { "mnist", "ema", ".998" },
    { "mnist", "n-valid", "5000" }, { "mnist", "print-every", "100" },
    { "mnist", "scale", "10" }, { "mnist", "score-weight", ".016" }, { "mnist", "sigma", ".12" },
    { "mnist", "label-noise", ".1" }, { "mnist", "label-wide", ".25" },
    { "mnist", "p-y-given-x-weight", "2" }, { "mnist", "p-x-weight", ".005" },
    { "mnist", "chains-from", ".6" }, { "mnist", "fresh-steps", "200" },
    { "mnist", "class-cond-p-x-sample", "on" },
    { "mnist", "sgld-lr", ".01" }, { "mnist", "sgld-std", ".1" }, { "mnist", "buffer-size", "200" },
    { "mnist", "guidance", "5" }, { "mnist", "sample-steps", "150" },
    { "mnist", "sample-fraction", ".4" },
    { "fashion-mnist", "net", "wrn" }, { "fashion-mnist", "width", "2" },
    { "fashion-mnist", "blocks", "zero" }, { "fashion-mnist", "head", "pooled" },
    { "fashion-mnist", "iters", "13000" }, { "fashion-mnist", "optimizer", "muon" },
    { "fashion-mnist", "lr", "3e-3" }, { "fashion-mnist", "warmup-iters", "60" },
    { "fashion-mnist", "ema", ".998" },            /* forgets the weights from before the chains */
    { "fashion-mnist", "flip", "on" }, { "fashion-mnist", "plain-p-x", "on" },
    { "fashion-mnist", "p-x-batch", "16" }, { "fashion-mnist", "n-valid", "5000" },
    { "fashion-mnist", "print-every", "100" }, { "fashion-mnist", "eval-every", "2" },
    { "fashion-mnist", "scale", "10" }, { "fashion-mnist", "score-weight", ".016" },
    { "fashion-mnist", "noise-lo", ".03" }, { "fashion-mnist", "sigma", ".06" },
    { "fashion-mnist", "label-noise", ".1" }, { "fashion-mnist", "label-wide", ".25" },
    { "fashion-mnist", "p-x-weight", ".003" },
    { "fashion-mnist", "chains-from", ".85" }, { "fashion-mnist", "chains-lr", "2e-4" },
    { "fashion-mnist", "class-cond-p-x-sample", "on" }, { "fashion-mnist", "fresh-steps", "200" },
    { "fashion-mnist", "sgld-lr", ".003" }, { "fashion-mnist", "sgld-std", ".0566" },
    { "fashion-mnist", "buffer-size", "200" }, { "fashion-mnist", "max-gap", "300" },
    { "fashion-mnist", "guidance", "3" },          /* more of the class: 7, but less varied */
    { "cifar10", "net", "wrn" }, { "cifar10", "blocks", "zero" },
    { "cifar10", "head", "pooled" }, { "cifar10", "width", "3" },
    { "cifar10", "iters", "14400" }, { "cifar10", "optimizer", "muon" },
    { "cifar10", "lr", "1.5e-3" },                 /* twice that is too high at this width */
    { "cifar10", "weight-decay", ".2" },
    { "cifar10", "warmup-iters", "150" }, { "cifar10", "plain-p-x", "on" },
    { "cifar10", "ema", ".99" },                   /* forgets the weights from before the chains */
    { "cifar10", "shift", "4" }, { "cifar10", "flip", "on" }, { "cifar10", "p-x-batch", "16" },
    { "cifar10", "n-valid", "5000" }, { "cifar10", "print-every", "100" },
    { "cifar10", "eval-every", "2" },
    { "cifar10", "scale", "10" }, { "cifar10", "score-weight", ".003" },
    { "cifar10", "noise-lo", ".03" },              /* with .12, log p(x) has a wall below it */
    { "cifar10", "sigma", ".06" }, { "cifar10", "label-noise", ".05" },
    { "cifar10", "label-wide", ".25" }, { "cifar10", "label-smoothing", ".01" },
    { "cifar10", "p-x-weight", ".001" },
    { "cifar10", "chains-from", ".93" }, { "cifar10", "chains-lr", "2e-4" },
    { "cifar10", "class-cond-p-x-sample", "on" }, { "cifar10", "fresh-steps", "200" },
    { "cifar10", "sgld-lr", ".003" }, { "cifar10", "sgld-std", ".0566" },
    { "cifar10", "buffer-size", "200" }, { "cifar10", "max-gap", "300" },
    { "cifar10", "guidance", "3" }                 /* 2: closer to photos, fewer of the class */
};

/* The recipe for a folder of images, in the fast preset: jem_train_desc_score's, with pauses. */
static const struct { const char *name, *value; } train_folder[] = {
    { "iters", "2000" }, { "optimizer", "muon" }, { "lr", "5e-3" }, { "ema", ".996" },
    { "scale", "10" }, { "score-weight", ".016" }, { "sigma", ".12" }, { "label-noise", ".1" },
    { "label-wide", ".25" }, { "p-y-given-x-weight", "2" }, { "p-x-weight", ".005" },
    { "chains-from", ".6" }, { "fresh-steps", "200" }, { "sgld-lr", ".01" }, { "sgld-std", ".1" },
    { "buffer-size", "200" }, { "pause-gap", "5" }
};

/* The recipe for a table, in the fast preset: jem_train_desc_vectors's. */
static const struct { const char *name, *value; } train_csv[] = {
    { "net", "mlp" }, { "widths", "64 64 64" }, { "iters", "2000" }, { "lr", ".01" },
    { "warmup-iters", "100" }, { "clip-grad", "0" }, { "ema", ".99" }, { "p-x-weight", "0" },
    { "nce-weight", "1" }, { "sigma", "0" }, { "shift", "0" }, { "print-every", "100" },
    { "n-valid", "-1" }
};

const char *picture_conflict(const picture_options *p) {
    const int ways = p->crop + p->pad + p->stretch;
    if (ways > 1) return "--crop, --pad and --stretch exclude each other";
    return ways && !p->size ? "--crop, --pad and --stretch need --size" : NULL;
}

void describe_pictures(const picture_options *p, int seed, data_desc *desc) {
    static const char *const split[] = { "name", "tenth", "random" };
    describe_split(split[p->test_split], seed, desc);
    desc->height = p->size;
    desc->width = p->size;
    if (p->grey) desc->channels = 1;
    if (p->size) desc->resize = DATA_FIT;
    desc->shape = DATA_REFUSE;
    if (p->stretch) desc->shape = DATA_STRETCH;
    if (p->crop) desc->shape = DATA_CROP;
    if (p->pad) desc->shape = DATA_PAD;
    desc->background = p->background;
}

void describe_split(const char *split, int seed, data_desc *desc) {
    desc->hold_out = DATA_BY_NAME;
    if (!strcmp(split, "tenth")) desc->hold_out = DATA_EVERY_TENTH;
    if (!strcmp(split, "random")) desc->hold_out = DATA_AT_RANDOM;
    desc->seed = seed + (seed < INT_MAX);          /* above 0 */
}

int draws_twice(const train_options *t) {
    return t->batches == BATCHES_SEPARATE || t->labels_per_class > 0 || t->plain_px || t->batch_x;
}

int needs_folder_recipe(const char *dataset) {
    int known = !strcmp(dataset, "digits") || data_is_table(dataset);
    for (size_t i = 0; i < sizeof train_fast / sizeof *train_fast; i++)
        known |= !strcmp(train_fast[i].dataset, dataset);
    return !known;
}

int train_defaults(options *o, train_options *t) {
    if (!option_default(o, option_find(o, "preset"), "fast")) return 0;
    const int preset = t->preset;
    const int dataset = option_find(o, "dataset");
    if (!option_default(o, dataset, o->table[dataset].value[preset])) return 0;
    if (!options_defaults(o, preset)) return 0;
    for (size_t i = 0; preset == PRESET_FAST && i < sizeof train_fast / sizeof *train_fast; i++)
        if (!strcmp(train_fast[i].dataset, t->dataset) &&
            !option_default(o, option_find(o, train_fast[i].name), train_fast[i].value)) return 0;
    const int folder = preset == PRESET_FAST && needs_folder_recipe(t->dataset);
    for (size_t i = 0; folder && i < sizeof train_folder / sizeof *train_folder; i++) {
        const int at = option_find(o, train_folder[i].name);
        if (!option_default(o, at, train_folder[i].value)) return 0;
    }
    const int is_table = preset == PRESET_FAST && data_is_table(t->dataset);
    for (size_t i = 0; is_table && i < sizeof train_csv / sizeof *train_csv; i++) {
        const int at = option_find(o, train_csv[i].name);
        if (!option_default(o, at, train_csv[i].value)) return 0;
    }
    static const char *const of_pictures[2][2] = { { "shift", "0" }, { "flip", "off" } };
    for (int i = 0; data_is_table(t->dataset) && i < 2; i++)
        if (!option_default(o, option_find(o, of_pictures[i][0]), of_pictures[i][1])) return 0;
    /* the sampler of a preset suits the preset's own log p(x), and its chains follow a score */
    static const char *const of_sampler[] = { "guidance", "sample-steps", "sample-fraction",
                                              "sample-last-sigma" };
    static const char *const of_score[] = { "chains-from", "fresh-steps", "pause-gap" };
    const int no_score = option_given(o, "score-weight") && t->w_score == 0;
    const int other_density = option_given(o, "net") || option_given(o, "unet") ||
                              option_given(o, "scale") || no_score;
    for (size_t i = 0; other_density && i < sizeof of_sampler / sizeof *of_sampler; i++)
        if (!option_default(o, option_find(o, of_sampler[i]), "0")) return 0;
    for (size_t i = 0; no_score && i < sizeof of_score / sizeof *of_score; i++)
        if (!option_default(o, option_find(o, of_score[i]), "0")) return 0;
    /* the chains of a preset are by class only if there are chains */
    const int by_class = option_find(o, "class-cond-p-x-sample");
    if (t->w_x == 0 && t->w_xy == 0 && !o->given[by_class] && !option_set(o, by_class, "off"))
        return 0;
    /* weight decay of a preset is Muon's: as a term of the gradient it means something else */
    const int by_gradient = option_given(o, "optimizer") &&
                            t->optimizer != OPTIMIZER_MUON;
    if (by_gradient && !option_default(o, option_find(o, "weight-decay"), "0")) return 0;
    /* epochs and iters are two units of one length */
    if (option_given(o, "epochs") && !option_default(o, option_find(o, "iters"), "0"))
        return 0;
    if (option_given(o, "iters") && !option_default(o, option_find(o, "epochs"), "0"))
        return 0;
    return 1;
}

const char *const train_image_options[] = {
    "size", "crop", "pad", "stretch", "grey", "background", "test-split", "shift", "flip", "cutout",
    "plain-p-x", "move-chains", "informative", NULL
};

/* Checks options of tables, and those that tables do not have; returns a reason, or `wrong`. */
static const char *table_combination(const options *o, const train_options *t, const char *wrong) {
    const int is_table = data_is_table(t->dataset);
    const char *const *of_images = train_image_options;
    static const char *const of_tables[] = { "label", "drop", "skip-rows", "nce-weight" };
    static char text[128];
    if (!is_table && t->n_valid < 0) wrong = "--n-valid -1 is for a CSV file";
    if (is_table && t->net != NET_MLP) wrong = "a CSV file needs --net mlp";
    if (t->w_nce > 0 && t->uncond) wrong = "--nce-weight excludes --uncond";
    for (size_t i = 0; is_table && of_images[i]; i++)
        if (option_given(o, of_images[i])) {
            snprintf(text, sizeof text, "--%s is for images, not for a CSV file", of_images[i]);
            wrong = text;
        }
    for (size_t i = 0; !is_table && i < sizeof of_tables / sizeof *of_tables; i++)
        if (option_given(o, of_tables[i])) {
            snprintf(text, sizeof text, "--%s is for a table, whose name ends in .csv or .tsv",
                     of_tables[i]);
            wrong = text;
        }
    return wrong;
}

/* Refuses options that nothing would use with the others. */
static int options_have_uses(const options *o, const train_options *t) {
    static const char *const of_muon[] = { "adam-rate", NULL };
    static const char *const of_steps[] = { "decay-epochs", "decay-rate", NULL };
    static const char *const of_chains[] = { "chains-lr", NULL };
    static const char *const of_kl[] = { "entropy", NULL };
    static const char *const of_labels[] = { "label-smoothing", "label-noise", "label-wide",
                                             "cutout", NULL };
    static const char *const of_density[] = { "p-x-batch", "plain-p-x", NULL };
    static const char *const of_score[] = { "sample-steps", "sample-fraction",
                                            "sample-last-sigma", NULL };
    static const char *const of_noise[] = { "noise-lo", "noise-hi", NULL };
    static const char *const of_classes[] = { "guidance", NULL };
    static const char *const of_moves[] = { "move-chains", NULL };
    static const char *const of_pauses[] = { "pause-gap", NULL };
    static const char *const of_walks[] = { "sgld-lr", "sgld-std", "n-steps", "negatives",
                                            "buffer-size", "reinit-freq", "clamp", "clamp-grad",
                                            "fresh-steps", NULL };
    const int walks = t->w_x > 0 || t->w_xy > 0 || t->w_kl > 0;
    const int learns_x = t->w_x > 0 || t->w_score > 0 || t->w_nce > 0 || t->w_kl > 0;
    return options_used(o, t->optimizer == OPTIMIZER_MUON, "is for --optimizer muon", of_muon) &&
           options_used(o, t->schedule == SCHEDULE_STEPS, "is for --schedule steps", of_steps) &&
           options_used(o, t->schedule == SCHEDULE_COSINE, "is for --schedule cosine", of_chains) &&
           options_used(o, walks || !data_is_table(t->dataset),        /* images: for later runs */
                        "is for chains, which a table has with --p-x-weight", of_walks) &&
           options_used(o, t->chains_from > 0 && walks,
                        "is for chains that begin later (--chains-from)", of_chains) &&
           options_used(o, t->w_kl > 0, "is for --kl-weight", of_kl) &&
           options_used(o, t->w_y > 0 || t->w_xy > 0, "is for --p-y-given-x-weight", of_labels) &&
           options_used(o, learns_x, "is for training of p(x), which is off", of_density) &&
           options_used(o, t->w_score > 0 || *t->init, "is for --score-weight", of_score) &&
           options_used(o, t->w_score > 0 || t->label_wide > 0 || t->fresh_steps > 0,
                        "is for --score-weight", of_noise) &&
           options_used(o, t->w_score > 0 && (t->w_x > 0 || t->w_xy > 0),
                        "is for --score-weight with --p-x-weight or --p-x-y-weight", of_pauses) &&
           options_used(o, !t->uncond, "is for p(x,y), which --uncond excludes", of_classes) &&
           options_used(o, t->shift || t->flip, "is for --shift or --flip", of_moves);
}

int train_combination(const options *o, const train_options *t) {
    const int given_epochs = option_given(o, "epochs");
    const char *wrong = NULL;
    static const char *const of_wrn[] = {
        "depth", "width", "stem-stride", "blocks", "unet", "norm", "dropout-rate", "head"
    };
    char text[128];
    for (size_t i = 0; i < sizeof of_wrn / sizeof *of_wrn; i++)
        if (t->net != NET_WRN && option_given(o, of_wrn[i])) {
            snprintf(text, sizeof text, "--%s is for --net wrn, not %s", of_wrn[i],
                     t->net == NET_MLP ? "mlp" : "convnet");
            wrong = text;
        }
    if (t->net == NET_WRN && option_given(o, "widths"))
        wrong = "--widths is for --net convnet or mlp, not wrn";
    if (t->net == NET_WRN && (t->depth - 4) % 6) wrong = "--depth must be 6k + 4: 10, 16, 22, 28";
    if (given_epochs && option_given(o, "iters") && t->epochs && t->iters)
        wrong = "--epochs and --iters both set the length: give one";
    else if (!t->epochs && !t->iters) wrong = "--epochs or --iters must be above 0";
    if (t->w_y == 0 && t->w_x == 0 && t->w_xy == 0 && t->w_score == 0 && t->w_kl == 0 &&
        t->w_nce == 0)
        wrong = "all weights are 0 (--p-y-given-x-weight, --p-x-weight, --p-x-y-weight, "
                "--score-weight, --nce-weight, --kl-weight): nothing to learn";
    if (picture_conflict(&t->pictures)) wrong = picture_conflict(&t->pictures);
    wrong = table_combination(o, t, wrong);
    if (t->noise_lo > t->noise_hi) wrong = "--noise-lo is above --noise-hi";
    if (t->w_x == 0 && t->w_xy == 0 && t->class_cond)
        wrong = "--class-cond-p-x-sample needs --p-x-weight or --p-x-y-weight";
    if (t->uncond && (t->class_cond || t->w_xy > 0))
        wrong = "--uncond has no p(x,y): use neither --class-cond-p-x-sample nor --p-x-y-weight";
    if (t->unet && t->uncond) wrong = "--unet excludes --uncond";
    if (t->w_xy > 0 && (t->label_noise > 0 || t->label_wide > 0))
        wrong = "--p-x-y-weight needs --label-noise 0 --label-wide 0: the data of p(x,y) are "
                "those of cross-entropy";
    if (t->w_xy > 0 && t->cutout > 0)
        wrong = "--p-x-y-weight excludes --cutout: the data of p(x,y) are those of "
                "cross-entropy";
    if (t->cutout > 0 && !draws_twice(t) && (t->w_x > 0 || t->w_score > 0))
        wrong = "--cutout needs --batches separate, since p(x) would learn the squares";
    if (t->sam > 0 && t->w_score > 0) wrong = "--sam excludes --score-weight";
    if (t->w_kl > 0 && t->n_steps < 1) wrong = "--kl-weight needs --n-steps above 0";
    if (t->informative && t->fresh_steps) wrong = "--informative excludes --fresh-steps";
    if (t->informative == 1) wrong = "--informative 1: a Gaussian needs two images";
    if (t->decay_epochs.n > 4) wrong = "--decay-epochs takes 4 numbers at most";
    if (!wrong && !options_have_uses(o, t)) return 0;
    if (wrong) fprintf(stderr, "%s: %s\n", o->command, wrong);
    return !wrong;
}
