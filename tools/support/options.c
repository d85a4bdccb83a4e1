/* Options of a command line. */
#include <ctype.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "jem.h"
#include "tools/support/options.h"

/* ---- the terminal ---------------------------------------------------------------------------- */

void harmless(char *text, int lines) {
    const size_t n = strlen(text);
    const int ends = n > 0 && strchr("\n\r\t", text[n - 1]) != NULL;
    char last = 0;
    if (ends) {
        last = text[n - 1];
        text[n - 1] = 0;
    }
    jem_mask_controls(text, lines);
    if (ends) text[n - 1] = last;
}
static int lines_of(const char *s) {
    int n = 0;
    for (; *s; s++) n += *s == '\n' || *s == '\r' || *s == '\t';
    return n;
}
int speak(FILE *to, const char *format, ...) {
    char some[2048];
    char *text = some;
    const int may_be_terminal = to == stdout || to == stderr;
    int n;
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    if (may_be_terminal) n = vsnprintf(some, sizeof some, format, args);
    else n = vfprintf(to, format, args);
    if (n >= (int)sizeof some && may_be_terminal) {
        text = (char *)malloc((size_t)n + 1);
        if (text) vsnprintf(text, (size_t)n + 1, format, again);
        else text = some;                          /* its start */
    }
    va_end(args);
    va_end(again);
    if (!may_be_terminal) return n;
    harmless(text, lines_of(text) == lines_of(format));
    if (fputs(text, to) < 0) n = -1;
    if (text != some) free(text);
    return n;
}

int option_find(const options *o, const char *name) {
    for (int i = 0; i < o->count; i++)
        if (o->table[i].kind != OPTION_TITLE && !strcmp(o->table[i].name, name)) return i;
    return -1;
}
int option_given(const options *o, const char *name) {
    const int i = option_find(o, name);
    return i >= 0 && o->given[i];
}
void option_mark(options *o, const char *name) {
    const int i = option_find(o, name);
    if (i >= 0) o->given[i] = 1;
}

/* Returns 1 if the n letters at `word` are `text`. */
static int option__is(const char *word, size_t n, const char *text) {
    return strlen(text) == n && !strncmp(word, text, n);
}

static int option__list(const char *text, option_list *list, double lo, double hi) {
    list->n = 0;
    for (const char *s = text; *s;) {
        char *end;
        const long v = strtol(s, &end, 10);
        if (end == s || list->n == OPTION_LIST_SIZE || (double)v < lo || (double)v > hi) return 0;
        list->at[list->n++] = (int)v;
        for (s = end; *s == ' ' || *s == ','; s++) {}
    }
    return 1;
}

/* Prints the possible values of option i; returns 0. */
static int option__wanted(const options *o, int i, const char *text) {
    const option *t = &o->table[i];
    if (strlen(text) >= OPTION_TEXT_SIZE) {
        fprintf(stderr, "%s: --%s: a text of more than %d bytes\n", o->command, t->name,
                OPTION_TEXT_SIZE - 1);
        return 0;
    }
    fprintf(stderr, "%s: --%s %.60s: ", o->command, t->name, text);
    if (t->kind == OPTION_CHOICE) fprintf(stderr, "choose from %s\n", t->hint);
    else if (t->kind == OPTION_FLAG) fprintf(stderr, "must be on or off\n");
    else if (t->kind == OPTION_INT)
        fprintf(stderr, "a whole number from %.0f to %.0f is needed\n", t->lo, t->hi);
    else if (t->kind == OPTION_LIST)
        fprintf(stderr, "a list of 1 to 8 numbers from %.0f to %.0f is needed\n", t->lo, t->hi);
    else fprintf(stderr, "a number from %g to %g is needed\n", t->lo, t->hi);
    return 0;
}

