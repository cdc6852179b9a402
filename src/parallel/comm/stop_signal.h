// Signals that ask a run to stop after its step instead of ending the process where it is.
#pragma once

#include <csignal>
#include <string>

namespace switchyard {

// What batch systems, terminals and people send.
inline constexpr int kStopSignals[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1};

// From now on the first of kStopSignals is noted, and a second one ends the process as it always would. A
// signal that the process was started to ignore (nohup) stays ignored.
void catch_stop_signals();

// For those who receive signals by another way, such as the watch of an MPI process: false when the signal
// should end the process, because nobody catches or one was noted before.
bool note_stop_signal(int signal);

// The noted signal; 0 without one.
int stop_signal();

// "SIGTERM", for one of kStopSignals.
std::string name_of_signal(int signal);

}  // namespace switchyard
