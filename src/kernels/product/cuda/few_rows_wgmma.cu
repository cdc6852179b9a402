// Products of few rows on Hopper's tensor cores, as in decoding several texts. Memory bounds them, so the
// weights are read once: a block of threads makes 64 columns of C for up to 64 rows of a group. C is made
// transposed: the weights are what wgmma has 64 rows of, the rows its 8 to 64 columns. A warpgroup brings
// weights by the copy engine and rows by cp.async, another multiplies. The blocks of a cluster have the
// parts of the depth, whose sums are added in the order of parts. Products of one a have blocks one after the
// other. Twin: mma_product.
#include <algorithm>

#include "kernels/cuda/cluster_memory.h"
#include "kernels/cuda/copy_arrivals.h"
#include "kernels/product/cuda/few_rows_wgmma.h"
#include "kernels/product/cuda/four_sums.h"
#include "kernels/product/cuda/operand_maps.h"

namespace switchyard::gpu {

#if defined(__CUDACC__)
#pragma nv_diag_suppress 177  // code for other GPUs leaves all of it out
#endif
namespace {

constexpr int kColumns = 64, kDepthStep = 64, kMostRows = 64, kMostStages = 8;
constexpr int kConsumers = 128, kConsumerWarps = kConsumers / kWarp, kProducers = 128,
              kThreads = kConsumers + kProducers;
constexpr int kWeights = kColumns * kDepthStep;  // elements of a stage
constexpr std::uint32_t kWeightBytes = kWeights * sizeof(bfloat16);
// Floats from a row of sums to the next: what a warp stores at once is in different banks.
constexpr int kPitch = kColumns + 4;

// How a launch cuts the product and the shared memory of a block.
struct Cut {
  std::int32_t rows = 0;        // that stages have place for: 8, 16, 32 or 64
  std::int32_t stages = 0;      // 48 KB of weights on their way, or more, of each of 2 or 3 blocks
  std::int32_t row_blocks = 0;  // at most, of all groups
  std::int32_t of_product = 0;  // blocks of a product, at most, of one part of the depth

