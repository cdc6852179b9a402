// Matrix products of few tiles and a long depth on Hopper, as gradients of weights are. A block of threads
// makes a part of the depth of 128 x 128 of C. The blocks of a cluster have the parts of one tile: each
// leaves its sums in its shared memory, and adds those of all, in the order of parts, for some of the rows.
// So the order of sums follows from the sizes. Products of one a follow each other. Its twin is mma_product.
#include "kernels/cuda/cluster_memory.h"
#include "kernels/product/cuda/four_sums.h"
#include "kernels/product/cuda/operand_maps.h"
#include "kernels/product/cuda/split_product.h"

namespace switchyard::gpu {

#if defined(__CUDACC__)
#pragma nv_diag_suppress 177  // code for other GPUs leaves all of it out
#endif
namespace {

constexpr int kTile = 128, kDepthStep = 64, kStages = 6;
constexpr int kConsumerThreads = 256, kThreads = kConsumerThreads + 128, kConsumerWarps = 8;
constexpr int kOperand = kTile * kDepthStep;  // elements of a stage of one operand
constexpr std::uint32_t kStageBytes = 2 * kOperand * sizeof(bfloat16);
constexpr std::size_t kSharedBytes = std::size_t{kStages} * kStageBytes;
// Floats from a row of sums to the next: pairs of eight rows are in different banks.
constexpr int kPitch = kTile + 8;
static_assert(kTile * kPitch * sizeof(float) <= kSharedBytes);

// The maps of the terms' operands; where products have one a, those of their b.
struct Maps {
  TensorMap a[kMostTerms], b[kMostTerms];
};
static_assert(kMostProducts <= kMostTerms);

// The steps of one part of the depth.
struct Share {
  int begin, end;
  GPU_FUNCTION static Share of(int steps, int part, int parts) {
    return {steps * part / parts, steps * (part + 1) / parts};
  }
};

#if defined(GPU_HAS_WGMMA) || !defined(__CUDA_ARCH__)

// An operand's tile of one step: `outer` its first row or column of C.
template <bool depth_is_contiguous>
GPU_FUNCTION void copy_operand(bfloat16* to, const TensorMap& map, std::int64_t outer, int depth,
                               std::int64_t batch, std::uint64_t* barrier) {
  if constexpr (depth_is_contiguous) {
    copy_box(to, map, depth, outer, batch, barrier, 0);
  } else {
    for (int i = 0; i < kTile / kTileWidth; ++i)
      copy_box(to + i * kDepthStep * kTileWidth, map, outer + i * kTileWidth, depth, batch, barrier, 0);
  }
}

// Adds the sums that the blocks of the cluster left, and stores the rows that are this block's.
template <int parts>
GPU_FUNCTION void add_parts(const DeviceProduct& p, const Part& part, int rank, const float* sums) {
  constexpr int kRowsOfBlock = kTile / parts, kVectors = kTile / 4, kAtOnce = kConsumerThreads / kVectors;
  const int x = thread_index() % kVectors * 4;
  const std::int64_t column = part.column + x;
  if (column >= p.n) return;
  GPU_NO_UNROLL
  for (int i = thread_index() / kVectors; i < kRowsOfBlock; i += kAtOnce) {
    const int y = rank * kRowsOfBlock + i;
    const std::int64_t row = part.row + y;
    if (row >= part.rows_end) return;
    const Vector<float, 4> sum = sum_of_parts<parts>(sums + y * kPitch + x);
    const std::int64_t at = part.c_offset + row * p.ldc + column;
    put_four(p, at, column, p.n - column, sum);
  }
}

#endif

template <int parts, bool transpose_a, bool transpose_b>
GPU_CLUSTER_KERNEL(kThreads, parts)
split_blocks(GPU_CONSTANT(ProductList) list, GPU_CONSTANT(Maps) maps, std::int32_t of_product) {
#if defined(GPU_HAS_WGMMA)
  GPU_SHARED(std::uint64_t, full, kStages);
  GPU_SHARED(std::uint64_t, empty, kStages);
  auto* const tiles = dynamic_shared<bfloat16>();
  const int rank = parts > 1 ? cluster_rank() : 0, warp = shuffle(thread_index() / kWarp, 0);
  if (thread_index() == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      init_barrier(&full[stage], 1);
      init_barrier(&empty[stage], kConsumerWarps);
    }
    show_barriers();
  }
  barrier();
  const auto of_all = static_cast<std::int32_t>(block_index() / parts);
  const int which = list.product_of(of_all);
  const DeviceProduct& p = list.products[which];
  const std::int32_t tile = of_all - list.first_block[which];
  const Part part =
      part_of_batch(p, tile % of_product, tile / of_product, kTile, kTile, static_cast<std::int32_t>(kBand));
  const Share share = Share::of(depth_steps(p, part, kDepthStep), rank, parts);
  int stage = 0;
  std::uint32_t phase = 0;
  const auto next_stage = [&] {
    if (++stage < kStages) return;
    stage = 0;
    phase ^= 1;
  };
  if (warp >= kConsumerWarps) {
    if (thread_index() == kConsumerThreads) {
      const std::int64_t a_batch = p.a_stride != 0 ? part.group : 0,
                         b_batch = p.b_stride != 0 ? part.group : 0;
      for (int step = share.begin; step < share.end; ++step, next_stage()) {
        wait_for_phase(&empty[stage], phase ^ 1);
        expect_bytes(&full[stage], kStageBytes);
        const DepthStep at = depth_step(p, part, step, kDepthStep);
        bfloat16* const a = tiles + stage * 2 * kOperand;
        copy_operand<!transpose_a>(a, maps.a[at.term], part.row, at.begin, a_batch, &full[stage]);
        copy_operand<transpose_b>(a + kOperand, maps.b[which + at.term], part.column, at.begin, b_batch,
                                  &full[stage]);
      }
    }
    warp_barrier();
  } else {
    const int group = warp / 4, lane = thread_index() % kWarp;
    constexpr std::uint32_t kBlockBytes = kDepthStep * kTileWidth * sizeof(bfloat16);
    float sums[kTile / 2];
    if (share.begin == share.end) {
      GPU_UNROLL
      for (float& sum : sums) sum = 0;
    }
    int before = 0;
    for (int step = share.begin; step < share.end; ++step) {
      wait_for_phase(&full[stage], phase);
      const bfloat16* const a = tiles + stage * 2 * kOperand;
      const bfloat16* const b = a + kOperand;
      begin_multiplying();
      GPU_UNROLL
      for (int depth = 0; depth < kDepthStep; depth += 16) {
        const bfloat16* const x =
            transpose_a ? a + (group * kDepthStep + depth) * kTileWidth : a + group * 64 * kTileWidth + depth;
        const bfloat16* const y = b + (transpose_b ? depth : depth * kTileWidth);
        multiply<kTile, transpose_a ? 1 : 0, transpose_b ? 0 : 1>(
            sums, matrix_at(x, kBlockBytes), matrix_at(y, kBlockBytes), step > share.begin || depth > 0);
      }
      end_multiplying();
      wait_for_products<1>();
      if (step > share.begin && lane == 0) arrive(&empty[before]);
      before = stage;
      next_stage();
    }
    wait_for_products<0>();
    named_barrier(1, kConsumerThreads);  // sums take the place of what all have read
    auto* const to = reinterpret_cast<float*>(tiles);
    GPU_UNROLL
    for (int half = 0; half < 2; ++half) {
      GPU_UNROLL
      for (int j = 0; j < kTile / 8; ++j) {
        const int row = warp * 16 + lane / 4 + half * 8, column = j * 8 + lane % 4 * 2;
        *reinterpret_cast<Vector<float, 2>*>(to + row * kPitch + column) = {sums[j * 4 + half * 2],
                                                                            sums[j * 4 + half * 2 + 1]};
      }
    }
  }
  cluster_barrier();
  if (warp < kConsumerWarps) add_parts<parts>(p, part, rank, reinterpret_cast<const float*>(tiles));
  cluster_barrier();  // no block ends while another reads its sums
#endif
}

std::int64_t tiles_of(const DeviceProduct& p) {
  return divide_up(p.m, kTile) * divide_up(p.n, kTile) * p.batch;
}

template <int parts, bool transpose_a, bool transpose_b>
void run_layout(DeviceProducts args) {
  const ProductList list = list_of(args, tiles_of);
  Maps maps{};
  for (std::size_t i = 0; i < args.size(); ++i) {
    const DeviceProduct& p = args[i];
    if (args[i].is_empty()) continue;
    for (int t = 0; t < p.term_count; ++t) {
      const ProductTerm& term = p.terms[t];
      maps.a[t] = transpose_a ? map_of(term.a, p.m, term.k, term.lda, p.batch, p.a_stride, kDepthStep)
                              : map_of(term.a, term.k, p.m, term.lda, p.batch, p.a_stride, kTile);
      maps.b[static_cast<int>(i) + t] =
          transpose_b ? map_of(term.b, term.k, p.n, term.ldb, p.batch, p.b_stride, kTile)
                      : map_of(term.b, p.n, term.k, term.ldb, p.batch, p.b_stride, kDepthStep);
    }
  }
  launch({.blocks = std::int64_t{list.blocks()} * parts,
          .threads = kThreads,
          .shared_bytes = kSharedBytes,
          .cluster = parts},
         split_blocks<parts, transpose_a, transpose_b>, list, maps,
         static_cast<std::int32_t>(list.blocks() / args.front().batch));
}

template <int parts>
void run_parts(DeviceProducts args) {
  const DeviceProduct& form = args.front();
  if (form.transpose_a)
    form.transpose_b ? run_layout<parts, true, true>(args) : run_layout<parts, true, false>(args);
  else
    form.transpose_b ? run_layout<parts, false, true>(args) : run_layout<parts, false, false>(args);
}

// Why it does not take the product, for its form.
const char* refuses_one(const DeviceProduct& args) {
  constexpr std::int64_t kFewestSteps = 16;
  const DeviceProduct& p = args;
  if (p.dtype != DType::bf16) return "the operands are not bfloat16";
  if (p.groups != Groups::none) return "it has groups";
  if (!chunks_are_aligned(p)) return "operands are not aligned to 16 bytes";
  std::int64_t steps = 0;
  for (int t = 0; t < p.term_count; ++t) {
    if (p.terms[t].a_rows != nullptr) return "rows are looked up";
    if (p.terms[t].k == 0) return "it has no depth";
    steps += divide_up(p.terms[t].k, kDepthStep);
  }
  return steps < kFewestSteps ? "its depth is less than 1024" : nullptr;
}

}  // namespace

