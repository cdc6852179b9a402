// Isa: what instructions a CPU kernel may use.
//
// SWITCHYARD_ISA=ref|avx2|avx512|avx512_bf16|amx caps them. SWITCHYARD_ISA=amx_emulated: AMX, by way of
// signals where the machine lacks it (kernels/cpu/amx_emulation.h) and has AVX512-BF16; otherwise all that
// the machine has. All functions are thread safe.
#pragma once

#include <cstdint>
#include <string_view>

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

}  // namespace switchyard
