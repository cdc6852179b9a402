// Where rows stand when they are sorted by expert: counts of pieces of the rows, sums over the pieces, and
// then each row's place by its number among the rows of its expert. Stable, and the same whatever runs first.
#include "kernels/cuda/portable.h"
#include "kernels/cuda/workspace.h"
#include "kernels/moe/kernels.h"

namespace switchyard::gpu {
namespace {

constexpr int kPiece = 256;  // rows of a piece, and threads of a block

// Rows in sequences of `length`; experts first to first + count.
struct Rows {
  const std::int32_t* ids;
  std::int64_t sequences, length, pieces;  // pieces of a sequence
  std::int64_t first, experts;
};

Rows rows_of(const TensorView& ids, std::int64_t sequences, std::int64_t first, std::int64_t experts) {
  const std::int64_t length = sequences > 0 ? ids.size() / sequences : 0;
  return {ids.device_data<std::int32_t>(), sequences, length, divide_up(length, kPiece), first, experts};
}

// counts[sequence, piece, expert]: rows of the piece.
GPU_KERNEL count_pieces(Rows rows, std::int32_t* counts) {
  std::int32_t* const here = dynamic_shared<std::int32_t>();
  for (std::int64_t e = thread_index(); e < rows.experts; e += kPiece) here[e] = 0;
  barrier();
  const std::int64_t sequence = block_index() / rows.pieces,
                     at = block_index() % rows.pieces * kPiece + thread_index();
  if (at < rows.length) {
    const std::int64_t e = rows.ids[sequence * rows.length + at] - rows.first;
    if (e >= 0 && e < rows.experts) atomic_add(&here[e], 1);
  }
  barrier();
  for (std::int64_t e = thread_index(); e < rows.experts; e += kPiece)
    counts[block_index() * rows.experts + e] = here[e];
}

// Counts become the rows of the pieces before; totals[sequence, expert] those of all.
GPU_KERNEL sum_pieces_of_experts(Rows rows, std::int32_t* counts, std::int32_t* totals) {
  const std::int64_t i = block_index() * thread_count() + thread_index();
  if (i >= rows.sequences * rows.experts) return;
  const std::int64_t sequence = i / rows.experts, e = i % rows.experts;
  std::int32_t sum = 0;
  for (std::int64_t piece = 0; piece < rows.pieces; ++piece) {
    std::int32_t& count = counts[(sequence * rows.pieces + piece) * rows.experts + e];
    const std::int32_t own = count;
    count = sum;
    sum += own;
  }
  totals[i] = sum;
}

// begins[e] = the sum of kept before it. One thread: experts are few.
GPU_KERNEL begin_experts(const std::int32_t* kept, std::int64_t experts, std::int32_t* begins) {
  if (thread_index() != 0) return;
  std::int32_t sum = 0;
  for (std::int64_t e = 0; e < experts; ++e) {
    begins[e] = sum;
    sum += kept[e];
  }
}

// Each expert has `kept` places from `begins` on, for its rows past the first `skipped` (null: 0). Without
// them (null) there are `capacity` places for each (expert, sequence).
GPU_KERNEL place_rows(Rows rows, const std::int32_t* before, const std::int32_t* kept,
                      const std::int32_t* skipped, const std::int32_t* begins, std::int64_t capacity,
                      std::int64_t slots, std::int32_t* row_of_place, std::int32_t* token_of_place,
                      std::int32_t* place_of_row) {
  GPU_SHARED(std::int32_t, ids, kPiece);
  const std::int64_t sequence = block_index() / rows.pieces,
                     at = block_index() % rows.pieces * kPiece + thread_index();
  const bool inside = at < rows.length;
  const std::int64_t row = sequence * rows.length + at;
  ids[thread_index()] = inside ? rows.ids[row] : -1;
  barrier();
  if (!inside) return;
  const std::int64_t e = ids[thread_index()] - rows.first;
  if (e < 0 || e >= rows.experts) {
    place_of_row[row] = -1;
    return;
  }
  std::int64_t rank = before[block_index() * rows.experts + e];
  for (int i = 0; i < thread_index(); ++i) rank += ids[i] == ids[thread_index()] ? 1 : 0;
  if (skipped != nullptr) rank -= skipped[e];
  const std::int64_t room = kept != nullptr ? kept[e] : capacity;
  if (rank < 0 || rank >= room) {
    place_of_row[row] = -1;
    return;
  }
  const std::int64_t place =
      (kept != nullptr ? begins[e] : (e * rows.sequences + sequence) * capacity) + rank;
  row_of_place[place] = static_cast<std::int32_t>(row);
  token_of_place[place] = static_cast<std::int32_t>(row / slots);
  place_of_row[row] = static_cast<std::int32_t>(place);
}

GPU_KERNEL fill_places(std::int32_t* x, std::int32_t* y, std::int64_t count, std::int32_t value) {
  const std::int64_t i = block_index() * thread_count() + thread_index();
  if (i >= count) return;
  x[i] = value;
  if (y != nullptr) y[i] = value;
}

GPU_KERNEL count_dropped(const std::int32_t* totals, std::int64_t sequences, std::int64_t experts,
                         std::int64_t capacity, std::int32_t* dropped) {
  const std::int64_t e = block_index() * thread_count() + thread_index();
  if (e >= experts) return;
  std::int64_t sum = 0;
  for (std::int64_t b = 0; b < sequences; ++b) {
    const std::int64_t over = totals[b * experts + e] - capacity;
    sum += over > 0 ? over : 0;
  }
  dropped[e] = static_cast<std::int32_t>(sum);
}

// Counts and their sums, in a workspace.
class Counted {
 public:
  // The totals [sequences, experts] go to `totals`, or to memory of its own.
  explicit Counted(const TensorView& like, const Rows& rows, std::int32_t* totals = nullptr)
      : pieces_(rows.sequences * rows.pieces * rows.experts),
        given_(totals),
        memory_(like, static_cast<std::size_t>(pieces_ + (rows.sequences + 1) * rows.experts) *
                          sizeof(std::int32_t)) {
    launch({.blocks = rows.sequences * rows.pieces,
            .threads = kPiece,
            .shared_bytes = static_cast<std::size_t>(rows.experts) * sizeof(std::int32_t)},
           count_pieces, rows, before());
    launch({.blocks = divide_up(rows.sequences * rows.experts, kPiece), .threads = kPiece},
           sum_pieces_of_experts, rows, before(), this->totals());
  }
  std::int32_t* before() const { return memory_.data<std::int32_t>(); }
  std::int32_t* totals() const { return given_ != nullptr ? given_ : before() + pieces_; }
  // Room for one number an expert, of a single sequence.
  std::int32_t* spare(std::int64_t experts) const { return before() + pieces_ + experts; }

