/* `jem judge` trains a judge of samples (judge.h); `jem eval MODEL samples` asks it how good a
   model's samples are: those it draws from noise, and those of its replay buffer. */
#ifndef CLI_JUDGE_H
#define CLI_JUDGE_H

#include "tools/cli/eval.h"

/* ---- jem judge ------------------------------------------------------------------------------- */

int judge_command(int argc, char **argv);

/* ---- jem eval MODEL samples ------------------------------------------------------------------ */

int eval_samples(uses *s, uses *beside);

#endif
