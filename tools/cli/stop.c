/* Signals: see stop.h. */
#include "tools/cli/system.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "tools/cli/stop.h"

volatile sig_atomic_t stop_signal;
static const char *stop_notice;

static void on_signal(int number) {
    if (stop_signal) _exit(128 + number);
    stop_signal = number;
    const int error = errno;                       /* of the interrupted calls */
    const long written = (long)write(2, stop_notice, strlen(stop_notice));
    (void)written;                                 /* standard error may be closed */
    errno = error;
}

void stop_on_signals(const char *notice) {
    struct sigaction how;
    struct sigaction was;
    stop_notice = notice;
    memset(&how, 0, sizeof how);
    how.sa_handler = on_signal;
    sigemptyset(&how.sa_mask);
    sigaction(SIGINT, &how, NULL);
    sigaction(SIGTERM, &how, NULL);
    if (sigaction(SIGHUP, NULL, &was) == 0 && was.sa_handler != SIG_IGN)  /* keep nohup's setting */
        sigaction(SIGHUP, &how, NULL);
}
