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
    const long written = (long)write(2, stop_notice, (unsigned)strlen(stop_notice));
    (void)written;                                 /* standard error may be closed */
    errno = error;
}

void stop_on_signals(const char *notice) {
    stop_notice = notice;
    system_on_signals(on_signal);
}
