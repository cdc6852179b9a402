#include "kernels/moe/plan_rows.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "core/error.h"
#include "kernels/cuda/kernels.h"

namespace switchyard {
namespace {

void check_indices(const char* op, const char* name, const TensorView& x) {
  CHECK(x.dtype() == DType::i32 && x.is_contiguous(), "[{}] {} is {} {}", op, name, name_of(x.dtype()),
        to_string(x.shape()));
}

std::span<const std::int32_t> ids_of(const TensorView& ids) {
  return {ids.kernel_data<std::int32_t>(), static_cast<std::size_t>(ids.size())};
}

// Whether an id is one of `count` from `first` on.
struct IsHere {
  std::uint32_t first, count;
  bool operator()(std::int32_t id) const { return static_cast<std::uint32_t>(id) - first < count; }
};

// The rows whose expert is here, in order. In a ring the rows of all ranks pass by and few of them are this
// rank's, so this is the one loop over all of them: a store a row and no branch.
std::vector<std::int32_t> rows_here(std::span<const std::int32_t> ids, IsHere is_here) {
  // One place more than there are rows: it takes what is not wanted.
  std::vector<std::int32_t> rows(static_cast<std::size_t>(std::count_if(ids.begin(), ids.end(), is_here)) +
                                 1);
  std::size_t found = 0;
  for (std::size_t row = 0; row < ids.size(); ++row) {
    rows[found] = static_cast<std::int32_t>(row);
    found += is_here(ids[row]) ? 1 : 0;
  }
  rows.pop_back();
  return rows;
}

IsHere experts_here(std::int64_t first, const TensorView& of_each) {
  return {static_cast<std::uint32_t>(first), static_cast<std::uint32_t>(of_each.size())};
}

}  // namespace

void count_ids(ThreadPool& pool, const TensorView& ids, std::int64_t first, const TensorView& counts) {
  check_indices("count_ids", "ids", ids);
  check_indices("count_ids", "counts", counts);
  if (pool.skips({"count_ids", DType::i32, 0, static_cast<double>(ids.bytes() + counts.bytes())})) return;
  if (counts.on_gpu()) return gpu::count_ids(ids, first, counts);
  auto* const count = counts.kernel_data<std::int32_t>();
  std::fill_n(count, counts.size(), 0);
  const IsHere is_here = experts_here(first, counts);
  for (const std::int32_t id : ids_of(ids)) {
    if (is_here(id)) ++count[id - first];
  }
}

void plan_rows(ThreadPool& pool, const PlanRowsArgs& args) {
  const char* const op = "plan_rows";
  check_indices(op, "ids", args.ids);
  check_indices(op, "kept", args.kept);
  check_indices(op, "rows", args.rows);
  check_indices(op, "tokens", args.tokens);
  check_indices(op, "position", args.position);
  if (args.skipped.defined()) {
    check_indices(op, "skipped", args.skipped);
    CHECK(args.skipped.size() == args.kept.size(), "[{}] {} experts skip rows, {} keep some", op,
          args.skipped.size(), args.kept.size());
  }
  CHECK(args.ids.rank() > 0 && args.position.size() == args.ids.size() &&
            args.rows.size() == args.tokens.size(),
        "[{}] {} ids, {} positions, {} rows of {} tokens", op, args.ids.size(), args.position.size(),
        args.rows.size(), args.tokens.size());
  if (pool.skips({op, DType::i32, 0,
                  static_cast<double>(args.ids.bytes() + args.position.bytes() + 2 * args.rows.bytes())}))
    return;
  if (args.ids.on_gpu()) return gpu::plan_rows(args);
  const auto slots = static_cast<std::int32_t>(args.ids.shape().back());
  const std::span<const std::int32_t> ids = ids_of(args.ids);
  const std::span<const std::int32_t> kept = ids_of(args.kept);
  auto* const rows = args.rows.kernel_data<std::int32_t>();
  auto* const tokens = args.tokens.kernel_data<std::int32_t>();
  auto* const position = args.position.kernel_data<std::int32_t>();
  std::vector<std::int64_t> next, end;  // positions of each expert's rows
  std::int64_t sum = 0;
  for (const std::int32_t n : kept) {
    CHECK(n >= 0, "[{}] {} rows kept", op, n);
    next.push_back(sum);
    end.push_back(sum += n);
  }
  CHECK(sum == args.rows.size(), "[{}] {} rows kept, room for {}", op, sum, args.rows.size());
  std::vector<std::int32_t> to_skip(kept.size(), 0);
  if (args.skipped.defined()) std::ranges::copy(ids_of(args.skipped), to_skip.begin());
  std::fill_n(position, args.position.size(), -1);
  for (const std::int32_t row : rows_here(ids, experts_here(args.first, args.kept))) {
    const auto e = static_cast<std::size_t>(ids[static_cast<std::size_t>(row)] - args.first);
    if (to_skip[e] > 0) {
      --to_skip[e];
      continue;
    }
    if (next[e] == end[e]) continue;  // no room
    const std::int64_t at = next[e]++;
    rows[at] = row;
    tokens[at] = row / slots;
    position[row] = static_cast<std::int32_t>(at);
  }
  CHECK(next == end, "[{}] an expert has fewer rows than it keeps", op);
}

void plan_places(ThreadPool& pool, const PlanPlacesArgs& args) {
  const char* const op = "plan_places";
  check_indices(op, "ids", args.ids);
  check_indices(op, "rows", args.rows);
  check_indices(op, "tokens", args.tokens);
  check_indices(op, "position", args.position);
  check_indices(op, "dropped", args.dropped);
  CHECK(args.ids.rank() == 3 && args.position.shape() == args.ids.shape() && args.rows.rank() == 3 &&
            args.tokens.shape() == args.rows.shape() && args.rows.dim(1) == args.ids.dim(0) &&
            args.dropped.size() == args.rows.dim(0),
        "[{}] ids {}, positions {}, places {} and {}, {} experts", op, to_string(args.ids.shape()),
        to_string(args.position.shape()), to_string(args.rows.shape()), to_string(args.tokens.shape()),
        args.dropped.size());
  if (pool.skips({op, DType::i32, 0, static_cast<double>(2 * args.ids.bytes() + 2 * args.rows.bytes())}))
    return;
  if (args.ids.on_gpu()) return gpu::plan_places(args);
  const std::int64_t batch = args.ids.dim(0), slots = args.ids.dim(2), per_sequence = args.ids.dim(1) * slots,
                     experts = args.rows.dim(0), capacity = args.rows.dim(2);
  const std::span<const std::int32_t> ids = ids_of(args.ids);
  auto* const rows = args.rows.kernel_data<std::int32_t>();
  auto* const tokens = args.tokens.kernel_data<std::int32_t>();
  auto* const position = args.position.kernel_data<std::int32_t>();
  auto* const dropped = args.dropped.kernel_data<std::int32_t>();
  pool.for_range(batch, 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<std::int64_t> used;
    for (std::int64_t b = begin; b < end; ++b) {
      used.assign(static_cast<std::size_t>(experts), 0);
      for (std::int64_t e = 0; e < experts; ++e) {
        std::fill_n(rows + (e * batch + b) * capacity, capacity, -1);
        std::fill_n(tokens + (e * batch + b) * capacity, capacity, -1);
      }
      for (std::int64_t r = b * per_sequence; r < (b + 1) * per_sequence; ++r) {
        const std::int32_t e = ids[static_cast<std::size_t>(r)];
        CHECK(e >= -1 && e < experts, "[{}] expert id {} of {}", op, e, experts);
        position[r] = -1;
        if (e < 0) continue;
        auto& next = used[static_cast<std::size_t>(e)];
        if (next == capacity) continue;
        const std::int64_t place = (e * batch + b) * capacity + next++;
        rows[place] = static_cast<std::int32_t>(r);
        tokens[place] = static_cast<std::int32_t>(r / slots);
        position[r] = static_cast<std::int32_t>(place);
      }
    }
  });
  std::fill_n(dropped, experts, 0);
  for (std::size_t r = 0; r < ids.size(); ++r) {
    if (ids[r] >= 0) dropped[ids[r]] += position[r] < 0 ? 1 : 0;
  }
}

}  // namespace switchyard
