// Signals that ask a run to stop after its step instead of ending the process where it is.
#pragma once

namespace switchyard {

// From now on the first SIGTERM or SIGINT is noted, and a second one ends the process as it always would.
void catch_stop_signals();

// For those who receive signals by another way, such as the watch of an MPI process: false when the signal
// should end the process, because nobody catches or one was noted before.
bool note_stop_signal(int signal);

// The noted signal; 0 without one.
int stop_signal();

}  // namespace switchyard
