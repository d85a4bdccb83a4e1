/* Options of `jem train`: the table, the presets, and the checks of combinations. */
#ifndef CLI_TRAIN_OPTIONS_H
#define CLI_TRAIN_OPTIONS_H

#include <stddef.h>

#include "tools/support/data.h"
#include "tools/support/options.h"

/* How the pictures of a folder become images of one shape. */
typedef struct picture_options {
    int size, crop, pad, stretch, grey, background, test_split;
} picture_options;

typedef struct train_options {
    int preset, epochs, iters, stop_at, seed;
    picture_options pictures;
    char dataset[OPTION_TEXT_SIZE], data[OPTION_TEXT_SIZE], out[OPTION_TEXT_SIZE];
    char resume[OPTION_TEXT_SIZE], init[OPTION_TEXT_SIZE];
    char label[OPTION_TEXT_SIZE], drop[OPTION_TEXT_SIZE];
    int skip_rows;
    int net, depth, width, stem_stride, blocks, unet, norm, activation, head;
    option_list widths;
    float dropout;
    int batch_size, optimizer, schedule, warmup, clf_only, labels_per_class, shift, flip, cutout;
    int batches, batch_x;
    option_list decay_epochs;
    float lr, adam_rate, decay_rate, weight_decay, clip_grad, ema, w_y, w_x, w_xy, energy_l2, sigma;
    int n_steps, negatives, buffer_size, class_cond, uncond, informative, plain_px;
    float sgld_lr, sgld_std, clamp, clamp_grad, reinit, move_chains, w_kl, entropy, sam, spectral;
    float scale, w_nce, w_score, noise_lo, noise_hi, label_noise, label_wide;
    float label_smoothing, chains_from, chains_lr, guidance, sample_fraction, sample_last_sigma;
    int fresh_steps, sample_steps;
    int precision, threads, n_valid, print_every, eval_every, retries;
    int max_memory, max_file, max_picture;
    float save_minutes, max_gap, pause_gap;
} train_options;

enum { PRESET_PAPER = 0, PRESET_FAST };
enum { OPTIMIZER_ADAM = 0, OPTIMIZER_SGD, OPTIMIZER_MUON };
enum { NET_WRN = 0, NET_CONVNET, NET_MLP };
enum { BATCHES_SEPARATE = 0, BATCHES_SHARED };
enum { SCHEDULE_STEPS = 0, SCHEDULE_COSINE };
/* A new row like the n calibration rows is stranger than all of them with probability 1/(n + 1), so
   a rate of 1% needs LEAST_CALIBRATED rows; below FEW_CALIBRATED it is unreliable. Commands report
   both cases. */
enum { LEAST_CALIBRATED = 99, FEW_CALIBRATED = 200 };

/* Options of several commands, for structs with fields of these names. */
#define THREADS_OPTION(type) \
    { "threads", OPTION_INT, OPTION_NOW, offsetof(type, threads), "N", { "0", NULL }, 0, 1024, \
      "(0: all cores; results do not depend on it)" }
#define COMPUTE_OPTIONS(type, usual) \
    { "precision", OPTION_CHOICE, OPTION_NOW, offsetof(type, precision), \
      "exact|fast|direct|bf16", { usual, NULL }, 0, 0, "arithmetic" }, \
    THREADS_OPTION(type)
/* The default limits on files are above the needs of real files. */
#define LIMIT_MEMORY(type, mb) \
    { "max-memory", OPTION_INT, OPTION_NOW, offsetof(type, max_memory), "MB", { mb, NULL }, 0, \
      1e9, "limit on memory (0: three quarters of the machine's)" }
#define LIMIT_FILES(type, mb) \
    { "max-file", OPTION_INT, OPTION_NOW, offsetof(type, max_file), "MB", { mb, NULL }, 1, 2000, \
      "limit on files of data, also unpacked" }, \
    { "max-picture", OPTION_INT, OPTION_NOW, offsetof(type, max_picture), "MB", { "400", NULL }, \
      1, 8000, "limit on the pixels of a picture" }
#define LIMIT_OPTIONS(type, mb) LIMIT_MEMORY(type, mb), LIMIT_FILES(type, "1000")

#define NO_PRESETS(text) { text, NULL }

/* Options of a struct with picture_options `pictures`; when: OPTION_FIXED or OPTION_NOW. */
#define PICTURE_AT(type, field) (offsetof(type, pictures) + offsetof(picture_options, field))
#define PICTURE_OPTIONS(type, when) \
    { "size", OPTION_INT, when, PICTURE_AT(type, size), "N", NO_PRESETS("0"), 0, 1024, \
      "resize the images to N x N (0: no)" }, \
    { "crop", OPTION_FLAG, when, PICTURE_AT(type, crop), "", NO_PRESETS("off"), 0, 0, \
      "with --size: take the middle of images that are not square" }, \
    { "pad", OPTION_FLAG, when, PICTURE_AT(type, pad), "", NO_PRESETS("off"), 0, 0, \
      "with --size: add margins of --background instead" }, \
    { "stretch", OPTION_FLAG, when, PICTURE_AT(type, stretch), "", NO_PRESETS("off"), 0, 0, \
      "with --size: change their proportions instead" }, \
    { "grey", OPTION_FLAG, when, PICTURE_AT(type, grey), "", NO_PRESETS("off"), 0, 0, \
      "convert the images to greyscale" }, \
    { "background", OPTION_INT, when, PICTURE_AT(type, background), "N", NO_PRESETS("0"), 0, 255, \
      "grey behind transparent pixels: 0 black, 255 white" }, \
    { "test-split", OPTION_CHOICE, when, PICTURE_AT(type, test_split), "name|tenth|random", \
      NO_PRESETS("name"), 0, 0, "folder: test pictures: by their names, every 10th, by --seed" }

/* Returns why these options exclude each other, or NULL. */
const char *picture_conflict(const picture_options *p);
void describe_pictures(const picture_options *p, int seed, data_desc *desc);

/* The table of options, with two columns of defaults: paper, fast. */
extern const option train_table[];
extern const int train_count;

/* --test-split of runs from before that option. */
#define OLD_SPLIT "tenth"

/* Describes which images are held out: a --test-split, and --seed, which `random` needs. */
void describe_split(const char *split, int seed, data_desc *desc);

/* Returns 1 if the loss needs two batches: all images for p(x), labelled ones for p(y|x). */
int draws_twice(const train_options *t);

/* Returns 1 for all but CSV files, digits, and the data sets with values of their own in `fast`. */
int needs_folder_recipe(const char *dataset);

/* Fills in options that were not given, from the preset and the data set. Returns 0 and prints the
   reason if it fails. */
int train_defaults(options *o, train_options *t);

/* Names of the options that a table does not have; NULL ends them. */
extern const char *const train_image_options[];

/* Rejects inconsistent combinations; prints the reason. */
int train_combination(const options *o, const train_options *t);

#endif
