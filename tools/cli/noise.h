/* `jem eval MODEL noise`: log p(x), its slope and the classes of noisy images. */
#ifndef CLI_NOISE_H
#define CLI_NOISE_H

#include "tools/cli/eval.h"

/* Prints the table of a model, and of another one beside it (may be NULL), and draws both. Returns
   the exit status. */
int eval_noise(uses *s, uses *beside);

#endif
