/* `jem judge` trains a judge of samples (judge.h); `jem eval MODEL samples` uses it to rate the
   samples of a model: from noise, and from its replay buffer. */
#ifndef CLI_JUDGE_H
#define CLI_JUDGE_H

#include "tools/cli/eval.h"

/* ---- jem judge ------------------------------------------------------------------------------- */

int judge_command(int argc, char **argv);

/* ---- jem eval MODEL samples ------------------------------------------------------------------ */

int eval_samples(uses *s, uses *beside);

#endif
