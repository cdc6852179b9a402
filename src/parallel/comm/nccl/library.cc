#include "parallel/comm/nccl/library.h"

#include <dlfcn.h>

#include <cstdlib>

#include "core/error.h"

namespace switchyard {
namespace {

constexpr int kKnownMajor = 2;
constexpr const char* kNcclVariable = "SWITCHYARD_NCCL";

template <typename Function>
void find_function(void* library, const std::string& file, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  if (function == nullptr)
    fail_usage("[nccl] {} has no function {}: expected NCCL 2.14 or later", file, name);
}

}  // namespace

const NcclLibrary& NcclLibrary::for_device(const Device& device) {
  const char* const named = std::getenv(kNcclVariable);
  const bool is_named = named != nullptr && *named != '\0';
  if (!is_named && device.kind() == DeviceKind::cuda_emulated)
    fail_usage(
        "[nccl] device={} over several processes: expected {}=PATH with the tests' stand-in for NCCL, as "
        "NCCL "
        "itself does not reach this memory",
        device.name(), kNcclVariable);
  static const NcclLibrary library(is_named ? named : "libnccl.so.2");
  return library;
}

NcclLibrary::NcclLibrary(const std::string& file) {
  void* const library = ::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    fail_usage("[nccl] several GPUs need NCCL 2.14 or later, but {} cannot be loaded ({}); {}=PATH names it",
               file, ::dlerror(), kNcclVariable);
  find_function(library, file, "ncclGetVersion", api_.get_version);
  int version = 0;
  if (api_.get_version(&version) != nccl::kSuccess) fail_usage("[nccl] {} does not tell its version", file);
  const int major = version / 10000, minor = version / 100 % 100;
  if (major != kKnownMajor)
    fail_usage("[nccl] {} is NCCL of version code {}: expected 2.14 or a later 2", file, version);
  find_function(library, file, "ncclGetUniqueId", api_.get_unique_id);
  find_function(library, file, "ncclCommInitRankConfig", api_.comm_init_rank_config);
  find_function(library, file, "ncclCommGetAsyncError", api_.comm_get_async_error);
  find_function(library, file, "ncclCommFinalize", api_.comm_finalize);
  find_function(library, file, "ncclCommDestroy", api_.comm_destroy);
  find_function(library, file, "ncclCommAbort", api_.comm_abort);
  find_function(library, file, "ncclGroupStart", api_.group_start);
  find_function(library, file, "ncclGroupEnd", api_.group_end);
  find_function(library, file, "ncclSend", api_.send);
  find_function(library, file, "ncclRecv", api_.receive);
  find_function(library, file, "ncclAllGather", api_.all_gather);
  find_function(library, file, "ncclBroadcast", api_.broadcast);
  find_function(library, file, "ncclGetErrorString", api_.get_error_string);
  find_function(library, file, "ncclGetLastError", api_.get_last_error);
  Dl_info place{};
  const bool known = ::dladdr(reinterpret_cast<void*>(api_.get_version), &place) != 0;
  name_ = fmt::format("NCCL {}.{}.{} ({})", major, minor, version % 100, known ? place.dli_fname : file);
}

void require_nccl(const Device& device, int ranks_a_process) {
  if (ranks_a_process > 1)
    fail_usage(
        "[device] device={} over several processes: expected one rank a process, got {}; a GPU for each",
        device.name(), ranks_a_process);
  NcclLibrary::for_device(device);
}

}  // namespace switchyard
