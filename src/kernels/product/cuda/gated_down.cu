// The gradient of down's operand on Hopper with the activation's way back in its last steps: dhidden stays in
// registers. As tma_product.cu, whose order of sums it has: tiles of 128 x 256 a block, a cluster of two that
// shares the columns of the weights; three stages, for the rest of shared memory holds gate and up.
//
// For each block of 64 columns gate and up come into shared memory by the copy engine, while the block before
// is made. A thread reads those of its sums and writes their gradients to the same places, so two tiles are
// in and out at once. The gradient of a row's weight is summed over the 256 columns by the four threads that
// have the row; a second kernel adds the tiles' sums in order.
#include <algorithm>

#include "kernels/cuda/copy_engine.h"
#include "kernels/cuda/planned.h"
#include "kernels/cuda/wide.h"
#include "kernels/cuda/workspace.h"
#include "kernels/pointwise/cuda/swiglu.h"
#include "kernels/product/cuda/gated_product.h"
#include "kernels/product/cuda/group_table.h"

namespace switchyard::gpu {

#if defined(__CUDACC__)
#pragma nv_diag_suppress 177  // code for other GPUs leaves all of it out
#endif
namespace {

constexpr int kRows = 128, kColumns = 256, kDepth = 64, kStages = 3, kCluster = 2;
constexpr std::uint16_t kBothBlocks = (1 << kCluster) - 1;
constexpr int kProducers = 128, kGroupThreads = 128, kConsumers = 2, kThreads = 384, kGroupRows = 64;
constexpr int kConsumerWarps = kConsumers * kGroupThreads / kWarp;
constexpr int kATile = kRows * kDepth, kBTile = kColumns * kDepth, kStage = kATile + kBTile;  // elements
// A warpgroup has tiles of gate and up, twice, and one of hidden.
constexpr int kTile = kGroupRows * kTileWidth, kGroupTiles = 5;
constexpr std::size_t kSharedBytes =
    (std::size_t{kStages} * kStage + kConsumers * kGroupTiles * kTile) * sizeof(bfloat16);
// A block has 227 KB; tiles begin at the first multiple of 1024 behind the kernel's own arrays.
constexpr std::size_t kOwnBytes =
    (2 * kStages + 2 * kConsumers) * sizeof(std::uint64_t) + 2 * (kMostGroups + 1) * sizeof(std::int32_t);
static_assert(kSharedBytes + (kOwnBytes + 1023) / 1024 * 1024 <= 227 * 1024);

enum Result : std::uint8_t { kGateGradient, kUpGradient, kHidden, kResults };

struct GatedDownMaps {
  TensorMap dy, weights, gate, up, out[kResults];
};

struct GatedDown {
  DeviceProduct product;  // without a c
  bfloat16* out[kResults];
  const float* row_weights;
  float* weight_sums;  // [rows, tiles of columns]
  std::int32_t column_tiles, band;
};

#if defined(GPU_HAS_WGMMA) || !defined(__CUDA_ARCH__)

// A warpgroup's way from its sums, dhidden of 64 rows and 256 columns, to the results.
class ActivationBackward {
 public:
  // `tiles`: kGroupTiles of the warpgroup's own; `came`: two barriers; `id`: its named barrier.
  GPU_FUNCTION ActivationBackward(const GatedDown& p, const GatedDownMaps& maps, bfloat16* tiles,
                                  std::uint64_t* came, int id)
      : p_(p), maps_(maps), tiles_(tiles), came_(came), id_(id) {}

  // Asks for the first block's gate and up.
  GPU_FUNCTION void begin(const Part& part, int row) {
    if (row >= static_cast<int>(part.rows_end)) return;
    meet();  // the tiles of the part before have been read
    fetch(static_cast<int>(part.column), row, 0);
  }

  GPU_FUNCTION void store(const Part& part, int row, const float (&dhidden)[kColumns / 2]) {
    const int rows_end = static_cast<int>(part.rows_end), column = static_cast<int>(part.column);
    if (row >= rows_end) return;
    const int own_row = row + thread() / kWarp * 16 + thread() % kWarp / 4;
    float weights[2], sums[2] = {0, 0};
    GPU_UNROLL
    for (int half = 0; half < 2; ++half)
      weights[half] = own_row + half * 8 < rows_end ? p_.row_weights[own_row + half * 8] : 0.0f;
    GPU_UNROLL
    for (int block = 0; block < kColumns / kTileWidth; ++block) {
      const int at = column + block * kTileWidth;
      if (at >= p_.product.n) break;
      if (block + 1 < kColumns / kTileWidth && at + kTileWidth < p_.product.n)
        fetch(at + kTileWidth, row, block + 1);
      else if (thread() == 0)
        wait_for_stores<0, true>();
      meet();  // hidden's tile has been read
      wait_for_phase(came_ + block % 2, phases_ >> block % 2 & 1);
      phases_ ^= 1u << block % 2;
      make(block, weights, sums, dhidden);
      show_to_tensor_cores();
      meet();
      put(block, at, row, rows_end);
    }
    GPU_UNROLL
    for (int half = 0; half < 2; ++half) {
      float sum = sums[half];
      sum += shuffle_xor(sum, 1);
      sum += shuffle_xor(sum, 2);
      if (thread() % 4 == 0 && own_row + half * 8 < rows_end)
        p_.weight_sums[static_cast<std::int64_t>(own_row + half * 8) * p_.column_tiles + column / kColumns] =
            sum;
    }
  }