int option_set(options *o, int i, const char *text) {
    const option *t = &o->table[i];
    void *at = (char *)o->values + t->at;
    char *end = NULL;
    int ok = strlen(text) < OPTION_TEXT_SIZE;
    if (ok && t->kind == OPTION_FLAG) {
        *(int *)at = !strcmp(text, "on");
        ok = *(int *)at || !strcmp(text, "off");
    } else if (ok && t->kind == OPTION_INT) {
        errno = 0;
        const long v = strtol(text, &end, 10);
        ok = end != text && !*end && !errno && (double)v >= t->lo && (double)v <= t->hi;
        if (ok) *(int *)at = (int)v;
    } else if (ok && t->kind == OPTION_FLOAT) {
        const double v = strtod(text, &end);
        ok = end != text && !*end && v >= t->lo && v <= t->hi;
        if (ok) *(float *)at = (float)v;
    } else if (ok && t->kind == OPTION_CHOICE) {
        const char *word = t->hint;
        int k = 0;
        for (; *word; k++) {
            const size_t n = strcspn(word, "|");
            if (option__is(word, n, text)) break;
            word += n + (word[n] == '|');
        }
        ok = *word != 0;
        if (ok) *(int *)at = k;
    } else if (ok && t->kind == OPTION_LIST)
        ok = option__list(text, (option_list *)at, t->lo, t->hi);
    else if (ok) strcpy((char *)at, text);
    if (ok && text != o->text[i]) strcpy(o->text[i], text);
    return ok || option__wanted(o, i, text);
}

void option_spell(const options *o, int i, char to[OPTION_TEXT_SIZE]) {
    const option *t = &o->table[i];
    const void *at = (const char *)o->values + t->at;
    if (t->kind == OPTION_TEXT) strcpy(to, (const char *)at);
    else if (t->kind == OPTION_FLOAT)
        snprintf(to, OPTION_TEXT_SIZE, "%.9g", (double)*(const float *)at);
    else if (t->kind == OPTION_LIST) {
        const option_list *list = (const option_list *)at;
        *to = 0;
        for (int k = 0, n = 0; k < list->n; k++)
            n += snprintf(to + n, (size_t)(OPTION_TEXT_SIZE - n), "%d ", list->at[k]);
    } else snprintf(to, OPTION_TEXT_SIZE, "%d", *(const int *)at);
}

int option_default(options *o, int i, const char *text) {
    return i < 0 || o->given[i] || option_set(o, i, text);
}
/* Returns 1 if option i turns something off, or repeats a default. */
static int option_idle(const options *o, int i) {
    const option *t = &o->table[i];
    const char *text = o->text[i];
    for (int k = 0; k < 2; k++)
        if (t->value[k] && !strcmp(text, t->value[k])) return 1;
    if (t->kind != OPTION_INT && t->kind != OPTION_FLOAT) return !*text || !strcmp(text, "off");
    const double value = strtod(text, NULL);
    return value == 0 || (value == -1 && t->lo == -1);
}

int options_used(const options *o, int used, const char *reason, const char *const *names) {
    for (; !used && *names; names++) {
        const int i = option_find(o, *names);
        if (i < 0 || !o->given[i] || option_idle(o, i)) continue;
        fprintf(stderr, "%s: --%s %s\n", o->command, *names, reason);
        return 0;
    }
    return 1;
}

int options_defaults(options *o, int preset) {
    for (int i = 0; i < o->count; i++) {
        const option *t = &o->table[i];
        if (t->kind == OPTION_TITLE) continue;
        if (!option_default(o, i, t->value[t->value[preset] ? preset : 0])) return 0;
    }
    return 1;
}

options *options_begin(options *o, const char *command, const option *table, size_t bytes,
                       void *values) {
    memset(o, 0, sizeof *o);
    o->command = command;
    o->table = table;
    o->count = (int)(bytes / sizeof *table);
    o->values = values;
    return o;
}

/* Finds the option of a word: --NAME, --NAME=VALUE or, for a flag, --no-NAME, whose value is off.
   The value is NULL if it is not in the word. Returns -1 and prints the reason if there is no such
   option. */
