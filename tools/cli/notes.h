/* Notes about the columns of a table, printed by `jem train`: short, and with a remedy. */
#ifndef CLI_NOTES_H
#define CLI_NOTES_H

#include "tools/support/data.h"

/* Names columns that only rise: a clock or a counter, which makes all later rows strange. */
void note_clocks(const char *table, const data_set *s);
/* Names columns of a single value, and those with a few values so far from the others that they
   determine its mean and scale: the codes of errors, for instance. */
void note_values(const char *table, const data_set *s);
/* Names a column of labels that has more different labels than half its rows, or some that occur
   once or twice. */
void note_labels(const char *table, const data_set *s);

#endif