  // The tiles may not go before.
  GPU_FUNCTION void finish() {
    if (thread() == 0) wait_for_stores<0, true>();
  }

 private:
  GPU_FUNCTION static int thread() { return thread_index() % kGroupThreads; }
  GPU_FUNCTION void meet() const { named_barrier(id_, kGroupThreads); }
  // Gate's and up's tile of a block, which become those of their gradients; hidden's.
  GPU_FUNCTION bfloat16* tile_of(int block, int which) const {
    return tiles_ + (which == kHidden ? 4 : block % 2 * 2 + which) * kTile;
  }

  GPU_FUNCTION void fetch(int column, int row, int block) const {
    if (thread() != 0) return;
    wait_for_stores<0, true>();  // of the tiles that come next
    std::uint64_t* const barrier = came_ + block % 2;
    expect_bytes(barrier, 2 * kTile * sizeof(bfloat16));
    copy_box(tile_of(block, kGateGradient), maps_.gate, column, row, 0, barrier, 0);
    copy_box(tile_of(block, kUpGradient), maps_.up, column, row, 0, barrier, 0);
  }

  GPU_FUNCTION void make(int block, const float (&weights)[2], float (&sums)[2],
                         const float (&dhidden)[kColumns / 2]) const {
    GPU_UNROLL
    for (int chunk = 0; chunk < kTileWidth / kChunk; ++chunk) {
      GPU_UNROLL
      for (int half = 0; half < 2; ++half) {
        const int place =
            place_of<kGroupRows>(thread() / kWarp * 16 + thread() % kWarp / 4 + half * 8, chunk) +
            thread() % 4 * 2;
        const auto pair_at = [&](int which) {
          return reinterpret_cast<volatile std::uint32_t*>(tile_of(block, which) + place);
        };
        const std::uint32_t gates = *pair_at(kGateGradient), ups = *pair_at(kUpGradient);
        float made[kResults][2];
        GPU_UNROLL
        for (int i = 0; i < 2; ++i) {
          const float gate = number(gates, i), up = number(ups, i);
          const float d = to_float(
              from_float<bfloat16>(dhidden[(block * (kTileWidth / kChunk) + chunk) * 4 + half * 2 + i]));
          const SwigluGradients gradients = swiglu_gradients(gate, up, weights[half], d);
          made[kGateGradient][i] = gradients.gate;
          made[kUpGradient][i] = gradients.up;
          made[kHidden][i] = swiglu_of(gate, up, weights[half]);
          sums[half] += gradients.weight;
        }
        GPU_UNROLL
        for (int which = 0; which < kResults; ++which)
          *pair_at(which) = rounded_pair(made[which][0], made[which][1]);
      }
    }
  }

  GPU_FUNCTION static float number(std::uint32_t pair, int which) {
    bfloat16 value;
    value.bits = static_cast<std::uint16_t>(which == 0 ? pair : pair >> 16);
    return to_float(value);
  }

  // Stores the tiles of a block: by boxes, which must not reach into rows of the next group.
  GPU_FUNCTION void put(int block, int column, int row, int rows_end) const {
    if (row + kGroupRows <= rows_end || rows_end == static_cast<int>(p_.product.m)) {
      if (thread() != 0) return;
      for (int which = 0; which < kResults; ++which)
        store_box(maps_.out[which], tile_of(block, which), column, row, 0);
      end_stores();
      return;
    }
    GPU_NO_UNROLL
    for (int which = 0; which < kResults; ++which) put_tail(which, block, column, row, rows_end);
    meet();
  }