  static Cut of(DeviceProducts args) {
    const DeviceProduct& p = args.front();
    Cut cut;
    for (cut.rows = 8; cut.rows < std::min<std::int64_t>(p.m, kMostRows);) cut.rows *= 2;
    cut.stages = cut.rows == 8 ? 8 : cut.rows == 16 ? 7 : 6;
    const bool grouped = p.groups == Groups::rows;
    // A group has a block more than whole ones fill, if it has rows.
    cut.row_blocks = static_cast<std::int32_t>(grouped ? p.m / kMostRows + std::min(p.m, p.batch)
                                                       : divide_up(p.m, kMostRows));
    for (const DeviceProduct& one : args)
      cut.of_product =
          std::max(cut.of_product, cut.row_blocks * static_cast<std::int32_t>(divide_up(one.n, kColumns)));
    return cut;
  }
  GPU_HOST_FUNCTION std::int32_t stage_elements() const { return kWeights + rows * kDepthStep; }
  std::size_t shared_bytes() const {
    return static_cast<std::size_t>(stages * stage_elements()) * sizeof(bfloat16);
  }
};
static_assert(kMostRows * kPitch * sizeof(float) <= 6 * kWeightBytes);

// A place in the ring of stages.
struct Stage {
  int at = 0;
  std::uint32_t phase = 0;
  GPU_FUNCTION void advance(int stages) {
    if (++at < stages) return;
    at = 0;
    phase ^= 1;
  }
};

// The steps of one part of the depth.
struct Share {
  int begin, end;
  template <int parts>
  GPU_FUNCTION static Share of(const DeviceProduct& p, int part) {
    const int all = (static_cast<int>(p.terms[0].k) + kDepthStep - 1) / kDepthStep;
    return {all * part / parts, all * (part + 1) / parts};
  }
};

#if defined(GPU_HAS_WGMMA) || !defined(__CUDA_ARCH__)

// Finds rows [64 i, 64 i + 64) of a group, where those of the groups before are `wanted` blocks in all. For
// all threads of a warp; each looks through some neighbours, so that sizes are waited for once. False: all
// groups together have fewer blocks.
GPU_FUNCTION bool find_rows(const DeviceProduct& p, std::int32_t wanted, Part& part) {
  constexpr int kOwn = 8;
  const int lane = thread_index() % kWarp, groups = static_cast<int>(p.batch);
  std::int32_t rows_before = 0, blocks_before = 0;
  for (int first = 0; first < groups; first += kWarp * kOwn) {
    const int own = first + lane * kOwn;
    std::int32_t sizes[kOwn], rows = 0, blocks = 0;
    GPU_UNROLL
    for (int i = 0; i < kOwn; ++i) {
      sizes[i] = own + i < groups ? p.group_sizes[own + i] : 0;
      rows += sizes[i];
      blocks += (sizes[i] + kMostRows - 1) / kMostRows;
    }
    std::int32_t rows_to = rows, blocks_to = blocks;  // sums up to this lane
    for (int by = 1; by < kWarp; by *= 2) {
      const std::int32_t more_rows = shuffle_up(rows_to, by), more_blocks = shuffle_up(blocks_to, by);
      if (lane >= by) {
        rows_to += more_rows;
        blocks_to += more_blocks;
      }
    }
    std::int32_t row = rows_before + rows_to - rows, block = blocks_before + blocks_to - blocks;
    const std::uint32_t found = ballot(wanted >= block && wanted < block + blocks);
    if (found != 0) {
      std::int32_t group = 0, first_row = 0, end = 0, index = 0;
      GPU_UNROLL
      for (int i = 0; i < kOwn; ++i) {
        const std::int32_t of_group = (sizes[i] + kMostRows - 1) / kMostRows;
        if (wanted >= block && wanted < block + of_group) {
          group = own + i;
          first_row = row;
          end = row + sizes[i];
          index = wanted - block;
        }
        row += sizes[i];
        block += of_group;
      }
      const int finder = first_bit(found);
      put_group(p, shuffle(group, finder), shuffle(first_row, finder), shuffle(end, finder),
                std::int64_t{shuffle(index, finder)} * kMostRows, part);
      return true;
    }
    rows_before += shuffle(rows_to, kWarp - 1);
    blocks_before += shuffle(blocks_to, kWarp - 1);
  }
  return false;
}

GPU_FUNCTION bool find(const DeviceProduct& p, const Cut& cut, std::int32_t tile, Part& part) {
  const std::int32_t index = tile % cut.of_product, of_batch = tile / cut.of_product;
  if (p.groups == Groups::none) {
    part = part_of_batch(p, index, of_batch, kMostRows, kColumns, static_cast<std::int32_t>(kBand));
    return true;
  }
  const BlockPlace place =
      BlockPlace::of(p, index, kColumns, cut.row_blocks, static_cast<std::int32_t>(kBand));
  part = {};
  part.column = place.column;
  return find_rows(p, static_cast<std::int32_t>(place.row_block), part);
}

// The rows of a block that a thread of the producer copies: one chunk of every 16th row.
class CopiedRows {
 public:
  // Warps of the producer that have rows to copy, of so many.
  GPU_FUNCTION static int warps(int rows) {
    constexpr int kRowsOfWarp = kWarp / kChunksOfRow, kMost = kProducers / kWarp;
    return rows < kRowsOfWarp * kMost ? (rows + kRowsOfWarp - 1) / kRowsOfWarp : kMost;
  }
  GPU_FUNCTION CopiedRows(const DeviceProduct& p, const Part& part, int rows)
      : x_(static_cast<const bfloat16*>(p.terms[0].a) + part.a_offset),
        leading_(p.terms[0].lda),
        depth_(static_cast<int>(p.terms[0].k)),
        count_(rows) {
    const std::int32_t* const lookup = p.terms[0].a_rows;
    GPU_UNROLL
    for (int i = 0; i < kOwnRows; ++i) {
      const int row = own() + i * kRowsAtOnce;
      const std::int64_t at = part.row + (row < count_ ? row : 0);
      rows_[i] = lookup == nullptr ? static_cast<std::int32_t>(at) : lookup[at];
    }
  }
  // Starts to copy those columns; behind the depth is 0. Places of rows that are not there keep what they
  // have: it comes into columns of products that nobody stores.
  GPU_FUNCTION void copy(bfloat16* tile, int first) const {
    const int chunk = thread_index() % kChunksOfRow, column = first + chunk * kChunk, left = depth_ - column;
    const int count = left < 0 ? 0 : left > kChunk ? kChunk : left;
    GPU_UNROLL
    for (int i = 0; i < kOwnRows; ++i) {
      const int row = own() + i * kRowsAtOnce;
      if (row >= count_) continue;
      copy_async_ahead(tile + place_of<kMostRows>(row, chunk),
                       count > 0 ? x_ + rows_[i] * leading_ + column : x_,
                       count * static_cast<int>(sizeof(bfloat16)));
    }
  }

