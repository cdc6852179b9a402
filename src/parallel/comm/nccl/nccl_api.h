// The C functions of NCCL that are used, stable since version 2.14: a build needs no nccl.h.
#pragma once

#include <cstddef>

namespace switchyard::nccl {

using Status = int;  // ncclResult_t
constexpr Status kSuccess = 0, kUnhandledCudaError = 1, kSystemError = 2, kInternalError = 3,
                 kInvalidArgument = 4, kInvalidUsage = 5, kRemoteError = 6, kInProgress = 7;

constexpr int kBytes = 0;  // ncclDataType_t: ncclInt8, the only type used

struct Comm;  // ncclComm

struct UniqueId {
  char internal[128];
};

// ncclConfig_t of 2.14. Later versions read only `size` bytes of it and use their defaults for members that
// `version` did not have.
struct Config {
  std::size_t size = sizeof(Config);
  unsigned int magic = 0xcafebeef;
  unsigned int version = 21400;
  int blocking = 0;
};
static_assert(sizeof(Config) == 24);

// `stream` is a cudaStream_t.
struct Api {
  Status (*get_version)(int* version);
  Status (*get_unique_id)(UniqueId* id);
  Status (*comm_init_rank_config)(Comm** comm, int ranks, UniqueId id, int rank, Config* config);
  Status (*comm_get_async_error)(Comm* comm, Status* status);
  Status (*comm_finalize)(Comm* comm);
  Status (*comm_destroy)(Comm* comm);
  Status (*comm_abort)(Comm* comm);
  Status (*group_start)();
  Status (*group_end)();
  Status (*send)(const void* from, std::size_t count, int type, int peer, Comm* comm, void* stream);
  Status (*receive)(void* to, std::size_t count, int type, int peer, Comm* comm, void* stream);
  Status (*all_gather)(const void* from, void* to, std::size_t count, int type, Comm* comm, void* stream);
  Status (*broadcast)(const void* from, void* to, std::size_t count, int type, int root, Comm* comm,
                      void* stream);
  const char* (*get_error_string)(Status status);
  const char* (*get_last_error)(Comm* comm);
};

}  // namespace switchyard::nccl
