// Which of the processes of its machine this one is.
#pragma once

namespace switchyard {

// As the launcher tells in the environment (Open MPI, MPICH and what descends from it, Slurm); 0 without one.
int local_process();

}  // namespace switchyard
