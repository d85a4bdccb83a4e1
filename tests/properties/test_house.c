/* The order of jem.h, read from its text: every function of the API is implemented in the room that
   declares it; each room uses only the rooms above it (the engine's interface is declared in
   >>platform); no line is too long; a function that is long, or has many parameters, says why. In
   rooms that have been rewritten into plain C and plain English no comma joins two statements, no
   ternary contains another, and few are left; the table `unfinished` says how far the other rooms
   are from that. Pages, examples, tools and tests, too, are in plain English. */
#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/test.h"

enum { ROOMS = 24, COLUMNS = 100, LONG = 50, MANY = 8 };

static char *text, *code;              /* the file; the same without comments and strings */
static char **line, **code_line;
static int lines;

typedef struct room { char name[32]; int api, body; } room;            /* lines of its two marks */
static room rooms[ROOMS];
static int n_rooms, stop_line;

typedef struct name { const char *at; int length, room; } name;
static name *names;
static int n_names;

/* ---- reading --------------------------------------------------------------------------------- */

static char *read_all(const char *path) {
    FILE *f = fopen(path, "rb");
    size_t size = 0;
    size_t room_for = 1 << 22;
    char *all = (char *)malloc(room_for);
    if (f && all) {
        size = fread(all, 1, room_for - 1, f);
        all[size] = 0;
    }
    if (f) fclose(f);
    if (!size) {
        free(all);
        all = NULL;
    }
    return all;
}

/* Blanks what is in comments, and the contents of strings and characters; lines stay. */
static void strip(char *s) {
    int comment = 0;
    int quote = 0;
    for (; *s; s++) {
        if (comment) {
            if (s[0] == '*' && s[1] == '/') {
                comment = 0;
                *s++ = ' ';
                *s = ' ';
            } else if (*s != '\n') *s = ' ';
        } else if (quote) {
            if (*s == '\\') *s++ = ' ';
            else if (*s == quote) {
                quote = 0;
                continue;
            }
            if (*s != '\n') *s = ' ';
        } else if (s[0] == '/' && s[1] == '*') {
            comment = 1;
            *s++ = ' ';
            *s = ' ';
        } else if (*s == '"' || *s == '\'') quote = *s;
    }
}

static char **split(char *s, int *n) {
    int count = 1;
    int i = 0;
    for (const char *c = s; *c; c++) count += *c == '\n';
    char **all = (char **)malloc((size_t)count * sizeof *all);
    for (char *at = s; all && i < count; i++) {
        char *end = strchr(at, '\n');
        all[i] = at;
        if (end) {
            *end = 0;
            at = end + 1;
        }
    }
    *n = count;
    return all;
}

static void find_rooms(void) {
    for (int i = 0; i < lines; i++) {
        char mark[32];
        if (strstr(line[i], "STOP HERE")) stop_line = i;
        if (sscanf(line[i], "/* ==== >>%31[a-z0-9]:", mark) != 1 &&
            sscanf(line[i], "/* ==== >>%31[a-z0-9] ", mark) != 1) continue;
        int k = 0;
        while (k < n_rooms && strcmp(rooms[k].name, mark)) k++;
        if (k == ROOMS) return;
        if (k == n_rooms) {
            n_rooms++;
            strcpy(rooms[k].name, mark);
            rooms[k].api = rooms[k].body = -1;
        }
        if (!stop_line) rooms[k].api = i;
        else rooms[k].body = i;
    }
}

/* The room of a line; -1 before the first. */
static int room_of(int i) {
    int found = -1;
    for (int k = 0; k < n_rooms; k++) {
        const int from = i > stop_line ? rooms[k].body : rooms[k].api;
        if (from >= 0 && from <= i) found = k;
    }
    return found;
}

static const char *room_name(int k) {
    if (k < 0) return "the top";
    return rooms[k].name;
}

/* ---- what is defined where ------------------------------------------------------------------- */

static int word(char c) { return isalnum((unsigned char)c) || c == '_'; }

