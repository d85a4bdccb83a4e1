/* The loaders of tools/support/data.h, from files. */
#ifndef DATA_FUZZ_H
#define DATA_FUZZ_H

#include "jem.h"                                   /* linked: see fuzz.sh */
#include "tools/support/stb.c"
#include "tools/support/table.c"
#include "tools/support/data.c"
#include "fuzz.h"

/* Loads one split of the folder's data, and reads all of it. Returns 1 if it is a data set. */
static inline int fuzz_load(const char *split) {
    data_set d;
    data_desc desc;
    char error[256];
    memset(&desc, 0, sizeof desc);
    desc.file_mb = desc.picture_mb = desc.memory_mb = 4;
    if (!data_load(&d, fuzz_place(), split, &desc, error, sizeof error)) {
        FUZZ_CHECK(*error && !d.pixels && !d.labels && !d.class_names);
        for (const char *c = error; *c; c++) FUZZ_CHECK((unsigned char)*c >= 32 && *c != 127);
        return 0;
    }
    FUZZ_CHECK(d.n > 0 && (d.c == 1 || d.c == 3) && d.h > 0 && d.w > 0 && d.classes > 0);
    FUZZ_CHECK((double)d.n * d.c * d.h * d.w <= 4e6);
    for (int i = 0; i < d.n; i++) FUZZ_CHECK(d.labels[i] >= 0 && d.labels[i] < d.classes);
    for (int k = 0; k < d.classes; k++) FUZZ_CHECK(d.class_names[k] != NULL);
    unsigned sum = 0;
    const ptrdiff_t all = (ptrdiff_t)d.n * d.c * d.h * d.w;
    for (ptrdiff_t i = 0; i < all; i++) sum += d.pixels[i];
    FUZZ_CHECK(sum <= 255u * (unsigned)all);
    data_free(&d);
    return 1;
}

#endif
