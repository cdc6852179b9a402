// NCCL, loaded when it is needed: the program starts on machines without it.
#pragma once

#include <string>

#include "core/device.h"
#include "parallel/comm/nccl/nccl_api.h"

namespace switchyard {

class NcclLibrary {
 public:
  // That of this process: libnccl.so.2 as the loader finds it, or what the environment variable
  // SWITCHYARD_NCCL names, which device=cuda_emulated demands. Error(usage) for one that is missing, or of an
  // unknown version.
  static const NcclLibrary& for_device(const Device& device);

  const nccl::Api& api() const { return api_; }
  // "NCCL 2.28.9 (/usr/lib/libnccl.so.2)"
  const std::string& name() const { return name_; }

 private:
  explicit NcclLibrary(const std::string& file);

  nccl::Api api_{};
  std::string name_;
};

// Error(usage) unless a GPU of each of several processes with so many ranks can reach the others.
void require_nccl(const Device& device, int ranks_a_process);

}  // namespace switchyard