static name *known(const char *at, int length) {
    for (int i = 0; i < n_names; i++)
        if (names[i].length == length && !memcmp(names[i].at, at, (size_t)length)) return names + i;
    return NULL;
}
/* The first place counts: a type in the API, a prototype in the interface. */
static void define(const char *at, int length, int i) {
    if (length < 5 || (strncmp(at, "jem_", 4) && strncmp(at, "JEM_", 4))) return;
    if (known(at, length)) return;
    names[n_names].at = at;
    names[n_names].length = length;
    names[n_names++].room = room_of(i);
}
static int word_length(const char *s) {
    int n = 0;
    while (word(s[n])) n++;
    return n;
}

/* The name before the first '(' of a line that begins a function at column 0; NULL: none. */
static const char *function_name(const char *s, int *length) {
    if (!isalpha((unsigned char)*s) || !strncmp(s, "typedef", 7)) return NULL;
    const char *open = strchr(s, '(');
    const char *end = open;
    if (!open || (strchr(s, '=') && strchr(s, '=') < open)) return NULL;
    while (end > s && end[-1] == ' ') end--;
    const char *at = end;
    while (at > s && word(at[-1])) at--;
    if (end - at == 7 && !strncmp(at, "JEM__FN", 7)) {       /* JEM__FN(name)(...): its own name */
        at = open + 1;
        end = at + word_length(at);
    }
    *length = (int)(end - at);
    return *length && at > s ? at : NULL;          /* at the very beginning: a macro that is used */
}

static void find_names(void) {
    int in_enum = 0;
    int n;
    for (int i = 0; i < lines; i++) {
        const char *s = code_line[i];
        const char *f;
        if (!strncmp(s, "#define ", 8)) define(s + 8, word_length(s + 8), i);
        if (!strncmp(s, "enum ", 5) || !strncmp(s, "typedef enum", 12)) in_enum = 1;
        for (const char *c = s; in_enum && *c; c++)
            if (word(*c) && (c == s || !word(c[-1]))) define(c, word_length(c), i);
        if (strchr(s, '}')) in_enum = 0;
        if (!strncmp(s, "} jem_", 6)) define(s + 2, word_length(s + 2), i);
        if (!strncmp(s, "typedef ", 8)) {  /* the last word, or that of a function pointer */
            const char *pointer = strstr(s, "(*");
            const char *end = s + strlen(s);
            const char *close = strrchr(s, '}');
            if (pointer) define(pointer + 2, word_length(pointer + 2), i);
            else if (end[-1] == ';' && (!strchr(s, '{') || close)) {
                for (end--; end > s && !word(end[-1]); end--) continue;
                const char *at = end;
                while (at > s && word(at[-1])) at--;
                define(at, (int)(end - at), i);
            }
        }
        if (i > stop_line && (f = function_name(s, &n)) != NULL) define(f, n, i);
        if (!strncmp(s, "JEM_API ", 8) && (f = function_name(s, &n)) != NULL) define(f, n, i);
        if (!strncmp(s, "static const ", 13)) {    /* objects */
            const char *at = s + 13 + word_length(s + 13);
            while (*at && !word(*at)) at++;
            define(at, word_length(at), i);
        }
    }
}

/* ---- the rules ------------------------------------------------------------------------------- */

static void test_marks(void) {
    printf("marks: each room twice, in one order, in the table of contents\n");
    CHECK(n_rooms >= 15, "%d rooms", n_rooms);
    CHECK(n_rooms > 2 && !strcmp(rooms[n_rooms - 1].name, "changelog") &&
          !strcmp(rooms[n_rooms - 2].name, "bf16") && !strcmp(rooms[n_rooms - 3].name, "engine"),
          "the engine, bf16 and the changelog are last");
    for (int k = 0; k < n_rooms; k++) {
        char mark[40];
        int in_contents = 0;
        snprintf(mark, sizeof mark, ">>%.31s ", rooms[k].name);
        for (int i = 0; i < rooms[0].api; i++) in_contents += strstr(line[i], mark) != NULL;
        CHECK(in_contents, "%sis in the table of contents", mark);
        CHECK(rooms[k].body > stop_line, "%s has an implementation", rooms[k].name);
        CHECK(rooms[k].api >= 0 || k >= n_rooms - 3, "%s has an API", rooms[k].name);
        if (k && rooms[k].api >= 0) CHECK(rooms[k].api > rooms[k - 1].api, "API: %s", mark);
        if (k) CHECK(rooms[k].body > rooms[k - 1].body, "implementation: %s", mark);
    }
    for (int i = 0; i < lines; i++)
        CHECK(strlen(line[i]) <= COLUMNS, "line %d has %d columns", i + 1, (int)strlen(line[i]));
}