 private:
  const std::int64_t pieces_;
  std::int32_t* const given_;
  const Workspace memory_;
};

}  // namespace

void count_ids(const CountIdsArgs& args) {
  const Rows rows = rows_of(args.ids, 1, args.first, args.counts.size());
  if (args.counts.size() == 0) return;
  const Counted counted(args.counts, rows, args.counts.device_data<std::int32_t>());
}

void plan_rows(const PlanRowsArgs& args) {
  const Rows rows = rows_of(args.ids, 1, args.first, args.kept.size());
  if (args.ids.size() == 0) return;
  const Counted counted(args.ids, rows);
  const auto* const kept = args.kept.device_data<std::int32_t>();
  std::int32_t* const begins = counted.spare(rows.experts);
  launch({.blocks = 1, .threads = kWarp}, begin_experts, kept, rows.experts, begins);
  const auto* const skipped = args.skipped.defined() ? args.skipped.device_data<std::int32_t>() : nullptr;
  launch({.blocks = rows.pieces, .threads = kPiece}, place_rows, rows, counted.before(), kept, skipped,
         begins, 0, args.ids.shape().back(), args.rows.device_data<std::int32_t>(),
         args.tokens.device_data<std::int32_t>(), args.position.device_data<std::int32_t>());
}

void plan_places(const PlanPlacesArgs& args) {
  const std::int64_t experts = args.rows.dim(0), capacity = args.rows.dim(2);
  auto *const row_of_place = args.rows.device_data<std::int32_t>(), *const token_of_place =
                                                                        args.tokens
                                                                            .device_data<std::int32_t>();
  launch({.blocks = divide_up(args.rows.size(), kPiece), .threads = kPiece}, fill_places, row_of_place,
         token_of_place, args.rows.size(), -1);
  if (args.ids.size() == 0) {
    launch({.blocks = divide_up(experts, kPiece), .threads = kPiece}, fill_places,
           args.dropped.device_data<std::int32_t>(), nullptr, experts, 0);
    return;
  }
  const Rows rows = rows_of(args.ids, args.ids.dim(0), 0, experts);
  const Counted counted(args.ids, rows);
  launch({.blocks = rows.sequences * rows.pieces, .threads = kPiece}, place_rows, rows, counted.before(),
         nullptr, nullptr, nullptr, capacity, args.ids.dim(2), row_of_place, token_of_place,
         args.position.device_data<std::int32_t>());
  launch({.blocks = divide_up(experts, kPiece), .threads = kPiece}, count_dropped, counted.totals(),
         rows.sequences, experts, capacity, args.dropped.device_data<std::int32_t>());
}

}  // namespace switchyard::gpu
