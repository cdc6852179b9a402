// Sorts assignments by expert: counts of pieces of the assignments, sums over the pieces, and then each
// assignment's row by its number among those of its expert. Stable, and the same whatever runs first.
#include "kernels/cuda/portable.h"
#include "kernels/cuda/workspace.h"
#include "kernels/moe/kernels.h"

namespace switchyard::gpu {
namespace {

constexpr int kPiece = 256;  // assignments of a piece, and threads of a block

// Assignments in sequences of `length`; experts first to first + count.
struct Assignments {
  const std::int32_t* ids;
  std::int64_t sequences, length, pieces;  // pieces of a sequence
  std::int64_t first, experts;
};

Assignments assignments_of(const TensorView& ids, std::int64_t sequences, std::int64_t first,
                           std::int64_t experts) {
  const std::int64_t length = sequences > 0 ? ids.size() / sequences : 0;
  return {ids.device_data<std::int32_t>(), sequences, length, divide_up(length, kPiece), first, experts};
}

// counts[sequence, piece, expert]: assignments of the piece.
GPU_KERNEL count_pieces(Assignments all, std::int32_t* counts) {
  std::int32_t* const here = dynamic_shared<std::int32_t>();
  for (std::int64_t e = thread_index(); e < all.experts; e += kPiece) here[e] = 0;
  barrier();
  const std::int64_t sequence = block_index() / all.pieces,
                     at = block_index() % all.pieces * kPiece + thread_index();
  if (at < all.length) {
    const std::int64_t e = all.ids[sequence * all.length + at] - all.first;
    if (e >= 0 && e < all.experts) atomic_add(&here[e], 1);
  }
  barrier();
  for (std::int64_t e = thread_index(); e < all.experts; e += kPiece)
    counts[block_index() * all.experts + e] = here[e];
}

// Counts become the assignments of the pieces before; totals[sequence, expert] those of all.
GPU_KERNEL sum_pieces_of_experts(Assignments all, std::int32_t* counts, std::int32_t* totals) {
  const std::int64_t i = block_index() * thread_count() + thread_index();
  if (i >= all.sequences * all.experts) return;
  const std::int64_t sequence = i / all.experts, e = i % all.experts;
  std::int32_t sum = 0;
  for (std::int64_t piece = 0; piece < all.pieces; ++piece) {
    std::int32_t& count = counts[(sequence * all.pieces + piece) * all.experts + e];
    const std::int32_t own = count;
    count = sum;
    sum += own;
  }
  totals[i] = sum;
}

// begins[e] = the sum of kept before it. One thread: experts are few. The block fills the rows behind them.
GPU_KERNEL begin_experts(const std::int32_t* kept, std::int64_t experts, std::int64_t rows,
                         std::int32_t* begins, std::int32_t* assignment_of_row, std::int32_t* token_of_row) {
  GPU_SHARED(std::int32_t, all, 1);
  if (thread_index() == 0) {
    std::int32_t sum = 0;
    for (std::int64_t e = 0; e < experts; ++e) {
      begins[e] = sum;
      sum += kept[e];
    }
    all[0] = sum;
  }
  barrier();
  for (std::int64_t row = all[0] + thread_index(); row < rows; row += kPiece)
    assignment_of_row[row] = token_of_row[row] = 0;
}

// rooms[sequence]: the rows that each expert has for it.
GPU_KERNEL find_rooms(const std::int32_t* totals, std::int64_t sequences, std::int64_t experts,
                      std::int64_t capacity, double factor, std::int32_t* rooms) {
  const std::int64_t sequence = block_index() * thread_count() + thread_index();
  if (sequence >= sequences) return;
  std::int64_t assigned = 0;
  for (std::int64_t e = 0; e < experts; ++e) assigned += totals[sequence * experts + e];
  const std::int64_t room = factor > 0 ? places_of(assigned, experts, factor) : capacity;
  rooms[sequence] = static_cast<std::int32_t>(room < capacity ? room : capacity);
}

// Each expert has `kept` rows from `begins` on, for its assignments past the first `skipped` (null: 0).
// Without them (null) there are `capacity` rows for each (expert, sequence),
// of which rooms[sequence] are used.
GPU_KERNEL assign_rows(Assignments all, const std::int32_t* before, const std::int32_t* kept,
                       const std::int32_t* skipped, const std::int32_t* begins, const std::int32_t* rooms,
                       std::int64_t capacity, std::int64_t per_token, std::int32_t* assignment_of_row,
                       std::int32_t* token_of_row, std::int32_t* row_of_assignment) {
  GPU_SHARED(std::int32_t, ids, kPiece);
  const std::int64_t sequence = block_index() / all.pieces,
                     at = block_index() % all.pieces * kPiece + thread_index();
  const bool inside = at < all.length;
  const std::int64_t assignment = sequence * all.length + at;
  ids[thread_index()] = inside ? all.ids[assignment] : -1;
  barrier();
  if (!inside) return;
  const std::int64_t e = ids[thread_index()] - all.first;
  if (e < 0 || e >= all.experts) {
    row_of_assignment[assignment] = -1;
    return;
  }
  std::int64_t rank = before[block_index() * all.experts + e];
  for (int i = 0; i < thread_index(); ++i) rank += ids[i] == ids[thread_index()] ? 1 : 0;
  if (skipped != nullptr) rank -= skipped[e];
  const std::int64_t room = kept != nullptr ? kept[e] : rooms[sequence];
  if (rank < 0 || rank >= room) {
    row_of_assignment[assignment] = -1;
    return;
  }
  const std::int64_t row = (kept != nullptr ? begins[e] : (e * all.sequences + sequence) * capacity) + rank;
  assignment_of_row[row] = static_cast<std::int32_t>(assignment);
  token_of_row[row] = static_cast<std::int32_t>(assignment / per_token);
  row_of_assignment[assignment] = static_cast<std::int32_t>(row);
}

GPU_KERNEL fill(std::int32_t* x, std::int32_t* y, std::int64_t count, std::int32_t value) {
  const std::int64_t i = block_index() * thread_count() + thread_index();
  if (i >= count) return;
  x[i] = value;
  if (y != nullptr) y[i] = value;
}

GPU_KERNEL count_dropped(const std::int32_t* totals, std::int64_t sequences, std::int64_t experts,
                         const std::int32_t* rooms, std::int32_t* dropped) {
  const std::int64_t e = block_index() * thread_count() + thread_index();
  if (e >= experts) return;
  std::int64_t sum = 0;
  for (std::int64_t b = 0; b < sequences; ++b) {
    const std::int64_t over = totals[b * experts + e] - rooms[b];
    sum += over > 0 ? over : 0;
  }
  dropped[e] = static_cast<std::int32_t>(sum);
}

// Counts and their sums, in a workspace.
class Counted {
 public:
  // The totals [sequences, experts] go to `totals`, or to memory of its own.
  explicit Counted(const TensorView& like, const Assignments& all, std::int32_t* totals = nullptr)
      : pieces_(all.sequences * all.pieces * all.experts),
        given_(totals),
        memory_(like, static_cast<std::size_t>(pieces_ + (all.sequences + 1) * all.experts + all.sequences) *
                          sizeof(std::int32_t)) {
    launch({.blocks = all.sequences * all.pieces,
            .threads = kPiece,
            .shared_bytes = static_cast<std::size_t>(all.experts) * sizeof(std::int32_t)},
           count_pieces, all, before());
    launch({.blocks = divide_up(all.sequences * all.experts, kPiece), .threads = kPiece},
           sum_pieces_of_experts, all, before(), this->totals());
  }
  std::int32_t* before() const { return memory_.data<std::int32_t>(); }
  std::int32_t* totals() const { return given_ != nullptr ? given_ : before() + pieces_; }
  // Room for one number an expert and one a sequence, behind totals of `counted` numbers.
  std::int32_t* spare(std::int64_t counted) const { return before() + pieces_ + counted; }