static void test_places(void) {
    printf("every function of the API is implemented in the room that declares it\n");
    int functions = 0;
    int n;
    int m;
    for (int i = 0; i < stop_line; i++) {
        const char *f = NULL;
        if (!strncmp(code_line[i], "JEM_API ", 8)) f = function_name(code_line[i], &n);
        int found = 0;
        if (!f) continue;
        functions++;
        for (int j = stop_line; j < lines; j++) {
            const char *g = function_name(code_line[j], &m);
            const char *end = g ? code_line[j] + strlen(code_line[j]) - 1 : NULL;
            if (!g || m != n || memcmp(f, g, (size_t)n)) continue;
            if (*end == ';' && !strchr(g, '{')) continue;
            found = 1;
            CHECK(room_of(j) == room_of(i), "%.*s is declared in %s, implemented in %s (line %d)",
                  n, f, room_name(room_of(i)), room_name(room_of(j)), j + 1);
        }
        CHECK(found, "%.*s is implemented", n, f);
    }
    CHECK(functions > 130, "%d functions", functions);
}

/* Rows of a list of macros (X-macros) mean what they mean where the list is used. */
static int is_row(int i) {
    const char *s = code_line[i];
    return *s && s[strlen(s) - 1] == '\\';
}

static void test_uses(void) {
    printf("each room uses only those above it\n");
    int uses = 0;
    for (int i = stop_line; i < lines; i++) {
        const int here = room_of(i);
        if (i && is_row(i - 1)) continue;
        if (here < 0 || !strncmp(code_line[i], "#undef", 6)) continue;
        for (const char *c = code_line[i]; *c; c++) {
            if (!word(*c) || (c > code_line[i] && word(c[-1]))) continue;
            const int n = word_length(c);
            const name *k = known(c, n);
            const int tag = c - code_line[i] >= 7 && !strncmp(c - 7, "struct ", 7);
            uses += k != NULL;
            if (k && !tag) CHECK(k->room <= here, "line %d, in %s: %.*s is of %s", i + 1,
                                 room_name(here), n, c, room_name(k->room));
        }
    }
    CHECK(uses > 5000, "%d uses were found", uses);
}

/* Does the comment that ends above line i (or on lines before the name) say this? */
static int says_above(int i, const char *what) {
    for (int j = i - 1; j >= 0 && j > i - 12; j--) {
        if (strstr(line[j], what)) return 1;
        if (!*line[j] || line[j][0] == '}') break;
    }
    return 0;
}

/* Checks the functions of a file from a line on. Returns their number. */
static int check_functions(const char *path, int from, int most_lines) {
    int functions = 0;
    int n;
    for (int i = from; i < lines; i++) {
        const char *f = function_name(code_line[i], &n);
        int parameters = 1;
        int depth = 0;
        int body = 0;
        int end = i;
        if (!f || code_line[i][0] == '#' || !strchr(f, '(')) continue;
        for (const char *c = strchr(f, '('); !body && end < lines; c = code_line[++end]) {
            for (; *c && !body; c++) {
                if (*c == ';' && !depth) body = -1;
                if (*c == '{' && !depth) body = 1;
                depth += (*c == '(') - (*c == ')');
                parameters += *c == ',' && depth == 1;
            }
            if (body) break;
        }
        if (body < 0 || end == lines) continue;    /* a prototype */
        functions++;
        while (end < lines && code_line[end][0] != '}' &&
               !(end == i && strchr(code_line[i], '}'))) end++;
        CHECK(end - i + 1 <= most_lines || says_above(i, "Long:"), "%s, line %d: %.*s has %d lines",
              path, i + 1, n, f, end - i + 1);
        CHECK(parameters <= MANY || says_above(i, "Many parameters:"),
              "%s, line %d: %.*s has %d parameters", path, i + 1, n, f, parameters);
    }
    return functions;
}

