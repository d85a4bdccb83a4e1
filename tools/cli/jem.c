/* jem: trains, samples and inspects energy-based models from the command line.

       build/jem train --dataset digits --out runs/a          (jem train --help)
       build/jem sample runs/a/last.safetensors
       build/jem classify runs/a/last.safetensors picture.png

   train.c is the training run, train_options.h its options, classify.c and score.c are `jem
   classify` and `jem score`, use.c the other commands, eval.c and noise.c the measurements of `jem
   eval MODEL WHAT`, judge.c the judges of samples, report.c the model card, onnx.c ONNX files,
   memory.c the limit on memory, system.c the differences between POSIX and Windows; options are
   read by tools/support/options.c.
   Exit status: 0; 1 after a failure; 2 for an impossible request; 128 + signal if interrupted. */
#include "tools/cli/system.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define JEM_IMPLEMENTATION
#include "jem.h"
#include "tools/cli/classify.h"
#include "tools/cli/eval.h"
#include "tools/cli/judge.h"
#include "tools/cli/report.h"
#include "tools/cli/score.h"
#include "tools/cli/train.h"
#include "tools/cli/use.h"
#include "tools/support/options.h"

static const struct command {
    const char *name, *arguments, *help;
    int (*run)(int argc, char **argv);
} commands[] = {
    { "train", "[OPTIONS]", "train a model on a data set, or continue an interrupted run",
      train_command },
    { "sample", "MODEL [OPTIONS]", "draw images from a model", sample_command },
    { "classify", "MODEL PICTURE...", "classify pictures or folders of them, and rate their "
      "familiarity", classify_command },
    { "score", "MODEL FILE.csv", "log p(x), verdict, and which column is to blame, of each row",
      score_command },
    { "eval", "MODEL [WHAT] [OPTIONS]", "measure accuracy; or WHAT: calibration, ood, "
      "attack, impute, noise, samples", uses_command },
    { "judge", "[OPTIONS]", "train a judge of samples", judge_command },
    { "report", "RUN|MODEL [OPTIONS]", "write a model card: one HTML page with all results",
      report_command },
    { "info", "FILE...", "list the contents of a checkpoint", info_command },
    { "export", "FROM TO", "copy the network of a checkpoint, without the training state",
      export_command }
};

static int usage(FILE *to) {
    fprintf(to, "jem: energy-based models from the command line\n\n");
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++)
        fprintf(to, "  jem %-8s %-22s %s\n", commands[i].name, commands[i].arguments,
                commands[i].help);
    fprintf(to, "\n  jem COMMAND --help    the options of a command\n"
                "  tools/get-data NAME   puts mnist, fashion-mnist or cifar10 under data/\n");
    return to == stdout ? 0 : 2;
}

static int run_command(int argc, char **argv) {
    static char help_word[] = "--help";
    if (argc < 2) return usage(stderr);
    const int help = !strcmp(argv[1], "help");
    const int general = argc == 2 || !strcmp(argv[2], "help") || is_help(argv[2]);
    if ((help && general) || is_help(argv[1])) return usage(stdout);
    char *asked[] = { argv[0], argv[argc > 2 ? 2 : 1], help_word };
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        if (help && !strcmp(asked[1], commands[i].name)) return commands[i].run(3, asked);
        if (!strcmp(argv[1], commands[i].name)) return commands[i].run(argc, argv);
    }
    fprintf(stderr, "jem: unknown command %s (jem help lists them)\n", help ? asked[1] : argv[1]);
    return 2;
}

int main(int argc, char **argv) {
    system_begin(argc, argv);
    const int status = run_command(argc, argv);
    const int had_failed = ferror(stdout);
    errno = 0;
    if (!fflush(stdout) && !had_failed) return status;
    fprintf(stderr, "jem: standard output: cannot be written%s%s\n", errno ? ": " : "",
            errno ? strerror(errno) : "");
    return status ? status : 1;
}