  GPU_FUNCTION void put_tail(int which, int block, int column, int row, int rows_end) const {
    constexpr int kChunksOfRow = kTileWidth / kChunk, kRowsAtOnce = kGroupThreads / kChunksOfRow;
    const int chunk = thread() % kChunksOfRow;
    const std::int64_t n = p_.product.n;
    GPU_NO_UNROLL
    for (int i = thread() / kChunksOfRow; i < kGroupRows; i += kRowsAtOnce) {
      if (row + i >= rows_end || column + chunk * kChunk >= n) continue;
      using Piece = Vector<std::uint32_t, 4>;
      *reinterpret_cast<Piece*>(p_.out[which] + (row + i) * n + column + chunk * kChunk) =
          *reinterpret_cast<const Piece*>(tile_of(block, which) + place_of<kGroupRows>(i, chunk));
    }
  }

  const GatedDown& p_;
  const GatedDownMaps& maps_;
  bfloat16* const tiles_;
  std::uint64_t* const came_;
  const int id_;
  std::uint32_t phases_ = 0;  // of both barriers
};

#endif

GPU_CLUSTER_KERNEL(kThreads, kCluster)
gated_down_blocks(GPU_CONSTANT(GatedDown) of_launch, GPU_CONSTANT(GatedDownMaps) maps) {
#if defined(GPU_HAS_WGMMA)
  GPU_SHARED(std::uint64_t, full, kStages);
  GPU_SHARED(std::uint64_t, empty, kStages);
  GPU_SHARED(std::uint64_t, came, 2 * kConsumers);
  GPU_SHARED(std::int32_t, first_block, kMostGroups + 1);
  GPU_SHARED(std::int32_t, first_row, kMostGroups + 1);
  const DeviceProduct& p = of_launch.product;
  const GroupTable table{first_block, first_row};
  auto* const tiles = dynamic_shared<bfloat16>();
  const int rank = cluster_rank();
  if (thread_index() == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      init_barrier(&full[stage], 1);
      init_barrier(&empty[stage], kCluster * kConsumerWarps);
    }
    for (int i = 0; i < 2 * kConsumers; ++i) init_barrier(&came[i], 1);
    show_barriers();
  }
  if (thread_index() < kWarp) table.make(p, kRows * kCluster);
  cluster_barrier();
  // Both roles, and both blocks of the cluster, walk through the same parts and count the same steps.
  const std::int32_t all = table.row_blocks(p, kRows * kCluster) * of_launch.column_tiles,
                     clusters = static_cast<std::int32_t>(block_count() / kCluster);
  const int steps = static_cast<int>((p.terms[0].k + kDepth - 1) / kDepth);
  const auto find = [&](std::int32_t index) {
    Part part;
    table.find(p, index, 0, kRows * kCluster, kColumns, of_launch.band, part);
    part.row += rank * kRows;
    return part;
  };
  int stage = 0;
  std::uint32_t phase = 0;
  const auto next_stage = [&] {
    if (++stage < kStages) return;
    stage = 0;
    phase ^= 1;
  };
  if (thread_index() < kProducers) {
    give_up_registers<56>();
    for (auto index = static_cast<std::int32_t>(block_index() / kCluster); thread_index() == 0 && index < all;
         index += clusters) {
      const Part part = find(index);
      constexpr int kOwnColumns = kColumns / kCluster;
      for (int step = 0; step < steps; ++step, next_stage()) {
        wait_for_phase(&empty[stage], phase ^ 1);
        expect_bytes(&full[stage], kStage * sizeof(bfloat16));
        bfloat16* const a = tiles + stage * kStage;
        copy_box(a, maps.dy, step * kDepth, part.row, 0, &full[stage], 0);
        copy_box(a + kATile + rank * kOwnColumns * kDepth, maps.weights, step * kDepth,
                 part.column + rank * kOwnColumns, part.group, &full[stage], kBothBlocks);
      }
    }
  } else {
    take_registers<224>();
    // The shuffle shows the compiler that a warp has one group.
    const int thread = thread_index() - kProducers, group = shuffle(thread / kGroupThreads, 0);
    ActivationBackward activation(of_launch, maps, tiles + kStages * kStage + group * kGroupTiles * kTile,
                                  came + 2 * group, 2 + group);
    // A stage has been read by this warp.
    const auto release = [&](int of) {
      if (thread % kWarp < kCluster) arrive_at(&empty[of], thread % kWarp);
    };
    for (auto index = static_cast<std::int32_t>(block_index() / kCluster); index < all; index += clusters) {
      const Part part = find(index);
      const int row = static_cast<int>(part.row) + group * kGroupRows;
      activation.begin(part, row);
      float sums[kColumns / 2];
      int before = 0;
      for (int step = 0; step < steps; ++step) {
        wait_for_phase(&full[stage], phase);
        const bfloat16* const a = tiles + stage * kStage;
        begin_multiplying();
        GPU_UNROLL
        for (int depth = 0; depth < kDepth; depth += 16)
          multiply<kColumns, 0, 0>(sums, matrix_at(a + group * kGroupRows * kTileWidth + depth, 0),
                                   matrix_at(a + kATile + depth, 0), step > 0 || depth > 0);
        end_multiplying();
        wait_for_products<1>();
        if (step > 0) release(before);
        before = stage;
        next_stage();
      }
      wait_for_products<0>();
      release(before);
      activation.store(part, row, sums);
    }
    activation.finish();
  }
  warp_barrier();
  // Neither block may go while the other still signals its barriers.
  cluster_barrier();
#endif
}

// out[row]: the sum of the row's `count` numbers, in their order.
GPU_KERNEL sum_tiles(const float* sums, std::int64_t rows, int count, float* out) {
  const std::int64_t row = thread_of_grid();
  if (row >= rows) return;
  float sum = 0;
  for (int i = 0; i < count; ++i) sum += sums[row * count + i];
  out[row] = sum;
}

// ---- On the host

GatedDownMaps maps_of(const GatedDownBackwardArgs& args, const GatedDown& all) {
  const DeviceProduct& p = all.product;
  const std::int64_t k = p.terms[0].k;
  const auto rows_by = [&](const void* data) {
    return tensor_map(data, p.n, p.m, p.n, 1, p.n * p.m, kTileWidth, kGroupRows);
  };
  GatedDownMaps maps{};
  maps.dy = tensor_map(p.terms[0].a, k, p.m, k, 1, k * p.m, kDepth, kRows);
  maps.weights =
      tensor_map(args.wo.device_address(), k, p.n, k, p.batch, k * p.n, kDepth, kColumns / kCluster);
  maps.gate = rows_by(args.gate.device_address());
  maps.up = rows_by(args.up.device_address());
  for (int i = 0; i < kResults; ++i) maps.out[i] = rows_by(all.out[i]);
  return maps;
}

DeviceProduct product_of(const GatedDownBackwardArgs& args) {
  const Product::Term term{args.dy, args.wo};
  return lowered_alone({.terms = {&term, 1},
                        .c = args.gate,
                        .group_sizes = args.group_sizes,
                        .groups = Groups::rows,
                        .transpose_b = true},
                       {args.wo, args.gate});
}

}  // namespace

