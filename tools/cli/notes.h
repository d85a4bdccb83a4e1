/* Notes about columns of a table and pictures of a folder, printed by `jem train`, and about
   calibration: short, and with a remedy. */
#ifndef CLI_NOTES_H
#define CLI_NOTES_H

#include <stdio.h>

#include "tools/support/data.h"

/* Reports that commas in numbers are decimal ones, and not between thousands. */
void note_commas(const char *table, const data_set *s);
/* Reports that names of columns have '?' in the place of letters that are not UTF-8. */
void note_letters(const char *table, const data_set *s);
/* Names columns that only rise: a clock or a counter, which makes all later rows strange. */
void note_clocks(const char *table, const data_set *s);
/* Names columns of a single value, and those with a few values so far from the others that they
   determine its mean and scale: the codes of errors, for instance. */
void note_values(const char *table, const data_set *s);
/* Names a column of labels that has more different labels than half its rows, or some that occur
   once or twice. */
void note_labels(const char *table, const data_set *s);

/* Reports classes of images that differ much in size, and how often one and the same answer is
   right. */
void note_sizes(const char *name, const data_set *s);
/* Reports pictures without colours among others, and whether they are all of one class. */
void note_grey(const char *name, const data_set *s);
/* Lists the first three classes k without images, seen[k] = 0, in `to`. Returns `to`. */
enum { LISTED_SIZE = 160 };
const char *list_unseen(const data_set *s, const int *seen, char to[LISTED_SIZE]);

/* Reports that n rows or images (`kind`) are too few to calibrate familiarity for a rate of 1%, if
   they are. name: the data set or the command, at the beginning of the message. */
void note_few_calibrate(FILE *to, const char *name, int n, const char *kind);
/* Prints, as a part of a summary, how many of `judged` usual rows or images may be strange by
   chance, if n for calibration are too few for 1%. */
void print_chance(FILE *to, int judged, int n, const char *kind);

#endif
