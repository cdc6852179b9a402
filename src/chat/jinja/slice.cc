#include <algorithm>

#include "chat/jinja/builtins.h"
#include "chat/jinja/markup.h"

namespace switchyard::jinja {

namespace {

// Which items a slice takes, of `size`.
struct SliceRange {
  Integer start, stop, step;
};

Integer slice_number(const Value& value) {
  const auto number = value.integer();
  if (!number) fail_other("slice indices must be integers or None or have an __index__ method");
  return *number;
}

Integer clipped(const Value& value, Integer otherwise, Integer size, Integer least, Integer most) {
  if (value.is_none()) return otherwise;
  Integer at = slice_number(value);
  if (at < 0) at += size;
  return std::clamp(at, least, most);
}

SliceRange slice_range(std::size_t count, const Value& start, const Value& stop, const Value& step) {
  const auto size = static_cast<Integer>(count);
  SliceRange range{0, 0, step.is_none() ? 1 : slice_number(step)};
  if (range.step == 0) fail_other("slice step cannot be zero");
  if (range.step > 0) {
    range.start = clipped(start, 0, size, 0, size);
    range.stop = clipped(stop, size, size, 0, size);
  } else {
    range.start = clipped(start, size - 1, size, -1, size - 1);
    range.stop = clipped(stop, -1, size, -1, size - 1);
  }
  return range;
}

template <typename Take>
void each_of(const SliceRange& range, const Take& take) {
  for (Integer at = range.start; range.step > 0 ? at < range.stop : at > range.stop; at += range.step) {
    take(static_cast<std::size_t>(at));
  }
}

Value text_slice(const Text& text, const Value& start, const Value& stop, const Value& step) {
  Budget::count_text(text.size());
  const bool is_ascii = count_code_points(text.bytes) == text.size();
  const auto starts = is_ascii ? std::vector<std::size_t>() : code_point_starts(text.bytes);
  const auto byte = [&](std::size_t index) { return is_ascii ? index : starts[index]; };
  const SliceRange range = slice_range(is_ascii ? text.size() : starts.size() - 1, start, stop, step);
  if (range.step == 1) {
    if (range.stop <= range.start) return Text();
    return text.part(byte(static_cast<std::size_t>(range.start)), byte(static_cast<std::size_t>(range.stop)));
  }
  Text out;
  each_of(range, [&](std::size_t at) { out.append(text, byte(at), byte(at + 1)); });
  return out;
}

}  // namespace

Value slice(const Value& subject, const Value& start, const Value& stop, const Value& step) {
  if (const Text* text = subject.text()) {
    const Value part = text_slice(*text, start, stop, step);
    return like(subject, *part.text());
  }
  const auto* items = subject.items();
  if (items == nullptr) fail_type("'" + type_name(subject) + "' object cannot be sliced", subject);
  std::vector<Value> out;
  each_of(slice_range(items->size(), start, stop, step),
          [&](std::size_t at) { out.push_back((*items)[at]); });
  if (subject.list() != nullptr) return make_list(std::move(out));
  return make_tuple(std::move(out));
}

}  // namespace switchyard::jinja
