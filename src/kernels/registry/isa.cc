#include "kernels/registry/isa.h"

#include <algorithm>
#include <array>
#include <cstdlib>

#include "core/error.h"
#include "hwy/targets.h"
#include "kernels/cpu/amx_emulation.h"
#include "kernels/cuda/planned.h"
#include "kernels/registry/kernel.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace switchyard {
namespace {

constexpr std::array<std::string_view, 5> kIsaNames = {"ref", "avx2", "avx512", "avx512_bf16", "amx"};

// AVX512-BF16 and VNNI, on which kernels of that level rely, too. Every processor with
// the first has the second.
bool avx512_bf16_available() {
#if defined(__x86_64__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0 || (c & (1u << 11)) == 0) return false;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) != 0 && (a & (1u << 5)) != 0;
#else
  return false;
#endif
}

constexpr std::string_view kEmulatedAmx = "amx_emulated";

std::string_view isa_in_environment() {
  const char* const text = std::getenv("SWITCHYARD_ISA");
  return text == nullptr ? "" : text;
}

// AMX registers must be asked for once per process (Linux: arch_prctl); a refusal means no AMX.
bool has_amx() {
#if defined(SWITCHYARD_AMX_COSTS)
  return true;
#elif defined(__x86_64__) && defined(__linux__)
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return false;
  constexpr unsigned kAmxBf16 = 1u << 22, kAmxTile = 1u << 24;
  if ((d & kAmxBf16) == 0 || (d & kAmxTile) == 0) return false;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

Isa detect_isa() {
  [[maybe_unused]] const auto targets = hwy::SupportedTargets();
#if defined(__x86_64__)
  if ((targets & HWY_AVX3) != 0) {
    if (!avx512_bf16_available()) return Isa::avx512;
    return has_amx() || amx_is_emulated() ? Isa::amx : Isa::avx512_bf16;
  }
  if ((targets & HWY_AVX2) != 0) return Isa::avx2;
#endif
  return Isa::ref;
}

Isa isa_from_environment() {
  const std::string_view text = isa_in_environment();
  if (text.empty() || text == kEmulatedAmx) return machine_isa();
  const auto found = std::find(kIsaNames.begin(), kIsaNames.end(), text);
  if (found == kIsaNames.end()) {
    fail_usage("[kernels] SWITCHYARD_ISA={}: expected ref, avx2, avx512, avx512_bf16, amx or {}", text,
               kEmulatedAmx);
  }
  return std::min(machine_isa(), static_cast<Isa>(found - kIsaNames.begin()));
}

constexpr int kNoOverride = -1;
thread_local int isa_override = kNoOverride;

}  // namespace

std::string_view name_of(Isa isa) {
  return kIsaNames[static_cast<std::size_t>(isa)];
}

Isa machine_isa() {
  static const Isa isa = detect_isa();
  return isa;
}

bool amx_is_emulated() {
  static const bool emulated =
      isa_in_environment() == kEmulatedAmx && avx512_bf16_available() && !has_amx() && cpu::emulate_amx();
  return emulated;
}

Isa active_isa() {
  if (isa_override != kNoOverride) return static_cast<Isa>(isa_override);
  static const Isa isa = isa_from_environment();
  return isa;
}

ScopedIsa::ScopedIsa(Isa isa) : previous_(isa_override) {
  CHECK(isa <= machine_isa(), "{} asked for, the machine has {}", name_of(isa), name_of(machine_isa()));
  isa_override = static_cast<int>(isa);
}

ScopedIsa::~ScopedIsa() {
  isa_override = previous_;
}

namespace registry {

const char* missing(Isa isa) {
  if (isa <= active_isa()) return nullptr;
  switch (isa) {
    case Isa::amx:
      return "amx is not in this machine or is capped by SWITCHYARD_ISA";
    case Isa::avx512_bf16:
      return "avx512_bf16 is not in this machine or is capped by SWITCHYARD_ISA";
    case Isa::avx512:
      return "avx512 is not in this machine or is capped by SWITCHYARD_ISA";
    default:
      return "avx2 is not in this machine or is capped by SWITCHYARD_ISA";
  }
}

const char* missing(Gpu gpu) {
  if (gpu == Gpu::any || gpu::compute_major() == 9) return nullptr;
  return gpu::compute_major() == 0 ? "the emulated GPU is of Hopper's kind only with SWITCHYARD_EMULATED_CARD=hopper"
                                   : "wgmma is of compute capability 9, which this GPU has not";
}

void refuse_other_device(const char* op, int number, const TensorView& view) {
  fail_runtime("[{}] view {} of its arguments, {} {}, lies in memory of {}, and its kernel runs on {}", op,
               number, name_of(view.dtype()), to_string(view.shape()), view.on_gpu() ? "a GPU" : "the host",
               view.on_gpu() ? "the host" : "a GPU");
}

}  // namespace registry

}  // namespace switchyard
