/* Differences between POSIX and Windows: see system.h. */
#include "tools/cli/system.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

size_t system_path_length(const char *path) {
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/' && path[n - 2] != ':') n--;
    return n;
}

#ifdef _WIN32

#include <io.h>
#include <share.h>
#include <windows.h>

static void use_slashes(char *path) {
    for (char *c = path; *c; c++) if (*c == '\\') *c = '/';
}
static UINT console_encoding;
static void restore_console(void) { SetConsoleOutputCP(console_encoding); }
void system_begin(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        use_slashes(argv[i]);
        argv[i][system_path_length(argv[i])] = 0;
    }
    console_encoding = GetConsoleOutputCP();
    if (console_encoding && SetConsoleOutputCP(CP_UTF8)) atexit(restore_console);
}

char *system_path(const char *path) {
    struct stat s;
    char *whole = stat(path, &s) ? NULL : _fullpath(NULL, path, 0);
    if (whole) use_slashes(whole);
    return whole;
}

FILE *system_temporary(void) {
    char *name = _tempnam(NULL, "jem");            /* tmpfile needs the right to write to C:\ */
    FILE *f = name ? fopen(name, "w+D") : NULL;    /* D: deletes it when it is closed */
    free(name);
    return f;
}

int system_lock(const char *path, int *lock) {
    *lock = _sopen(path, _O_RDWR | _O_CREAT | _O_NOINHERIT, _SH_DENYRW, _S_IREAD | _S_IWRITE);
    return *lock >= 0 || errno != EACCES;
}
void system_unlock(int lock) { if (lock >= 0) _close(lock); }

/* A signal restores the default handler. */
static void (*on_signals)(int number);
static void handle(int number) {
    signal(number, handle);
    on_signals(number);
}
void system_on_signals(void (*handler)(int number)) {
    on_signals = handler;
    signal(SIGINT, handle);
    signal(SIGTERM, handle);
}

double system_memory(void) {
    MEMORYSTATUSEX s;
    s.dwLength = sizeof s;
    return GlobalMemoryStatusEx(&s) ? (double)s.ullTotalPhys : 0;
}

int system_columns(void) {
    CONSOLE_SCREEN_BUFFER_INFO s;
    if (!GetConsoleScreenBufferInfo(GetStdHandle(STD_OUTPUT_HANDLE), &s)) return 0;
    return s.srWindow.Right - s.srWindow.Left + 1;
}

#else

#include <sys/ioctl.h>
#include <unistd.h>

void system_begin(int argc, char **argv) {
    (void)argc;
    (void)argv;
}

char *system_path(const char *path) { return realpath(path, NULL); }

FILE *system_temporary(void) { return tmpfile(); }

int system_lock(const char *path, int *lock) {
    struct flock all;
    memset(&all, 0, sizeof all);
    all.l_type = F_WRLCK;
    all.l_whence = SEEK_SET;
    *lock = open(path, O_RDWR | O_CREAT, 0666);
    return *lock < 0 || fcntl(*lock, F_SETLK, &all) != -1 || (errno != EACCES && errno != EAGAIN);
}
void system_unlock(int lock) { if (lock >= 0) close(lock); }

void system_on_signals(void (*handler)(int number)) {
    struct sigaction how;
    struct sigaction was;
    memset(&how, 0, sizeof how);
    how.sa_handler = handler;
    sigemptyset(&how.sa_mask);
    sigaction(SIGINT, &how, NULL);
    sigaction(SIGTERM, &how, NULL);
    if (sigaction(SIGHUP, NULL, &was) == 0 && was.sa_handler != SIG_IGN)
        sigaction(SIGHUP, &how, NULL);
}

double system_memory(void) {
#ifdef _SC_PHYS_PAGES
    const long pages = sysconf(_SC_PHYS_PAGES);
    const long page = sysconf(_SC_PAGESIZE);
    if (pages > 0 && page > 0) return (double)pages * (double)page;
#endif
    return 0;
}

int system_columns(void) {
#ifdef TIOCGWINSZ
    struct winsize size;
    if (ioctl(1, TIOCGWINSZ, &size) == 0) return size.ws_col;
#endif
    return 0;
}

#endif