static int option__named(const options *o, const char *word, char name[64], const char **value) {
    const size_t n = strcspn(word + 2, "=");
    snprintf(name, 64, "%.*s", n < 60 ? (int)n : 60, word + 2);
    for (char *c = name; *c; c++) if (*c == '_') *c = '-';
    *value = NULL;
    if (word[2 + n]) *value = word + 3 + n;
    int i = option_find(o, name);
    if (i < 0 && !*value && !strncmp(name, "no-", 3)) {
        i = option_find(o, name + 3);
        if (i >= 0 && o->table[i].kind != OPTION_FLAG) i = -1;
        *value = "off";
    }
    if (i < 0)
        fprintf(stderr, "%s: unknown option --%s (%s --help lists them)\n", o->command, name,
                o->command);
    return i;
}

/* Takes the value of option i from the words after argv[*k]; a list takes all following words that
   are numbers, joined in `list`. Returns NULL and prints the reason if there is no value. */
static const char *option__taken(const options *o, int i, const char *name, int argc, char **argv,
                                 int *k, char list[OPTION_TEXT_SIZE]) {
    if (*k + 1 == argc || !strncmp(argv[*k + 1], "--", 2)) {
        fprintf(stderr, "%s: --%s needs a value (%s)\n", o->command, name, o->table[i].hint);
        return NULL;
    }
    const char *value = argv[++*k];
    while (o->table[i].kind == OPTION_LIST && *k + 1 < argc &&
           isdigit((unsigned char)*argv[*k + 1]) &&
           strspn(argv[*k + 1], "0123456789.,eE+-") == strlen(argv[*k + 1]) &&
           strlen(value) + strlen(argv[*k + 1]) + 2 < OPTION_TEXT_SIZE) {
        char longer[OPTION_TEXT_SIZE];
        snprintf(longer, sizeof longer, "%.120s %.120s", value, argv[++*k]);
        strcpy(list, longer);
        value = list;
    }
    return value;
}

int options_parse(options *o, int argc, char **argv, int first, int *n_words) {
    char **words = argv + first;                   /* a word never overtakes the reader */
    int help = 0;
    *n_words = 0;
    for (int k = first; k < argc; k++) {
        const char *arg = argv[k];
        if (!strcmp(arg, "--")) {
            while (++k < argc) words[(*n_words)++] = argv[k];
            break;
        }
        if (!strcmp(arg, "--help") || !strcmp(arg, "-h")) {
            help = 1;                              /* later ones may depend on its defaults */
            continue;
        }
        if (strncmp(arg, "--", 2)) {
            if (*arg == '-' && arg[1]) {
                fprintf(stderr, "%s: unknown option %s (%s --help lists them)\n", o->command, arg,
                        o->command);
                return 0;
            }
            words[(*n_words)++] = argv[k];
            continue;
        }
        char name[64];
        char list[OPTION_TEXT_SIZE] = "";
        const char *value;
        const int i = option__named(o, arg, name, &value);
        if (i < 0) return 0;
        if (!value && o->table[i].kind == OPTION_FLAG) value = "on";
        if (!value) value = option__taken(o, i, name, argc, argv, &k, list);
        if (!value) return 0;
        if (!*value) {
            fprintf(stderr, "%s: --%s has an empty value\n", o->command, name);
            return 0;
        }
        if (!option_set(o, i, value)) return 0;
        o->given[i] = 1;
    }
    return help ? -1 : 1;
}

void options_print(const options *o, int presets, const char *const *omitted) {
    for (int i = 0; i < o->count; i++) {
        const option *t = &o->table[i];
        char left[64];
        int at = 0;
        while (omitted && omitted[at] && strcmp(omitted[at], t->name)) at++;
        if (omitted && omitted[at]) continue;
        if (t->kind == OPTION_TITLE) {
            printf("%s\n", t->name);
            continue;
        }
        if (t->kind == OPTION_FLAG || t->kind == OPTION_CHOICE)
            snprintf(left, sizeof left, "--%s", t->name);
        else snprintf(left, sizeof left, "--%s %s", t->name, t->hint);
        printf("  %-23s", left);
        for (int k = 0; k < presets; k++) {
            const char *v = k == 1 ? o->text[i] : t->value[0];
            printf(" %-11s", *v ? v : "-");
        }
        printf(" %s", t->help);
        if (t->kind == OPTION_CHOICE) printf("%s%s", *t->help ? ": " : "", t->hint);
        printf("\n");
    }
}
