/* `jem score`: log p(x), familiarity and class of every row of a CSV file. */
#ifndef CLI_SCORE_H
#define CLI_SCORE_H

#include "tools/cli/use.h"

/* Checks that a command has what it needs: a model of images (rows = 0), or of rows of a table.
   Returns 0 and names the command that fits. */
int model_has(const char *command, const model *m, int rows);

/* Fills in the columns of a data_desc from the model's, and the limits. names[channels] are kept by
   the model. */
void columns_of(const model *m, const char **names, data_desc *desc);

int score_command(int argc, char **argv);

#endif
