/* Files on Windows: paths in UTF-8; a file that is open elsewhere is not replaced, and nothing is
   left; a child process does not keep a file open. strict.sh runs this under Wine. */
#define JEM_IMPLEMENTATION
#include "jem.h"
#include "tests/support/test.h"

#include <process.h>

enum { CHILD_MS = 1500 };

static const char *const utf8 = "jem_\xc3\xa4_\xe6\xbc\xa2.bin";
static const wchar_t *const wide = L"jem_\x00e4_\x6f22.bin";

/* Writes a file of two bytes. */
static jem_status write_two(jem_ctx *ctx, const char *path) {
    jem_file *f = jem_file_create(ctx, path);
    jem_status status = jem_file_put(f, "ab", 2);
    if (status == JEM_OK) status = jem_file_commit(f);
    jem_file_free(f);
    return status;
}

/* Returns the count of temporary files in this folder. */
static int leftovers(void) {
    struct _wfinddata64_t found;
    int count = 0;
    const intptr_t search = _wfindfirst64(L"jem_*.tmp", &found);
    if (search == -1) return 0;
    do count++;
    while (_wfindnext64(search, &found) == 0);
    _findclose(search);
    return count;
}

static void test_utf8(jem_ctx *ctx) {
    CHECK(write_two(ctx, utf8) == JEM_OK, "%s", jem_error(ctx));
    CHECK(write_two(ctx, utf8) == JEM_OK, "replaced: %s", jem_error(ctx));
    CHECK(_waccess(wide, 0) == 0, "its name in UTF-16");
    jem_archive *a = jem_archive_create(ctx);
    jem_archive_set_meta(a, "key", "value");
    CHECK(jem_archive_write(a, utf8) == JEM_OK, "%s", jem_error(ctx));
    jem_archive_free(a);
    a = jem_archive_read(ctx, utf8);
    CHECK(a && !strcmp(jem_archive_meta(a, "key"), "value"), "%s", jem_error(ctx));
    jem_archive_free(a);
    CHECK(_wremove(wide) == 0 && leftovers() == 0, "nothing is left");
    CHECK(!jem_archive_read(ctx, utf8), "it is gone");
    CHECK(strstr(jem_error(ctx), "cannot be opened: No such file"), "%s", jem_error(ctx));
    jem_clear_error(ctx);
}

/* In a code page of one byte, such as 1252, this is the name of a file. */
static void test_code_page(jem_ctx *ctx) {
    const char *path = "jem_\xe4.bin";
    CHECK(write_two(ctx, path) == JEM_OK, "%s", jem_error(ctx));
    CHECK(remove(path) == 0 && leftovers() == 0, "the same name for the C library");
}

static void test_open_elsewhere(jem_ctx *ctx) {
    CHECK(write_two(ctx, utf8) == JEM_OK, "%s", jem_error(ctx));
    FILE *other = _wfopen(wide, L"rb");
    CHECK(write_two(ctx, utf8) == JEM_BAD_FILE && leftovers() == 0, "it is open");
    CHECK(strstr(jem_error(ctx), "cannot be replaced: Permission denied"), "%s", jem_error(ctx));
    jem_clear_error(ctx);
    if (other) fclose(other);
    CHECK(write_two(ctx, utf8) == JEM_OK, "%s", jem_error(ctx));
    CHECK(_wremove(wide) == 0, "the file is there");
}

static void test_child(jem_ctx *ctx, const char *program) {
    jem_file *f = jem_file_create(ctx, utf8);
    const intptr_t child = _spawnl(_P_NOWAIT, program, program, "child", NULL);
    CHECK(child != -1, "a child process");
    CHECK(jem_file_put(f, "ab", 2) == JEM_OK && jem_file_commit(f) == JEM_OK, "%s", jem_error(ctx));
    CHECK(leftovers() == 0 && _wremove(wide) == 0, "the child does not keep it open");
    jem_clear_error(ctx);
    jem_file_free(f);
    _cwait(NULL, child, 0);
}

static void test_long(jem_ctx *ctx) {
    char path[3000];
    memset(path, 'x', sizeof path);
    path[sizeof path - 1] = 0;
    CHECK(write_two(ctx, path) != JEM_OK, "too long");
    CHECK(strstr(jem_error(ctx), "cannot be created: File"), "%s", jem_error(ctx));
    jem_clear_error(ctx);
}

int main(int argc, char **argv) {
    if (argc > 1) {
        Sleep(CHILD_MS);
        return 0;
    }
    jem_ctx *ctx = jem_ctx_create(NULL);
    test_utf8(ctx);
    test_code_page(ctx);
    test_open_elsewhere(ctx);
    test_child(ctx, argv[0]);
    test_long(ctx);
    jem_ctx_free(ctx);
    return test_report();
}
