#include "kernels/registry/record.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <set>
#include <tuple>

#include "core/messages.h"

namespace switchyard {
namespace {

thread_local DispatchRecord* innermost_record = nullptr;

// Op, implementation, what refused (the implementation itself, or for a choice the first of the table; null:
// nothing did), and why.
using Note = std::tuple<const char*, const char*, const char*, const char*>;

// The notes of this process. A thread asks once per distinct note, so the lock is off the hot path.
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

namespace registry {

DispatchRecord* record() {
  return innermost_record;
}

void note_refusal(const char* op, const char* implementation, const char* reason) {
  if (!verbose() || !is_new({op, implementation, implementation, reason})) return;
  say("[dispatch] {}: {} refused: {}", op, implementation, reason);
}

void note_choice(const char* op, const char* implementation, const char* refused, const char* reason) {
  if (!is_new({op, implementation, refused, reason}) || !verbose()) return;
  say("[dispatch] {}: {} runs", op, implementation);
}

}  // namespace registry
}  // namespace switchyard
