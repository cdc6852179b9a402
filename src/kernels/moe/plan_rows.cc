#include "kernels/moe/plan_rows.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "core/error.h"
#include "kernels/moe/kernels.h"
#include "kernels/registry/kernel.h"

namespace switchyard {
namespace {

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

void count_in_turn(ThreadPool&, const CountIdsArgs& args) {
  auto* const count = args.counts.kernel_data<std::int32_t>();
  std::fill_n(count, args.counts.size(), 0);
  const IsHere is_here = experts_here(args.first, args.counts);
  for (const std::int32_t id : ids_of(args.ids)) {
    if (is_here(id)) ++count[id - args.first];
  }
}

void sort_by_expert(ThreadPool&, const PlanRowsArgs& args) {
  const auto slots = static_cast<std::int32_t>(args.ids.shape().back());
  const std::span<const std::int32_t> ids = ids_of(args.ids);
  const std::span<const std::int32_t> kept = ids_of(args.kept);
  auto* const rows = args.rows.kernel_data<std::int32_t>();
  auto* const tokens = args.tokens.kernel_data<std::int32_t>();
  auto* const position = args.position.kernel_data<std::int32_t>();
  std::vector<std::int64_t> next, end;  // positions of each expert's rows
  std::int64_t sum = 0;
  for (const std::int32_t n : kept) {
    CHECK(n >= 0, "[plan_rows] {} rows kept", n);
    next.push_back(sum);
    end.push_back(sum += n);
  }
  CHECK(sum == args.rows.size(), "[plan_rows] {} rows kept, room for {}", sum, args.rows.size());
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
  CHECK(next == end, "[plan_rows] an expert has fewer rows than it keeps");
}

void admit_in_order(ThreadPool& pool, const PlanPlacesArgs& args) {
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
        CHECK(e >= -1 && e < experts, "[plan_places] expert id {} of {}", e, experts);
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

// Numbers of 4 bytes that are read or written.
Work moved(std::int64_t numbers) {
  return {.dtype = DType::i32, .bytes = static_cast<double>(4 * numbers)};
}

Work count_work(const CountIdsArgs& args) {
  return moved(args.ids.size() + args.counts.size());
}

Work rows_work(const PlanRowsArgs& args) {
  return moved(args.ids.size() + args.position.size() + 2 * args.rows.size());
}

Work places_work(const PlanPlacesArgs& args) {
  return moved(2 * args.ids.size() + 2 * args.rows.size());
}

constexpr Implementation<CountIdsArgs> kCounts[] = {{"cuda", Gpu::any, gpu::count_ids},
                                                    {"portable", Isa::ref, count_in_turn}};
constexpr Implementation<PlanRowsArgs> kRowPlans[] = {{"cuda", Gpu::any, gpu::plan_rows},
                                                      {"portable", Isa::ref, sort_by_expert}};
constexpr Implementation<PlanPlacesArgs> kPlacePlans[] = {{"cuda", Gpu::any, gpu::plan_places},
                                                          {"portable", Isa::ref, admit_in_order}};
constexpr Kernel<CountIdsArgs> kCountIds{"count_ids", count_work, &CountIdsArgs::counts, kCounts};
constexpr Kernel<PlanRowsArgs> kPlanRows{"plan_rows", rows_work, &PlanRowsArgs::ids, kRowPlans};
constexpr Kernel<PlanPlacesArgs> kPlanPlaces{"plan_places", places_work, &PlanPlacesArgs::ids, kPlacePlans};

void check_indices(const char* op, const char* name, const TensorView& x) {
  CHECK(x.dtype() == DType::i32 && x.is_contiguous(), "[{}] {} is {} {}", op, name, name_of(x.dtype()),
        to_string(x.shape()));
}

}  // namespace

void count_ids(ThreadPool& pool, const TensorView& ids, std::int64_t first, const TensorView& counts) {
  check_indices("count_ids", "ids", ids);
  check_indices("count_ids", "counts", counts);
  run(pool, kCountIds, {ids, first, counts});
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
  run(pool, kPlanRows, args);
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
  run(pool, kPlanPlaces, args);
}

}  // namespace switchyard