int depth_parts_of(DeviceProducts args) {
  // Measured on an H100: 512 x 512, depth 4096, in 1, 2, 4 and 8 parts: 23.2, 15.0, 11.7 and 22.6 us. More
  // blocks than multiprocessors (132) take turns, which costs more than parts gain.
  constexpr std::int64_t kMostBlocks = 132;
  std::int64_t tiles = 0;
  for (const DeviceProduct& one : args) tiles += tiles_of(one);
  return 4 * tiles <= kMostBlocks ? 4 : 2 * tiles <= kMostBlocks ? 2 : 1;
}

void split_product_in(int parts, DeviceProducts args) {
  if (are_empty(args) || PlannedGpu::skips(1)) return;
  CHECK(parts == 1 || parts == 2 || parts == 4, "{} parts", parts);
  parts == 4 ? run_parts<4>(args) : parts == 2 ? run_parts<2>(args) : run_parts<1>(args);
}

void split_product(DeviceProducts args) {
  split_product_in(depth_parts_of(args), args);
}

const char* split_refuses(DeviceProducts args) {
  constexpr std::int64_t kMostWideTiles = 60, kWideTile = 256;
  if (const char* const reason = first_refusal(args, refuses_one)) return reason;
  std::int64_t tiles = 0;
  for (const DeviceProduct& p : args) tiles += divide_up(p.m, kTile) * divide_up(p.n, kWideTile) * p.batch;
  return tiles >= kMostWideTiles ? "it has more than a few tiles" : nullptr;
}

}  // namespace switchyard::gpu
