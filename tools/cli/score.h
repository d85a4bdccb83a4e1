/* `jem score`: log p(x), familiarity and class of every row of a CSV file. */
#ifndef CLI_SCORE_H
#define CLI_SCORE_H

#include "tools/cli/use.h"

/* Checks that a command has what it needs: a model of images (rows = 0), or of rows of a table.
   Returns 0 and names the command that fits. */
int model_has(const char *command, const model *m, int rows);

/* Fills in columns and label of a data_desc as in the model's training. names[channels] must live
   as long as desc; the texts belong to the model. */
void columns_of(const model *m, const char **names, data_desc *desc);

int score_command(int argc, char **argv);

#endif
