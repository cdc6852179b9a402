// Loads NCCL at run time: the program also starts on machines without it.
#pragma once

#include <string>

#include "core/device.h"
#include "parallel/comm/nccl/nccl_api.h"

namespace switchyard {

class NcclLibrary {
 public:
  // Returns this process's NCCL: libnccl.so.2 as the loader finds it, or the library that the environment
  // variable SWITCHYARD_NCCL names, which device=cuda_emulated requires. Error(usage) when the library is
  // missing or its version is unknown.
  static const NcclLibrary& for_device(const Device& device);

  const nccl::Api& api() const { return api_; }
  // "NCCL 2.28.9 (/usr/lib/libnccl.so.2)"
  const std::string& name() const { return name_; }

 private:
  explicit NcclLibrary(const std::string& file);

  nccl::Api api_{};
  std::string name_;
};

// Error(usage) unless the processes' GPUs, with so many ranks a process, can reach each other.
void require_nccl(const Device& device, int ranks_a_process);

}  // namespace switchyard
