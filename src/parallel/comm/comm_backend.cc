#include "parallel/comm/comm_backend.h"

#include <algorithm>

#include "core/error.h"
#include "parallel/comm/reduce.h"

namespace switchyard {

std::string_view name_of(Collective kind) {
  switch (kind) {
    case Collective::all_gather:
      return "all_gather";
    case Collective::reduce_scatter:
      return "reduce_scatter";
    case Collective::all_reduce:
      return "all_reduce";
    case Collective::all_to_all:
      return "all_to_all";
    case Collective::ragged_all_to_all:
      return "ragged_all_to_all";
    case Collective::broadcast:
      return "broadcast";
    case Collective::barrier:
      return "barrier";
    case Collective::make_together:
      return "make_together";
  }
  CHECK(false, "collective {}", static_cast<int>(kind));
  return {};
}

std::string to_string(const CollectiveCall& call) {
  std::string text =
      fmt::format("{} over '{}' of {} {}", name_of(call.kind), call.axis, call.size, call.type);
  if (call.kind == Collective::broadcast) text += fmt::format(" from group rank {}", call.root);
  if (call.runs > 1) text += fmt::format(" in {} runs", call.runs);
  return text;
}

std::string to_string(const Position& position) {
  const std::int64_t step = position.step, layer = position.layer;
  if (step < 0) return {};
  const std::string place = layer < 0 ? "outside the layers" : fmt::format("in layer {}", layer);
  return fmt::format(" {}, step {} ({})", place, step, position.phase.load());
}

Slice slice_of(std::int64_t count, int parts, int index) {
  const std::int64_t base = count / parts;
  const std::int64_t longer = count % parts;
  const auto begin = [&](std::int64_t i) { return i * base + std::min(i, longer); };
  return {begin(index), begin(index + 1)};
}

std::int64_t bytes_sent(const ProcessGroup& group, const CollectiveCall& call, const Operands& operands) {
  const std::int64_t others = group.size() - 1;
  switch (call.kind) {
    case Collective::all_gather:
    case Collective::all_to_all:
      return call.size * others;
    case Collective::reduce_scatter:
      return call.size * element_bytes(call.type) * others;
    case Collective::all_reduce: {
      const Slice own = slice_of(call.size, static_cast<int>(group.size()), group.index);
      const std::int64_t length = own.end - own.begin;
      return (call.size - length + length * others) * element_bytes(call.type);
    }
    case Collective::ragged_all_to_all: {
      std::int64_t rows = 0;
      for (std::size_t j = 0; j < operands.send.counts.size(); ++j) {
        if (static_cast<int>(j) != group.index) rows += operands.send.counts[j];
      }
      return rows * call.size;
    }
    case Collective::broadcast:
      return group.index == call.root ? call.size * others : 0;
    case Collective::barrier:
    case Collective::make_together:
      return 0;
  }
  return 0;
}

}  // namespace switchyard
