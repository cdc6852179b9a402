#include "kernels/dispatch.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <set>
#include <tuple>
#include <utility>

#include "hwy/targets.h"
#include "kernels/cpu/amx_emulation.h"

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

// AVX512-BF16 and VNNI, on which kernels of that level rely, too. Every processor with the first has the
// second.
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
thread_local DispatchRecord* innermost_record = nullptr;

// Op, implementation, what refused (the implementation itself, or for a choice the first of the list; null:
// nothing did), and why.
using Note = std::tuple<const char*, const char*, const char*, const char*>;

// What has been noted in this process. A thread asks it once per distinct note, so it is off the hot path.
class Notes {
 public:
  // True when the note is new to the process.
  bool add(const Note& note) {
    std::lock_guard lock(mutex_);
    return notes_.insert(note).second;
  }
  std::vector<Note> all() {
    std::lock_guard lock(mutex_);
    return {notes_.begin(), notes_.end()};
  }

 private:
  std::mutex mutex_;
  std::set<Note> notes_;
};

Notes& process_notes() {
  static Notes notes;
  return notes;
}

bool is_new(const Note& note) {
  thread_local std::vector<Note> seen;
  if (std::find(seen.begin(), seen.end(), note) != seen.end()) return false;
  seen.push_back(note);
  return process_notes().add(note);
}

bool verbose() {
  static const bool on = [] {
    const char* text = std::getenv("SWITCHYARD_VERBOSE");
    return text != nullptr && std::string_view(text).find("dispatch") != std::string_view::npos;
  }();
  return on;
}

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

std::vector<KernelChoice> kernels_used() {
  std::vector<KernelChoice> result;
  for (const auto& [op, implementation, refused, reason] : process_notes().all()) {
    if (refused == implementation) continue;  // a refusal
    result.push_back({op, implementation, refused == nullptr ? "" : fmt::format("{}: {}", refused, reason)});
  }
  const auto key = [](const KernelChoice& c) { return std::tie(c.op, c.implementation, c.refused); };
  std::sort(result.begin(), result.end(), [&](const auto& a, const auto& b) { return key(a) < key(b); });
  result.erase(std::unique(result.begin(), result.end()), result.end());
  return result;
}

DispatchRecord::DispatchRecord() : previous_(innermost_record) {
  innermost_record = this;
}

DispatchRecord::~DispatchRecord() {
  innermost_record = previous_;
}

namespace dispatch_detail {

DispatchRecord* record() {
  return innermost_record;
}

const char* missing(Isa isa) {
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

void note_refusal(const char* op, const char* implementation, const char* reason) {
  if (!verbose() || !is_new({op, implementation, implementation, reason})) return;
  fmt::print(stderr, "[dispatch] {}: {} refused: {}\n", op, implementation, reason);
}

void note_choice(const char* op, const char* implementation, const char* refused, const char* reason) {
  if (!is_new({op, implementation, refused, reason}) || !verbose()) return;
  fmt::print(stderr, "[dispatch] {}: {} runs\n", op, implementation);
}

}  // namespace dispatch_detail
}  // namespace switchyard
