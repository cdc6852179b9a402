#include "core/address_limit.h"

#include <pthread.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "core/error.h"
#include "core/fiber.h"

namespace switchyard {
namespace {

// Bytes of the line `name: N kB` in the process's status.
std::int64_t status_bytes(const std::string& name) {
  std::ifstream file("/proc/self/status");
  std::int64_t kilobytes = 0;
  for (std::string word; file >> word;) {
    if (word == name + ":" && file >> kilobytes) return kilobytes * 1024;
  }
  fail_runtime("[memory] /proc/self/status has no {}, which a limit of it asks for", name);
}

std::int64_t stack_of_thread() {
  pthread_attr_t attributes;
  std::size_t bytes = 0;
  if (::pthread_attr_init(&attributes) != 0) return Fiber::kStackBytes;
  ::pthread_attr_getstacksize(&attributes, &bytes);
  ::pthread_attr_destroy(&attributes);
  return static_cast<std::int64_t>(bytes);
}

}  // namespace

std::optional<AddressLimit> address_limit() {
  struct Kind {
    decltype(RLIMIT_AS) resource;
    const char *used, *name;
  };
  constexpr Kind kKinds[] = {{RLIMIT_AS, "VmSize", "the limit of address space (ulimit -v)"},
                             {RLIMIT_DATA, "VmData", "the limit of data (ulimit -d)"}};
  std::optional<AddressLimit> tightest;
  for (const Kind& kind : kKinds) {
    rlimit limit{};
    if (::getrlimit(kind.resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) continue;
    constexpr rlim_t kMost = rlim_t{1} << 60;
    const std::int64_t left = std::max<std::int64_t>(
        0, static_cast<std::int64_t>(std::min(limit.rlim_cur, kMost)) - status_bytes(kind.used));
    if (!tightest || left < tightest->left) tightest = {left, kind.name};
  }
  return tightest;
}

std::int64_t bytes_of_stacks(int cores, std::int64_t ranks) {
  constexpr int kOthers = 4;  // the clock, deadlines, a background save, MPI's watch
  const std::int64_t fibers = ranks > 1 ? ranks * static_cast<std::int64_t>(Fiber::kStackBytes) : 0;
  return (cores + kOthers) * stack_of_thread() + fibers;
}

}  // namespace switchyard
