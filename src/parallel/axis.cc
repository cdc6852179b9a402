#include "parallel/axis.h"

#include <algorithm>
#include <array>
#include <mutex>

#include "core/error.h"

namespace switchyard {
namespace {

// A number's name never moves in memory once the number is assigned.
struct Names {
  std::mutex mutex;
  std::array<std::string, 256> names;  // the first is that of no axis
  std::size_t count = 1;
};

// Never destroyed: threads may name axes until the very end.
Names& names() {
  static Names* const instance = new Names;
  return *instance;
}

}  // namespace

Axis::Axis(std::string_view name) {
  if (name.empty()) return;
  Names& known = names();
  const std::scoped_lock lock(known.mutex);
  const auto end = known.names.begin() + static_cast<std::ptrdiff_t>(known.count);
  const auto found = std::find(known.names.begin() + 1, end, name);
  if (found == end) {
    if (known.count == known.names.size())
      fail_usage("[mesh] expected at most {} names of mesh axes, got '{}' as well", known.count - 1, name);
    known.names[known.count++] = name;
  }
  number_ = static_cast<std::uint8_t>(found - known.names.begin());
}

const std::string& Axis::name() const {
  return names().names[number_];
}

std::string joined(const Axes& axes) {
  std::string text;
  for (const Axis axis : axes) {
    if (!text.empty()) text += '+';
    text += axis.name();
  }
  return text;
}

}  // namespace switchyard
