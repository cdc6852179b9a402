// The record of which implementation ran: the log, summary.json, `selftest` and unit tests read it.
//
// SWITCHYARD_VERBOSE=dispatch prints each distinct choice and each distinct refusal once to stderr.
// All strings are literals: they are compared by address and kept for the life of the process.
// All functions are thread safe.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "kernels/registry/isa.h"

namespace switchyard {

// The implementation that an op ran. Where it is not the table's first, also the first and why that refused.
struct KernelChoice {
  std::string op;
  std::string implementation;
  std::string refused;  // "amx: the operands are not bfloat16"; empty: nothing faster is listed
  bool operator==(const KernelChoice&) const = default;
};
std::vector<KernelChoice> kernels_used();  // in this process, each distinct one once, sorted

// An implementation that a choice had in its table.
struct ListedKernel {
  std::string_view table;  // the op's name, but of products, which share one
  std::string_view op;
  std::string_view implementation;
  bool on_gpu;
  Isa isa;        // Isa::ref on a GPU
  bool possible;  // this machine, or the cap on instruction sets, allows it
  bool ran;
  std::string_view refused;  // the reason, in words; empty where it ran or was not asked
  bool operator==(const ListedKernel&) const = default;
};

// Test hook: while it lives, collects the tables of the calling thread's choices, in order.
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

namespace registry {
void note_refusal(const char* op, const char* implementation, const char* reason);
void note_choice(const char* op, const char* implementation, const char* refused, const char* reason);
DispatchRecord* record();  // the calling thread's innermost, or null
}  // namespace registry

}  // namespace switchyard