void hopper_gated_down(const GatedDownBackwardArgs& args) {
  const DeviceProduct p = product_of(args);
  const auto tiles = static_cast<std::int32_t>(divide_up(p.n, kColumns));
  const Workspace memory(args.gate, tiles == 1 ? 0 : static_cast<std::size_t>(p.m * tiles) * sizeof(float));
  if (PlannedGpu::skips(tiles > 1 ? 2 : 1)) return;
  float* const out = args.drow_weights.device_data<float>();
  const GatedDown all{p,
                      {args.dgate.device_data<bfloat16>(), args.dup.device_data<bfloat16>(),
                       args.hidden.device_data<bfloat16>()},
                      args.row_weights.device_data<float>(),
                      tiles == 1 ? out : memory.data<float>(),
                      tiles,
                      static_cast<std::int32_t>(kBand)};
  const std::int64_t parts = row_blocks_of(p, kRows * kCluster) * tiles;
  launch({.blocks = std::min<std::int64_t>(parts, multiprocessors() / kCluster) * kCluster,
          .threads = kThreads,
          .shared_bytes = kSharedBytes,
          .cluster = kCluster},
         gated_down_blocks, all, maps_of(args, all));
  if (tiles > 1) {
    constexpr int kRowsOfBlock = 256;
    launch({.blocks = divide_up(p.m, kRowsOfBlock), .threads = kRowsOfBlock}, sum_tiles,
           static_cast<const float*>(memory.data<float>()), p.m, static_cast<int>(tiles), out);
  }
}

const char* hopper_gated_down_refuses(const GatedDownBackwardArgs& args) {
  if (args.gate.dtype() != DType::bf16) return "the rows are not bfloat16";
  if (args.wo.dtype() != DType::bf16) return "the weights are packed";
  const DeviceProduct p = product_of(args);
  if (p.m == 0 || p.n == 0 || p.batch == 0) return "it is empty";
  if (!pays_to_gather(p)) return "it is too small";
  if (p.batch > kMostGroups) return "the groups are too many";
  if (p.terms[0].k % kChunk != 0 || p.n % kChunk != 0) return "rows are no multiples of 16 bytes";
  for (const TensorView* x : {&args.dy, &args.wo, &args.gate, &args.up, &args.dgate, &args.dup, &args.hidden})
    if (reinterpret_cast<std::uintptr_t>(x->device_address()) % 16 != 0)
      return "operands are not aligned to 16 bytes";
  return nullptr;
}

}  // namespace switchyard::gpu
