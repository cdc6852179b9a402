// The index of this process among the processes of its machine.
#pragma once

namespace switchyard {

// Read from the launcher's environment (Open MPI, MPICH and its derivatives, Slurm); 0 without a launcher.
int local_process();

}  // namespace switchyard
