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

// Tells whether an id is one of `count` from `first` on.
struct IsHere {
  std::uint32_t first, count;
  bool operator()(std::int32_t id) const { return static_cast<std::uint32_t>(id) - first < count; }
};

// Lists the assignments to experts that are here, in order. In a ring the assignments of all ranks pass by
// and few of them are this rank's, so this is the one loop over all of them: a store for each and no branch.
std::vector<std::int32_t> assignments_here(std::span<const std::int32_t> ids, IsHere is_here) {
  // One element more: the store of an assignment that is not here lands there.
  std::vector<std::int32_t> assignments(
      static_cast<std::size_t>(std::count_if(ids.begin(), ids.end(), is_here)) + 1);
  std::size_t found = 0;
  for (std::size_t i = 0; i < ids.size(); ++i) {
    assignments[found] = static_cast<std::int32_t>(i);
    found += is_here(ids[i]) ? 1 : 0;
  }
  assignments.pop_back();
  return assignments;
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
  const auto per_token = static_cast<std::int32_t>(args.ids.shape().back());
  const std::span<const std::int32_t> ids = ids_of(args.ids);
  const std::span<const std::int32_t> kept = ids_of(args.kept);
  auto* const assignments = args.assignments.kernel_data<std::int32_t>();
  auto* const tokens = args.tokens.kernel_data<std::int32_t>();
  auto* const position = args.position.kernel_data<std::int32_t>();
  std::vector<std::int64_t> next, end;  // rows of each expert
  std::int64_t sum = 0;
  for (const std::int32_t n : kept) {
    CHECK(n >= 0, "[plan_rows] {} assignments kept", n);
    next.push_back(sum);
    end.push_back(sum += n);
  }
  CHECK(sum == args.assignments.size(), "[plan_rows] {} assignments kept, room for {}", sum,
        args.assignments.size());
  std::vector<std::int32_t> to_skip(kept.size(), 0);
  if (args.skipped.defined()) std::ranges::copy(ids_of(args.skipped), to_skip.begin());
  std::fill_n(position, args.position.size(), -1);
  for (const std::int32_t assignment : assignments_here(ids, experts_here(args.first, args.kept))) {
    const auto e = static_cast<std::size_t>(ids[static_cast<std::size_t>(assignment)] - args.first);
    if (to_skip[e] > 0) {
      --to_skip[e];
      continue;
    }
    if (next[e] == end[e]) continue;  // no room
    const std::int64_t at = next[e]++;
    assignments[at] = assignment;
    tokens[at] = assignment / per_token;
    position[assignment] = static_cast<std::int32_t>(at);
  }
  CHECK(next == end, "[plan_rows] an expert has fewer assignments than it keeps");
}

void admit_in_order(ThreadPool& pool, const PlanPlacesArgs& args) {
  const std::int64_t batch = args.ids.dim(0), per_token = args.ids.dim(2),
                     per_sequence = args.ids.dim(1) * per_token, experts = args.assignments.dim(0),
                     capacity = args.assignments.dim(2);
  const std::span<const std::int32_t> ids = ids_of(args.ids);
  auto* const assignments = args.assignments.kernel_data<std::int32_t>();
  auto* const tokens = args.tokens.kernel_data<std::int32_t>();
  auto* const position = args.position.kernel_data<std::int32_t>();
  auto* const dropped = args.dropped.kernel_data<std::int32_t>();
  pool.for_range(batch, 1, [&](std::int64_t begin, std::int64_t end) {
    std::vector<std::int64_t> used;
    for (std::int64_t b = begin; b < end; ++b) {
      used.assign(static_cast<std::size_t>(experts), 0);
      const auto of_sequence =
          ids.subspan(static_cast<std::size_t>(b * per_sequence), static_cast<std::size_t>(per_sequence));
      const std::int64_t assigned = std::ranges::count_if(of_sequence, [](auto id) { return id >= 0; }),
                         room = args.factor > 0 ? places_of(assigned, experts, args.factor) : capacity;
      CHECK(room <= capacity, "[plan_places] {} rows of an expert, room for {}", room, capacity);
      for (std::int64_t e = 0; e < experts; ++e) {
        std::fill_n(assignments + (e * batch + b) * capacity, capacity, -1);
        std::fill_n(tokens + (e * batch + b) * capacity, capacity, -1);
      }
      for (std::int64_t i = b * per_sequence; i < (b + 1) * per_sequence; ++i) {
        const std::int32_t e = ids[static_cast<std::size_t>(i)];
        CHECK(e >= -1 && e < experts, "[plan_places] expert id {} of {}", e, experts);
        position[i] = -1;
        if (e < 0) continue;
        auto& next = used[static_cast<std::size_t>(e)];
        if (next == room) continue;
        const std::int64_t row = (e * batch + b) * capacity + next++;
        assignments[row] = static_cast<std::int32_t>(i);
        tokens[row] = static_cast<std::int32_t>(i / per_token);
        position[i] = static_cast<std::int32_t>(row);
      }
    }
  });
  std::fill_n(dropped, experts, 0);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0) dropped[ids[i]] += position[i] < 0 ? 1 : 0;
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
  return moved(args.ids.size() + args.position.size() + 2 * args.assignments.size());
}

Work places_work(const PlanPlacesArgs& args) {
  return moved(2 * args.ids.size() + 2 * args.assignments.size());
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
  check_indices(op, "assignments", args.assignments);
  check_indices(op, "tokens", args.tokens);
  check_indices(op, "position", args.position);
  if (args.skipped.defined()) {
    check_indices(op, "skipped", args.skipped);
    CHECK(args.skipped.size() == args.kept.size(), "[{}] {} experts skip assignments, {} keep some", op,
          args.skipped.size(), args.kept.size());
  }
  CHECK(args.ids.rank() > 0 && args.position.size() == args.ids.size() &&
            args.assignments.size() == args.tokens.size(),
        "[{}] {} ids, {} positions, {} assignments of {} tokens", op, args.ids.size(), args.position.size(),
        args.assignments.size(), args.tokens.size());
  run(pool, kPlanRows, args);
}

void plan_places(ThreadPool& pool, const PlanPlacesArgs& args) {
  const char* const op = "plan_places";
  check_indices(op, "ids", args.ids);
  check_indices(op, "assignments", args.assignments);
  check_indices(op, "tokens", args.tokens);
  check_indices(op, "position", args.position);
  check_indices(op, "dropped", args.dropped);
  CHECK(args.ids.rank() == 3 && args.position.shape() == args.ids.shape() && args.assignments.rank() == 3 &&
            args.tokens.shape() == args.assignments.shape() && args.assignments.dim(1) == args.ids.dim(0) &&
            args.dropped.size() == args.assignments.dim(0),
        "[{}] ids {}, positions {}, rows {} and {}, {} experts", op, to_string(args.ids.shape()),
        to_string(args.position.shape()), to_string(args.assignments.shape()), to_string(args.tokens.shape()),
        args.dropped.size());
  run(pool, kPlanPlaces, args);
}

}  // namespace switchyard