static void test_functions(void) {
    printf("functions of more than %d lines or %d parameters say why\n", LONG, MANY);
    const int functions = check_functions("jem.h", stop_line, LONG);
    CHECK(functions > 400, "%d functions were found", functions);
}

/* ---- plain C --------------------------------------------------------------------------------- */

enum { MOST_TERNARIES = 4 };                       /* per 100 lines of code */

/* Counts of a room's implementation. */
typedef struct style { int lines, code_lines, joined, nested, ternaries; } style;
static style styles[ROOMS];

/* Ceilings of rooms that have not been rewritten yet. A row may only shrink, until it is deleted:
   a room without a row has no joined statements, no nested ternaries, and few ternaries. */
static const struct unfinished { const char *room; int joined, nested, ternaries; } unfinished[] = {
    { NULL, 0, 0, 0 }
};

/* Characters that open a scope: '(' and '[', '{' of a block, 'i' of an initialiser or enum, and
   '?', which lasts until a comma or a closing bracket of the scope around it. */
typedef struct parser {
    char scope[64];
    int depth;
    int fresh;                                     /* the next word begins a statement */
    int expression;                                /* the statement is no declaration */
    int is_enum;
    char before;                                   /* the last character that is not a space */
    int header;                                    /* depth of the header of if, for, while; -1 */
} parser;

static void close_ternaries(parser *p) {
    while (p->depth && p->scope[p->depth - 1] == '?') p->depth--;
}
static void open_scope(parser *p, char c) {
    if (p->depth < (int)sizeof p->scope) p->scope[p->depth++] = c;
}
static int is_word(const char *at, const char *w) {
    return word_length(at) == (int)strlen(w) && !strncmp(at, w, strlen(w));
}

/* Recognises the beginning of an expression statement: neither a keyword nor `type name`. */
static void begin_statement(parser *p, const char *at) {
    static const char *const headers[] = { "if", "for", "while", "switch" };
    p->fresh = 0;
    p->is_enum = is_word(at, "enum") || !strncmp(at, "typedef enum", 12);
    p->expression = 1;
    for (int k = 0; k < 4; k++) {
        if (is_word(at, headers[k])) p->header = p->depth;
    }
    if (is_word(at, "else") || is_word(at, "do")) p->fresh = 1;
    if (!word(*at) || is_word(at, "return")) return;
    at += word_length(at);
    const char *next = at;
    while (*next == ' ' || *next == '*') next++;
    p->expression = next == at || !word(*next);
}

static void read_character(parser *p, style *count, const char *at) {
    const char c = *at;
    if (c == '?') {
        count->ternaries++;
        for (int d = p->depth; d-- > 0 && p->scope[d] != '{';) {
            if (p->scope[d] == '?') {
                count->nested++;
                break;
            }
        }
        open_scope(p, '?');
    } else if (c == '(' || c == '[') {
        open_scope(p, c);
    } else if (c == '{') {
        const int list = p->is_enum || strchr("=,(", p->before) != NULL ||
                         (p->depth && p->scope[p->depth - 1] == 'i');
        open_scope(p, list ? 'i' : '{');
        p->fresh = !list;
        p->is_enum = 0;
    } else if (c == ')' || c == ']' || c == '}') {
        close_ternaries(p);
        const char closed = p->depth ? p->scope[--p->depth] : 0;
        if (c == '}' && closed == '{') p->fresh = 1;
        if (c == ')' && p->header == p->depth) {
            p->fresh = 1;
            p->header = -1;
        }
    } else if (c == ';') {
        close_ternaries(p);
        if (!p->depth || p->scope[p->depth - 1] == '{') p->fresh = 1;
    } else if (c == ',') {
        close_ternaries(p);
        const int in_block = p->depth && p->scope[p->depth - 1] == '{';
        count->joined += in_block && p->expression;
    } else if (c == ':' && p->depth && p->scope[p->depth - 1] == '{') {
        p->fresh = 1;                              /* after a label */
    }
    if (c != ' ') p->before = c;
}