 private:
  static constexpr int kChunksOfRow = kDepthStep / kChunk, kRowsAtOnce = kProducers / kChunksOfRow,
                       kOwnRows = kMostRows / kRowsAtOnce;
  GPU_FUNCTION static int own() { return (thread_index() - kConsumers) / kChunksOfRow; }

  const bfloat16* const x_;
  const std::int64_t leading_;
  const int depth_, count_;
  std::int32_t rows_[kOwnRows];
};

// The barriers of the stages: full of what a step needs, and read by all.
struct Barriers {
  std::uint64_t *full, *empty;
};

template <bool transpose_b>
GPU_FUNCTION void bring(const DeviceProduct& p, const TensorMap& weights, const Cut& cut, const Part& part,
                        int rows, const Share& share, const Barriers& barriers, bfloat16* tiles) {
  const CopiedRows copied(p, part, rows);
  const std::int64_t of_batch = p.b_stride != 0 ? part.group : 0;
  Stage stage;
  for (int step = share.begin; step < share.end; ++step, stage.advance(cut.stages)) {
    wait_for_phase(&barriers.empty[stage.at], stage.phase ^ 1);
    bfloat16* const to = tiles + stage.at * cut.stage_elements();
    if (thread_index() == kConsumers) {
      expect_bytes(&barriers.full[stage.at], kWeightBytes);
      const std::int64_t depth = step * kDepthStep;
      copy_box(to, weights, transpose_b ? depth : part.column, transpose_b ? part.column : depth, of_batch,
               &barriers.full[stage.at], 0);
    }
    copied.copy(to + kWeights, step * kDepthStep);
    arrive_with_copies(&barriers.full[stage.at]);
  }
}

// Multiplies the steps, and leaves the sums [rows, kPitch] where the stages were.
template <int rows, bool transpose_b>
GPU_FUNCTION void multiply_steps(const Cut& cut, const Share& share, const Barriers& barriers,
                                 bfloat16* tiles) {
  const int warp = thread_index() / kWarp, lane = thread_index() % kWarp;
  constexpr std::uint32_t kBlockBytes = kWeightBytes;
  float sums[rows / 2];
  if (share.begin == share.end) {
    GPU_UNROLL
    for (float& sum : sums) sum = 0;
  }
  Stage stage;
  int before = 0;
  for (int step = share.begin; step < share.end; ++step) {
    wait_for_phase(&barriers.full[stage.at], stage.phase);
    show_to_tensor_cores();  // the rows, which threads have copied
    const bfloat16* const weights = tiles + stage.at * cut.stage_elements();
    begin_multiplying();
    GPU_UNROLL
    for (int depth = 0; depth < kDepthStep; depth += 16)
      multiply<rows, transpose_b ? 0 : 1, 0>(
          sums, matrix_at(weights + (transpose_b ? depth : depth * kTileWidth), kBlockBytes),
          matrix_at(weights + kWeights + depth, kBlockBytes), step > share.begin || depth > 0);
    end_multiplying();
    wait_for_products<1>();
    if (step > share.begin && lane == 0) arrive(&barriers.empty[before]);
    before = stage.at;
    stage.advance(cut.stages);
  }
  wait_for_products<0>();
  named_barrier(1, kConsumers);  // sums take the place of what all have read
  auto* const to = reinterpret_cast<float*>(tiles);
  GPU_UNROLL
  for (int i = 0; i < rows / 2; ++i) {
    const int row = i / 4 * 8 + lane % 4 * 2 + i % 2, column = warp * 16 + lane / 4 + i / 2 % 2 * 8;
    to[row * kPitch + column] = sums[i];
  }
}

// Adds the sums that the blocks of the cluster left, and stores every so many of the rows.
template <int parts>
GPU_FUNCTION void add_parts(const DeviceProduct& p, const Part& part, int rows, int rank, const float* sums) {
  constexpr int kVectors = kColumns / 4, kAtOnce = kConsumers / kVectors * parts;
  const int x = thread_index() % kVectors * 4;
  const std::int64_t column = part.column + x;
  if (column >= p.n) return;
  GPU_NO_UNROLL
  for (int y = thread_index() / kVectors * parts + rank; y < rows; y += kAtOnce) {
    const Vector<float, 4> sum = sum_of_parts<parts>(sums + y * kPitch + x);
    put_four(p, part.c_offset + (part.row + y) * p.ldc + column, part.bias_offset + column, p.n - column,
             sum);
  }
}

#endif

// The weights of each product.
struct Maps {
  TensorMap of[kMostProducts];
};

template <int parts, bool transpose_b>
GPU_CLUSTER_KERNEL(kThreads, parts)
few_rows_wgmma_blocks(GPU_CONSTANT(ProductList) list, GPU_CONSTANT(Maps) weights, GPU_CONSTANT(Cut) cut) {
#if defined(GPU_HAS_WGMMA)
  GPU_SHARED(std::uint64_t, full, kMostStages);
  GPU_SHARED(std::uint64_t, empty, kMostStages);
  auto* const tiles = dynamic_shared<bfloat16>();
  const int rank = parts > 1 ? cluster_rank() : 0, warp = shuffle(thread_index() / kWarp, 0);
  const auto tile = static_cast<std::int32_t>(block_index() / parts);
  const int which = list.product_of(tile);
  const DeviceProduct& p = list.products[which];
  Part part;
  if (!find(p, cut, tile - list.first_block[which], part)) return;  // nor will the cluster's
  const auto left = static_cast<int>(part.rows_end - part.row);
  const int rows = left < kMostRows ? left : kMostRows;
  if (thread_index() == 0) {
    for (int stage = 0; stage < cut.stages; ++stage) {
      init_barrier(&full[stage], 1 + kWarp * CopiedRows::warps(rows));
      init_barrier(&empty[stage], kConsumerWarps);
    }
    show_barriers();
  }
  barrier();
  const Share share = Share::of<parts>(p, rank);
  const Barriers barriers{full, empty};
  if (warp >= kConsumerWarps) {
    if (warp - kConsumerWarps < CopiedRows::warps(rows))
      bring<transpose_b>(p, weights.of[which], cut, part, rows, share, barriers, tiles);
  } else if (rows <= 8) {
    multiply_steps<8, transpose_b>(cut, share, barriers, tiles);
  } else if (rows <= 16) {
    multiply_steps<16, transpose_b>(cut, share, barriers, tiles);
  } else if (rows <= 32) {
    multiply_steps<32, transpose_b>(cut, share, barriers, tiles);
  } else {
    multiply_steps<64, transpose_b>(cut, share, barriers, tiles);
  }
  warp_barrier();
  cluster_barrier();
  if (warp < kConsumerWarps) add_parts<parts>(p, part, rows, rank, reinterpret_cast<const float*>(tiles));
  cluster_barrier();  // no block ends while another reads its sums
#endif
}

template <int parts, bool transpose_b>
void run_layout(DeviceProducts args) {
  const Cut cut = Cut::of(args);
  const ProductList list = list_of(args, [&](const DeviceProduct& p) {
    return cut.row_blocks * divide_up(p.n, kColumns) * (p.groups == Groups::rows ? 1 : p.batch);
  });
  Maps weights{};
  for (std::size_t i = 0; i < args.size(); ++i) {
    if (args[i].is_empty()) continue;
    const DeviceProduct& p = args[i];
    const ProductTerm& term = p.terms[0];
    weights.of[i] = transpose_b ? map_of(term.b, term.k, p.n, term.ldb, p.batch, p.b_stride, kColumns)
                                : map_of(term.b, p.n, term.k, term.ldb, p.batch, p.b_stride, kDepthStep);
  }
  launch({.blocks = std::int64_t{list.blocks()} * parts,
          .threads = kThreads,
          .shared_bytes = cut.shared_bytes(),
          .cluster = parts},
         few_rows_wgmma_blocks<parts, transpose_b>, list, weights, cut);
}

template <int parts>
void run_parts(DeviceProducts args) {
  args.front().transpose_b ? run_layout<parts, true>(args) : run_layout<parts, false>(args);
}

const char* refuses_one(const DeviceProduct& args) {
  // Below the first, float32 units read the weights as fast as memory gives them.
  constexpr std::int64_t kFewestRows = 4;
  const DeviceProduct& p = args;
  if (is_packed(p.weight_dtype)) return "the weights are packed";
  if (p.dtype != DType::bf16) return "the operands are not bfloat16";
  if (p.groups == Groups::depth) return "the depth is in groups";
  if (p.transpose_a) return "A is transposed";
  if (p.term_count > 1) return "a second term is added";
  if (p.terms[0].k == 0) return "it has no depth";
  if (!chunks_are_aligned(p)) return "operands are not aligned to 16 bytes";
  if (p.m < kFewestRows) return "it has fewer than 4 rows";
  if (p.groups == Groups::none) return p.m > kMostRows ? "it has more than 64 rows" : nullptr;
  if (4 * p.m <= p.batch) return "most groups have one row at most";
  // So most groups have 64 rows at most. What is more reads the weights again, from the L2 cache.
  return p.m > kMostRows / 2 * p.batch ? "its groups have more than 32 rows on average" : nullptr;
}

}  // namespace

int few_rows_parts_of(DeviceProducts args) {
  // Blocks for all 132 multiprocessors, of 32 KB of weights at least. Of groups an eighth is taken to have
  // rows: how many do is not known here.
  constexpr std::int64_t kBlocks = 132, kFewestSteps = 4, kMostParts = 8, kGroupsOfOneWithRows = 8;
  const DeviceProduct& form = args.front();
  const std::int64_t matrices = form.groups == Groups::rows ? divide_up(form.batch, kGroupsOfOneWithRows)
                                                            : form.batch,
                     steps = divide_up(form.terms[0].k, kDepthStep);
  std::int64_t tiles = 0;
  for (const DeviceProduct& one : args) tiles += divide_up(one.n, kColumns) * matrices;
  int parts = 1;
  while (parts < kMostParts && parts * tiles < kBlocks && 2 * parts * kFewestSteps <= steps) parts *= 2;
  return parts;
}

void few_rows_wgmma_in(int parts, DeviceProducts args) {
  if (are_empty(args) || PlannedGpu::skips(1)) return;
  CHECK(parts == 1 || parts == 2 || parts == 4 || parts == 8, "{} parts", parts);
  parts == 8   ? run_parts<8>(args)
  : parts == 4 ? run_parts<4>(args)
  : parts == 2 ? run_parts<2>(args)
               : run_parts<1>(args);
}

void few_rows_wgmma(DeviceProducts args) {
  few_rows_wgmma_in(few_rows_parts_of(args), args);
}

const char* few_rows_wgmma_refuses(DeviceProducts args) {
  return first_refusal(args, refuses_one);
}

}  // namespace switchyard::gpu
