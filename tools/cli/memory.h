/* A limit of the memory that all contexts of the program hold together. */
#ifndef CLI_MEMORY_H
#define CLI_MEMORY_H

#include "jem.h"
#include "tools/support/data.h"

/* Memory in use by all contexts, and its limit: a few bytes in a file can request any amount. */
typedef struct memory_budget { double most, held; int hit; } memory_budget;
extern memory_budget budget;

/* Sets the limit, --max-memory; 0: three quarters of the memory of the machine. */
void limit_memory(int mb);
/* Sets the limits of a data set: --max-file, --max-picture, and that of memory. */
void limit_data(data_desc *desc, int file_mb, int picture_mb);
/* Returns 1 if that much more fits into the limit. */
int memory_has(double bytes);
/* Allocates n numbers, to be freed; NULL beyond the limit. */
float *new_floats(double n);
/* Returns the hint on allowing more memory, if the limit was reached. */
const char *memory_hint(char text[80]);

/* Makes a context under the limit; says so if the processor lacks the precision. */
jem_ctx *make_ctx(int threads, int precision);
/* Function that make_ctx calls with each context, or NULL. It can register networks of your own
   (jem_register_net), so that all commands open their files. */
extern void (*on_context)(jem_ctx *ctx);

#endif