static style style_of(int from, int to) {
    style count = { 0, 0, 0, 0, 0 };
    parser p;
    memset(&p, 0, sizeof p);
    p.fresh = 1;
    p.header = -1;
    p.before = ';';
    count.lines = to - from;
    for (int i = from; i < to; i++) {
        const char *s = code_line[i];
        if (strspn(s, " ") == strlen(s)) continue;
        count.code_lines++;
        if (*s == '#' || (i > from && is_row(i - 1))) {      /* of macros, only ternaries count */
            for (; *s; s++) count.ternaries += *s == '?';
            continue;
        }
        if (isalpha((unsigned char)*s)) {          /* at column 0 there is no open scope */
            p.depth = 0;
            p.fresh = 1;
        }
        for (; *s; s++) {
            const int within_word = s > code_line[i] && word(*s) && word(s[-1]);
            const int begins = !within_word && !strchr(" {};", *s);
            if (p.fresh && begins) begin_statement(&p, s);
            read_character(&p, &count, s);
        }
    }
    return count;
}

/* Returns the ceilings of a room; those of a finished one if it is not in the table. */
static struct unfinished ceiling_of(int k) {
    struct unfinished most = { rooms[k].name, 0, 0, 0 };
    most.ternaries = styles[k].code_lines * MOST_TERNARIES / 100;
    for (int u = 0; unfinished[u].room; u++) {
        if (!strcmp(unfinished[u].room, rooms[k].name)) most = unfinished[u];
    }
    return most;
}

static void test_style(void) {
    printf("plain C: joined statements, nested ternaries, ternaries (and how many are allowed)\n");
    for (int k = 0; k < n_rooms; k++) {
        const int end = k + 1 < n_rooms ? rooms[k + 1].body : lines;
        const style s = styles[k] = style_of(rooms[k].body, end);
        const struct unfinished most = ceiling_of(k);
        printf("    %-10s %5d lines %5d of code %4d (%d) %4d (%d) %4d (%d)\n", rooms[k].name,
               s.lines, s.code_lines, s.joined, most.joined, s.nested, most.nested, s.ternaries,
               most.ternaries);
        CHECK(s.joined <= most.joined, "%s: %d joined statements", rooms[k].name, s.joined);
        CHECK(s.nested <= most.nested, "%s: %d nested ternaries", rooms[k].name, s.nested);
        CHECK(s.ternaries <= most.ternaries, "%s: %d ternaries", rooms[k].name, s.ternaries);
    }
}

/* ---- plain English --------------------------------------------------------------------------- */

/* Returns 1 if `phrase`, in lower case, is in the line as words of their own. */
static int says(const char *s, const char *phrase) {
    const size_t n = strlen(phrase);
    for (const char *at = s; *at; at++) {
        size_t same = 0;
        while (same < n && tolower((unsigned char)at[same]) == phrase[same]) same++;
        if (same == n && !word(at[n]) && (at == s || !word(at[-1]))) return 1;
    }
    return 0;
}

/* Habits of translated English, which neither jem.h nor the texts around it contain. */
static const char *const phrases[] = {
    "nobody", "somebody", "anew", "so many", "so much", "may be told", "cannot be told",
    "can be told", "be told apart", "what makes no sense", "stands in", "stand in", "lies in",
    "lies behind", "goes on through", "to the bit", "some hundreds", "is no regular",
    "order of bytes", "not well", "numbers of an image", "last word", "meets nobody", "puts right",
    "who is", "who reads", "who writes", "it wants", "wants a", "wanted of", "makes what it likes",
    "of one's own", "of our own", "nor does", "which is none", "as it likes", "what is going on",
    "told", "tells", "lies", "stands", "wants", "may make what", "more than it ever",
    "what is promised", "got wrong", "thrown away"
};
/* More of them; 'beside' is an option of `jem eval`. */
static const char *const header_phrases[] = { "beside" };
static const char *const page_phrases[] = {
    "told apart", "tell apart", "tells apart", "that are none", "that is none", "is none of",
    "are none of", "what it has not seen", "seen nothing like", "knows what", "knows no",
    "as often as said", "whatever it likes", "how near", "sets in", "comes off", "takes off",
    "is no file", "is no picture", "is no digit", "are no digits", "no knowledge at all",
    "ran away", "went back", "in company", "ways out", "give them back", "one's own",
    "by as many", "is sure", "be sure", "are sure", "surer", "thinks", "likes",
    "at work", "going on", "what suits",
    "is wanted", "are wanted", "what is wrong", "says it", "if nothing else", "sees through",
    "dreamt", "makes of", "has learned by heart", "goes its way", "earns its", "the whole of it",
    "no more than they do", "who flies", "what mends", "is it luck", "some 500"
};
#define COUNT(list) ((int)(sizeof (list) / sizeof *(list)))

