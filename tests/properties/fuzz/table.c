/* A table: the first byte chooses how it is read, the others are the file. */
#include "jem.h"                                   /* linked: see fuzz.sh */
#include "tools/support/table.c"
#include "fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *in, size_t n) {
    static char columns[2][TABLE_NAME] = { "a", "b" };
    static const char *const labels[] = { NULL, "last", "none", "1", "a" };
    if (n < 1) return 0;
    csv_table t;
    table_desc desc;
    char error[256];
    memset(&desc, 0, sizeof desc);
    desc.label = labels[in[0] % 5];
    desc.label_optional = in[0] >> 3 & 1;
    desc.any_label = in[0] >> 6 & 1;
    if (in[0] >> 4 & 1) desc.drop = "b,c";
    if (in[0] >> 7) desc.keep = "\"a\",3";
    if (in[0] >> 5 & 1) {
        desc.columns = columns;
        desc.n_columns = 2;
    }
    if (!table_parse(&t, (const char *)in + 1, n - 1, "table", &desc, error, sizeof error)) {
        FUZZ_CHECK(!strncmp(error, "table", 5) && !t.x && !t.labels && !t.names);
        for (const char *c = error; *c; c++) FUZZ_CHECK((unsigned char)*c >= 32 && *c != 127);
        return 0;
    }
    FUZZ_CHECK(t.rows > 0 && t.columns > 0 && t.columns <= TABLE_COLUMNS && t.classes > 0);
    FUZZ_CHECK((double)t.rows * t.columns <= (double)n && t.classes <= TABLE_CLASSES);
    for (ptrdiff_t i = 0; i < (ptrdiff_t)t.rows * t.columns; i++)
        FUZZ_CHECK(t.x[i] >= -1e12f && t.x[i] <= 1e12f);
    for (int i = 0; t.labels && i < t.rows; i++)
        FUZZ_CHECK(t.labels[i] >= -desc.any_label && t.labels[i] < t.classes);
    for (int k = 0; k < t.columns; k++) FUZZ_CHECK(memchr(t.names[k], 0, TABLE_NAME) != NULL);
    for (int k = 0; t.class_names && k < t.classes; k++)
        FUZZ_CHECK(memchr(t.class_names[k], 0, TABLE_NAME) != NULL);
    table_free(&t);
    return 0;
}
