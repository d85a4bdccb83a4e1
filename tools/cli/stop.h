/* Commands that a signal stops after the work at hand, so that what they have done is kept. */
#ifndef CLI_STOP_H
#define CLI_STOP_H

#include <signal.h>

/* The signal that has arrived, or 0. Loops end when it is set; the exit status is 128 + signal. */
extern volatile sig_atomic_t stop_signal;

/* Catches SIGINT, SIGTERM and SIGHUP (unless nohup ignores it). The first one sets stop_signal and
   writes `notice`, which must remain valid, to standard error; a second one ends the process. */
void stop_on_signals(const char *notice);

#endif