/* Returns the first phrase of a list that the text contains; NULL: no phrase. */
static const char *phrase_in(const char *s, const char *const *list, int n) {
    for (int p = 0; p < n; p++) {
        if (says(s, list[p])) return list[p];
    }
    return NULL;
}

static void test_phrases(void) {
    printf("plain English: %d phrases are not in jem.h\n", COUNT(phrases) + COUNT(header_phrases));
    for (int i = 0; i < lines; i++) {
        const int k = room_of(i);
        int done = 1;
        for (int u = 0; k >= 0 && unfinished[u].room; u++) {
            if (!strcmp(unfinished[u].room, rooms[k].name)) done = 0;
        }
        if (!done) continue;
        const char *found = phrase_in(line[i], phrases, COUNT(phrases));
        if (!found) found = phrase_in(line[i], header_phrases, COUNT(header_phrases));
        CHECK(!found, "line %d, in %s: '%s'", i + 1, room_name(k), found);
    }
}

/* Makes one line of a text: white space of any length becomes a blank, so that a phrase is found
   across the end of a line. */
static void join_lines(char *s) {
    char *to = s;
    for (const char *from = s; *from; from++) {
        if (!isspace((unsigned char)*from)) *to++ = *from;
        else if (to > s && to[-1] != ' ') *to++ = ' ';
    }
    *to = 0;
}

static void check_text(const char *path) {
    char *s = read_all(path);
    if (!CHECK(s != NULL, "%s cannot be read", path)) return;
    join_lines(s);
    for (int p = 0; p < COUNT(phrases) + COUNT(page_phrases); p++) {
        const char *phrase = p < COUNT(phrases) ? phrases[p] : page_phrases[p - COUNT(phrases)];
        CHECK(!says(s, phrase), "%s: '%s'", path, phrase);
    }
    free(s);
}

/* Checks the files of a directory whose name has one of the endings. Returns their number. */
static int check_texts(const char *directory, const char *const *endings) {
    int count = 0;
    DIR *d = opendir(directory);
    if (!CHECK(d != NULL, "%s cannot be opened", directory)) return 0;
    for (const struct dirent *e = readdir(d); e; e = readdir(d)) {
        char path[512];
        const char *ending = strrchr(e->d_name, '.');
        int wanted = 0;
        for (int k = 0; ending && endings[k]; k++) wanted += !strcmp(ending, endings[k]);
        if (!wanted || !strcmp(e->d_name, "test_house.c")) continue;        /* it has the phrases */
        snprintf(path, sizeof path, "%.200s/%.200s", directory, e->d_name);
        check_text(path);
        count++;
    }
    closedir(d);
    return count;
}

static void test_pages(void) {
    static const char *const endings[] = { ".md", ".c", ".h", ".html", NULL };
    static const char *const directories[] = {
        ".github", "examples", "examples/data", "examples/models", "examples/playground", "tools",
        "tools/cli", "tools/support", "tests", "tests/rooms", "tests/properties",
        "tests/properties/fuzz", "tests/tools", "tests/support"
    };
    int files = 1;
    printf("plain English: %d phrases are not in pages, examples, tools, tests\n",
           COUNT(phrases) + COUNT(page_phrases));
    check_text("README.md");
    for (int d = 0; d < COUNT(directories); d++) files += check_texts(directories[d], endings);
    CHECK(files > 120, "%d files were found", files);
}

/* Reads a file into the global lines; returns 0 if it cannot. */
static int open_source(const char *path) {
    int same = 0;
    text = read_all(path);
    code = read_all(path);
    if (text && code) {
        strip(code);
        line = split(text, &lines);
        code_line = split(code, &same);
    }
    return CHECK(text && code && line && code_line && same == lines, "%s cannot be read", path);
}
static void close_source(void) {
    free(text);
    free(code);
    free(line);
    free(code_line);
    text = code = NULL;
    line = code_line = NULL;
}