 private:
  const std::int64_t pieces_;
  std::int32_t* const given_;
  const Workspace memory_;
};

}  // namespace

void count_ids(const CountIdsArgs& args) {
  const Assignments all = assignments_of(args.ids, 1, args.first, args.counts.size());
  if (args.counts.size() == 0) return;
  const Counted counted(args.counts, all, args.counts.device_data<std::int32_t>());
}

void plan_rows(const PlanRowsArgs& args) {
  const Assignments all = assignments_of(args.ids, 1, args.first, args.kept.size());
  if (args.ids.size() == 0) return;
  const Counted counted(args.ids, all);
  const auto* const kept = args.kept.device_data<std::int32_t>();
  std::int32_t* const begins = counted.spare(all.experts);
  auto *const assignments = args.assignments.device_data<std::int32_t>(),
              *const tokens = args.tokens.device_data<std::int32_t>();
  launch({.blocks = 1, .threads = kPiece}, begin_experts, kept, all.experts, args.assignments.size(), begins,
         assignments, tokens);
  const auto* const skipped = args.skipped.defined() ? args.skipped.device_data<std::int32_t>() : nullptr;
  launch({.blocks = all.pieces, .threads = kPiece}, assign_rows, all, counted.before(), kept, skipped, begins,
         nullptr, 0, args.ids.shape().back(), assignments, tokens, args.position.device_data<std::int32_t>());
}

void plan_places(const PlanPlacesArgs& args) {
  const std::int64_t experts = args.assignments.dim(0), capacity = args.assignments.dim(2);
  auto *const assignment_of_row = args.assignments.device_data<std::int32_t>(),
              *const token_of_row = args.tokens.device_data<std::int32_t>();
  launch({.blocks = divide_up(args.assignments.size(), kPiece), .threads = kPiece}, fill, assignment_of_row,
         token_of_row, args.assignments.size(), -1);
  if (args.ids.size() == 0) {
    launch({.blocks = divide_up(experts, kPiece), .threads = kPiece}, fill,
           args.dropped.device_data<std::int32_t>(), nullptr, experts, 0);
    return;
  }
  const Assignments all = assignments_of(args.ids, args.ids.dim(0), 0, experts);
  const Counted counted(args.ids, all);
  std::int32_t* const rooms = counted.spare(all.sequences * experts);
  launch({.blocks = divide_up(all.sequences, kPiece), .threads = kPiece}, find_rooms, counted.totals(),
         all.sequences, experts, capacity, args.factor, rooms);
  launch({.blocks = all.sequences * all.pieces, .threads = kPiece}, assign_rows, all, counted.before(),
         nullptr, nullptr, nullptr, rooms, capacity, args.ids.dim(2), assignment_of_row, token_of_row,
         args.position.device_data<std::int32_t>());
  launch({.blocks = divide_up(experts, kPiece), .threads = kPiece}, count_dropped, counted.totals(),
         all.sequences, experts, rooms, args.dropped.device_data<std::int32_t>());
}

}  // namespace switchyard::gpu
