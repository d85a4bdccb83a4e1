/* A limit of the memory that all contexts of the program hold together. */
#ifndef CLI_MEMORY_H
#define CLI_MEMORY_H

#include "jem.h"

/* What all contexts hold, and may: a file can ask for any amount in a few bytes. */
typedef struct memory_budget { double most, held; int hit; } memory_budget;
extern memory_budget budget;

/* --max-memory; 0: three quarters of what the machine has. */
void limit_memory(int mb);
int memory_has(double bytes);
/* n numbers, to be freed; none if there may not be so many. */
float *new_floats(double n);
/* What to add to a message: how more memory is allowed, if that was too little. */
const char *memory_hint(char text[80]);

/* Makes a context under the limit; says so if the processor lacks the precision. */
jem_ctx *make_ctx(int threads, int precision);

#endif
