// Signals that ask a run to stop after its current step instead of ending the process at once.
#pragma once

#include <csignal>
#include <string>

namespace switchyard {

// The signals that batch systems, terminals and people send.
inline constexpr int kStopSignals[] = {SIGTERM, SIGINT, SIGHUP, SIGUSR1};

// From now on the first of kStopSignals is recorded, and a second one ends the process as usual. A signal
// that the process was started to ignore (nohup) stays ignored.
void catch_stop_signals();

// For code that gets signals by another way, such as an MPI process's watch. Returns false when the signal
// should end the process: signals are not caught, or one was recorded before.
bool note_stop_signal(int signal);

// The recorded signal; 0 without one.
int stop_signal();

// The name of one of kStopSignals, such as "SIGTERM".
std::string name_of_signal(int signal);

}  // namespace switchyard