/* Checks that a file of C is plain: lines, functions, statements. */
static void check_source(const char *path, int most_lines) {
    if (open_source(path)) {
        const style s = style_of(0, lines);
        for (int i = 0; i < lines; i++)
            CHECK(strlen(line[i]) <= COLUMNS, "%s, line %d: %d columns", path, i + 1,
                  (int)strlen(line[i]));
        check_functions(path, 0, most_lines);
        CHECK(!s.joined, "%s: %d joined statements", path, s.joined);
        CHECK(!s.nested, "%s: %d nested ternaries", path, s.nested);
    }
    close_source();
}

/* A test may be a long list of cases. */
static void test_sources(void) {
    enum { LONG_TEST = 80 };
    static const struct { const char *directory; int most_lines; } all[] = {
        { "examples", LONG }, { "examples/playground", LONG }, { "tools", LONG },
        { "tools/cli", LONG }, { "tools/support", LONG }, { "tests/rooms", LONG_TEST },
        { "tests/properties", LONG_TEST }, { "tests/properties/fuzz", LONG_TEST },
        { "tests/tools", LONG_TEST }, { "tests/support", LONG_TEST }
    };
    printf("plain C in examples, tools and tests\n");
    int files = 0;
    close_source();                                /* jem.h */
    for (int k = 0; k < COUNT(all); k++) {
        DIR *d = opendir(all[k].directory);
        if (!CHECK(d != NULL, "%s cannot be opened", all[k].directory)) continue;
        for (const struct dirent *e = readdir(d); e; e = readdir(d)) {
            char path[512];
            const char *ending = strrchr(e->d_name, '.');
            if (!ending || (strcmp(ending, ".c") && strcmp(ending, ".h"))) continue;
            snprintf(path, sizeof path, "%.200s/%.200s", all[k].directory, e->d_name);
            check_source(path, all[k].most_lines);
            files++;
        }
        closedir(d);
    }
    CHECK(files > 100, "%d files were found", files);
}

/* Lets the parser count what it must find, and pass over what it must not. */
static void test_parser(void) {
    static char one[] = "void f(int a, int b) {";
    static char two[] = "    int x = 1, y = 2;";
    static char three[] = "    for (x = 0, y = 0; x < 3; x++, y++) g(x, y);";
    static char four[] = "    if (a) x = 1, y = a ? b ? 1 : 2 : 3;";
    static char five[] = "    else *p = 1, q(2, a ? 1 : 2);";
    static char six[] = "    int z[] = { 1, 2 }, w = 3;";
    static char seven[] = "    return f(1), 2;";
    static char eight[] = "    g(a ? 1 : 2, b ? 3 : 4);";
    static char nine[] = "    case A: x++, y--;";
    static char ten[] = "}";
    char *text_of[] = { one, two, three, four, five, six, seven, eight, nine, ten };
    char **const kept = code_line;
    code_line = text_of;
    const style s = style_of(0, 10);
    code_line = kept;
    printf("the counts themselves\n");
    CHECK(s.joined == 4, "%d joined statements, not 4", s.joined);
    CHECK(s.nested == 1, "%d nested ternaries, not 1", s.nested);
    CHECK(s.ternaries == 5, "%d ternaries, not 5", s.ternaries);
}

int main(int argc, char **argv) {
    static const test_case all[] = {
        TEST(test_marks), TEST(test_places), TEST(test_uses), TEST(test_functions),
        TEST(test_parser), TEST(test_style), TEST(test_phrases), TEST(test_pages),
        TEST(test_sources)                         /* last: it replaces the lines of jem.h */
    };
    test_begin(argc, argv);
    if (!open_source("jem.h")) {
        printf("run this in the project's directory\n");
        return test_report();
    }
    names = (name *)calloc((size_t)lines, sizeof *names);
    CHECK(names != NULL, "no memory for %d names", lines);
    find_rooms();
    find_names();
    test_run(all, TEST_COUNT(all), NULL);
    close_source();
    free(names);
    return test_report();
}
