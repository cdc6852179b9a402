#include "core/local_process.h"

#include <algorithm>
#include <cstdlib>

namespace switchyard {

int local_process() {
  for (const char* variable : {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID"}) {
    if (const char* text = std::getenv(variable)) return std::max(0, std::atoi(text));
  }
  return 0;
}

}  // namespace switchyard
