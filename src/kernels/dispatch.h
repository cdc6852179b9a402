// Choice of a kernel's implementation.
//
// An op lists its implementations from best to `ref`; the first that the machine, the instruction set cap and
// the shape allow runs. A refusal carries a reason. SWITCHYARD_ISA=ref|avx2|avx512|avx512_bf16|amx caps the
// instruction sets, and SWITCHYARD_VERBOSE=dispatch prints each distinct choice and refusal once to stderr.
// SWITCHYARD_ISA=amx_emulated: AMX, by way of signals where the machine lacks it
// (kernels/cpu/amx_emulation.h) and has AVX512-BF16; otherwise all that the machine has. All functions are
// thread safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"

namespace switchyard {

enum class Isa : std::uint8_t { ref, avx2, avx512, avx512_bf16, amx };  // each includes those before it

std::string_view name_of(Isa isa);

// The best instruction set of this machine and operating system.
Isa machine_isa();
bool amx_is_emulated();

// machine_isa() capped by SWITCHYARD_ISA, or the value of this thread's innermost ScopedIsa.
// Throws Error(usage) when SWITCHYARD_ISA holds any other word.
Isa active_isa();

// Test hook: caps the calling thread's choices (also for the work it hands to a pool) while it lives.
// CHECKs that the machine has the instruction set.
class ScopedIsa {
 public:
  explicit ScopedIsa(Isa isa);
  ~ScopedIsa();
  ScopedIsa(const ScopedIsa&) = delete;
  ScopedIsa& operator=(const ScopedIsa&) = delete;

 private:
  int previous_;
};

// One way to run an op. `Shape` is whatever the op decides by (its argument struct, a dtype, ...).
// `refuse` returns null to accept, or the reason not to; a null `refuse` accepts everything.
// All strings are literals: they are compared by address and kept for the life of the process.
template <typename Run, typename Shape>
struct Implementation {
  const char* name;
  Isa isa;
  Run* run;
  const char* (*refuse)(const Shape&) = nullptr;
};

// What an op ran, and where that was not the first of its list, which was and why it refused.
struct KernelChoice {
  std::string op;
  std::string implementation;
  std::string refused;  // "amx: the operands are not bfloat16"; empty: nothing faster is listed
  bool operator==(const KernelChoice&) const = default;
};
std::vector<KernelChoice> kernels_used();  // in this process, each distinct one once, sorted

// An implementation that `choose` had in its list.
struct ListedKernel {
  std::string_view op;
  std::string_view implementation;
  Isa isa;
  bool ran;
  bool operator==(const ListedKernel&) const = default;
};

// Test hook: while it lives, collects the lists of the calling thread's choices, in order.
class DispatchRecord {
 public:
  DispatchRecord();
  ~DispatchRecord();
  DispatchRecord(const DispatchRecord&) = delete;
  DispatchRecord& operator=(const DispatchRecord&) = delete;

  void add(const ListedKernel& listed) { listed_.push_back(listed); }
  const std::vector<ListedKernel>& listed() const { return listed_; }

 private:
  DispatchRecord* const previous_;
  std::vector<ListedKernel> listed_;
};

namespace dispatch_detail {
const char* missing(Isa isa);
void note_refusal(const char* op, const char* implementation, const char* reason);
void note_choice(const char* op, const char* implementation, const char* refused, const char* reason);
DispatchRecord* record();  // the calling thread's innermost, or null
}  // namespace dispatch_detail

// The first implementation of `list` that accepts `shape`. The last must accept everything (`ref`).
template <typename Run, typename Shape, std::size_t count>
Run* choose(const char* op, const Implementation<Run, Shape> (&list)[count], const Shape& shape) {
  const Isa cap = active_isa();
  const char *refused = nullptr, *first_reason = nullptr;  // the first refusal
  for (const auto& candidate : list) {
    const char* reason = candidate.isa > cap ? dispatch_detail::missing(candidate.isa)
                         : candidate.refuse  ? candidate.refuse(shape)
                                             : nullptr;
    if (reason == nullptr) {
      dispatch_detail::note_choice(op, candidate.name, refused, first_reason);
      if (DispatchRecord* const record = dispatch_detail::record()) {
        for (const auto& other : list) record->add({op, other.name, other.isa, &other == &candidate});
      }
      return candidate.run;
    }
    if (first_reason == nullptr) {
      refused = candidate.name;
      first_reason = reason;
    }
    dispatch_detail::note_refusal(op, candidate.name, reason);
  }
  CHECK(false, "every implementation of {} refused, the last because: {}", op, first_reason);
  return nullptr;
}

}  // namespace switchyard
