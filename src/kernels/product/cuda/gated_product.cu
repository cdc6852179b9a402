// Gate and up of gated experts as one product on Hopper, with the activation. As tma_product.cu, whose order
// of sums it has: a cluster of two blocks, one thread of a block starts copies, two warpgroups multiply. The
// 256 columns of a tile are 128 of gate's weights and the same 128 of up's, in blocks of 64: gate, up, gate,
// up. Block 0 of the cluster brings those of gate to both blocks, block 1 those of up. In sums of 64 x 256 a
// thread has the same columns of each block of 64, so that gate and up of a place are in one thread, and the
// weights stay as they are.
//
// Rows that are looked up come by copies of the producer's four warps: the copy engine has no rows by number.
// Each block has rows of its own, so these are the operand that is not sent to both.
#include <algorithm>

#include "kernels/cuda/copy_arrivals.h"
#include "kernels/cuda/planned.h"
#include "kernels/pointwise/cuda/swiglu.h"
#include "kernels/product/cuda/box_store.h"
#include "kernels/product/cuda/gated_product.h"
#include "kernels/product/cuda/group_table.h"

namespace switchyard::gpu {

#if defined(__CUDACC__)
#pragma nv_diag_suppress 177  // code for other GPUs leaves all of it out
#endif
namespace {

constexpr int kRows = 128, kColumns = 128, kDepth = 64, kStages = 4, kCluster = 2;  // columns: of gate
constexpr std::uint16_t kBothBlocks = (1 << kCluster) - 1;
constexpr int kProducers = 128, kGroupThreads = 128, kConsumers = 2, kThreads = 384;
constexpr int kConsumerWarps = kConsumers * kGroupThreads / kWarp;
constexpr int kBox = kDepth * kTileWidth, kATile = kRows * kDepth, kBTile = 2 * kColumns * kDepth;
constexpr int kStage = kATile + kBTile;  // elements
constexpr std::size_t kSharedBytes =
    (std::size_t{kStages} * kStage + kConsumers * kStoreTiles * kStoreTile) * sizeof(bfloat16);
// A block has 227 KB; tiles begin at the first multiple of 1024 behind the kernel's own arrays.
constexpr std::size_t kOwnBytes =
    2 * kStages * sizeof(std::uint64_t) + 2 * (kMostGroups + 1) * sizeof(std::int32_t);
static_assert(kSharedBytes + (kOwnBytes + 1023) / 1024 * 1024 <= 227 * 1024);

enum Output : std::uint8_t { kGate, kUp, kHidden, kOutputs };

struct GatedMaps {
  TensorMap rows;  // where they are not looked up
  TensorMap weights[2], out[kOutputs];
};

// Three products of the same rows, which differ in c alone. A c may be null: it is not wanted.
struct GatedProducts {
  DeviceProduct of[kOutputs];
  const float* row_weights;  // null: 1
  std::int32_t band;
};

// A stage of the ring of tiles, and the parity of its phase.
struct Stage {
  int at = 0;
  std::uint32_t phase = 0;
  GPU_FUNCTION void advance() {
    if (++at < kStages) return;
    at = 0;
    phase ^= 1;
  }
};

#if defined(GPU_HAS_WGMMA) || !defined(__CUDA_ARCH__)

// The rows of a tile that a thread of the producer copies: one chunk of every 16th row.
class LookedUpRows {
 public:
  GPU_FUNCTION LookedUpRows(const DeviceProduct& p, const Part& part) : p_(p) {
    const auto first = static_cast<int>(part.row) + thread_index() / kChunksOfRow;
    GPU_UNROLL
    for (int i = 0; i < kOwnRows; ++i) {
      const int row = first + i * kRowsAtOnce;
      rows_[i] = row < static_cast<int>(part.rows_end) ? p.terms[0].a_rows[row] : -1;
    }
  }
  // Starts to copy those columns; what is outside becomes 0.
  GPU_FUNCTION void copy(bfloat16* tile, int depth) const {
    const int chunk = thread_index() % kChunksOfRow, column = depth + chunk * kChunk;
    const bool within = column < static_cast<int>(p_.terms[0].k);
    const auto* const x = static_cast<const bfloat16*>(p_.terms[0].a);
    GPU_UNROLL
    for (int i = 0; i < kOwnRows; ++i) {
      const bool inside = within && rows_[i] >= 0;
      const bfloat16* const from = inside ? x + rows_[i] * p_.terms[0].lda + column : x;
      copy_async_ahead(tile + place_of<kRows>(thread_index() / kChunksOfRow + i * kRowsAtOnce, chunk), from,
                       inside ? kChunk * static_cast<int>(sizeof(bfloat16)) : 0);
    }
  }

 private:
  static constexpr int kChunksOfRow = kDepth / kChunk, kRowsAtOnce = kProducers / kChunksOfRow,
                       kOwnRows = kRows / kRowsAtOnce;
  const DeviceProduct& p_;
  std::int32_t rows_[kOwnRows];
};

// Starts to copy this block's half of the weights of a step to both blocks: gate's or up's.
GPU_FUNCTION void copy_weights(bfloat16* tile, const TensorMap& map, const Part& part, int depth, int rank,
                               std::uint64_t* full) {
  for (int i = 0; i < kColumns / kTileWidth; ++i)
    copy_box(tile + (2 * i + rank) * kBox, map, part.column + i * kTileWidth, depth, part.group, full,
             kBothBlocks);
}

// Stores what the sums of a warpgroup are: 64 columns of gate, as many of up, and those again.
GPU_FUNCTION void store_gated(const GatedProducts& p, const GatedMaps& maps, BoxStore& boxes,
                              const Part& part, std::int64_t row, const float (&sums)[2 * kColumns / 2]) {
  constexpr int kOfBlock = kTileWidth / 2;  // numbers of a thread
  const int thread = thread_index() % kGroupThreads;
  float weights[2] = {1, 1};
  if (p.row_weights != nullptr) {
    GPU_UNROLL
    for (int half = 0; half < 2; ++half) {
      const std::int64_t at = row + thread / kWarp * 16 + thread % kWarp / 4 + half * 8;
      weights[half] = at < part.rows_end ? p.row_weights[at] : 1.0f;
    }
  }
  GPU_UNROLL
  for (int block = 0; block < kColumns / kTileWidth; ++block) {
    Part of_block = part;
    of_block.column += block * kTileWidth;
    float gate[kOfBlock], up[kOfBlock];
    GPU_UNROLL
    for (int i = 0; i < kOfBlock; ++i) {
      gate[i] = sums[2 * block * kOfBlock + i];
      up[i] = sums[(2 * block + 1) * kOfBlock + i];
    }
    if (p.of[kGate].c != nullptr) {
      boxes.store<kTileWidth>(p.of[kGate], maps.out[kGate], of_block, row, gate);
      boxes.store<kTileWidth>(p.of[kUp], maps.out[kUp], of_block, row, up);
    }
    if (p.of[kHidden].c == nullptr) continue;
    // swiglu takes gate and up as they are in memory: rounded.
    GPU_UNROLL
    for (int i = 0; i < kOfBlock; ++i)
      gate[i] = swiglu_of(to_float(from_float<bfloat16>(gate[i])), to_float(from_float<bfloat16>(up[i])),
                          weights[i / 2 % 2]);
    boxes.store<kTileWidth>(p.of[kHidden], maps.out[kHidden], of_block, row, gate);
  }
}

#endif

template <bool looks_up>
GPU_CLUSTER_KERNEL(kThreads, kCluster)
gated_blocks(GPU_CONSTANT(GatedProducts) of_launch, GPU_CONSTANT(GatedMaps) maps) {
#if defined(GPU_HAS_WGMMA)
  GPU_SHARED(std::uint64_t, full, kStages);
  GPU_SHARED(std::uint64_t, empty, kStages);
  GPU_SHARED(std::int32_t, first_block, kMostGroups + 1);
  GPU_SHARED(std::int32_t, first_row, kMostGroups + 1);
  const DeviceProduct& p = of_launch.of[kHidden];
  const GroupTable table{first_block, first_row};
  auto* const tiles = dynamic_shared<bfloat16>();
  const int rank = cluster_rank();
  if (thread_index() == 0) {
    for (int stage = 0; stage < kStages; ++stage) {
      init_barrier(&full[stage], 1 + (looks_up ? kProducers : 0));
      init_barrier(&empty[stage], kCluster * kConsumerWarps);
    }
    show_barriers();
  }
  if (thread_index() < kWarp) table.make(p, kRows * kCluster);
  cluster_barrier();
  // Both roles, and both blocks of the cluster, walk through the same parts and count the same steps.
  const std::int32_t all = table.row_blocks(p, kRows * kCluster) *
                           static_cast<std::int32_t>((p.n + kColumns - 1) / kColumns),
                     clusters = static_cast<std::int32_t>(block_count() / kCluster);
  const int steps = static_cast<int>((p.terms[0].k + kDepth - 1) / kDepth);
  const auto find = [&](std::int32_t index) {
    Part part;
    table.find(p, index, 0, kRows * kCluster, kColumns, of_launch.band, part);
    part.row += rank * kRows;
    return part;
  };
  Stage stage;
  if (thread_index() < kProducers) {
    give_up_registers<56>();
    const bool starts = thread_index() == 0;
    for (auto index = static_cast<std::int32_t>(block_index() / kCluster);
         (looks_up || starts) && index < all; index += clusters) {
      const Part part = find(index);
      const auto bring = [&](const auto& copy_rows) {
        for (int step = 0; step < steps; ++step, stage.advance()) {
          wait_for_phase(&empty[stage.at], stage.phase ^ 1);
          bfloat16* const a = tiles + stage.at * kStage;
          if (starts) {
            expect_bytes(&full[stage.at], (looks_up ? kBTile : kStage) * sizeof(bfloat16));
            copy_weights(a + kATile, maps.weights[rank], part, step * kDepth, rank, &full[stage.at]);
          }
          copy_rows(a, step * kDepth);
        }
      };
      if constexpr (looks_up) {
        const LookedUpRows rows(p, part);
        bring([&](bfloat16* a, int depth) {
          rows.copy(a, depth);
          arrive_with_copies(&full[stage.at]);
        });
      } else {
        bring(
            [&](bfloat16* a, int depth) { copy_box(a, maps.rows, depth, part.row, 0, &full[stage.at], 0); });
      }
    }
  } else {
    take_registers<224>();
    // The shuffle shows the compiler that a warp has one group.
    const int thread = thread_index() - kProducers, group = shuffle(thread / kGroupThreads, 0);
    constexpr std::uint32_t kBlockBytes = kBox * sizeof(bfloat16);
    BoxStore boxes(tiles + kStages * kStage + group * kStoreTiles * kStoreTile, 2 + group);
    // A stage has been read by this warp.
    const auto release = [&](int of) {
      if (thread % kWarp < kCluster) arrive_at(&empty[of], thread % kWarp);
    };
    for (auto index = static_cast<std::int32_t>(block_index() / kCluster); index < all; index += clusters) {
      const Part part = find(index);
      float sums[2 * kColumns / 2];
      int before = 0;
      for (int step = 0; step < steps; ++step) {
        wait_for_phase(&full[stage.at], stage.phase);
        if constexpr (looks_up) show_to_tensor_cores();  // what threads have copied
        const bfloat16* const a = tiles + stage.at * kStage;
        begin_multiplying();
        GPU_UNROLL
        for (int depth = 0; depth < kDepth; depth += 16)
          multiply<2 * kColumns, 0, 1>(
              sums, matrix_at(a + group * kStoreRows * kTileWidth + depth, kBlockBytes),
              matrix_at(a + kATile + depth * kTileWidth, kBlockBytes), step > 0 || depth > 0);
        end_multiplying();
        wait_for_products<1>();
        if (step > 0) release(before);
        before = stage.at;
        stage.advance();
      }
      wait_for_products<0>();
      release(before);
      store_gated(of_launch, maps, boxes, part, part.row + group * kStoreRows, sums);
    }
    boxes.finish();
  }
  warp_barrier();
  // Neither block may go while the other still signals its barriers.
  cluster_barrier();
#endif
}

// ---- On the host

// Rows of c that are stored by boxes.
TensorMap map_of_output(const DeviceProduct& p) {
  return tensor_map(p.c, p.n, p.m, p.ldc, 1, p.ldc * p.m, kTileWidth, kStoreRows);
}

// Neighbours in the order of parts. Measured on an H100 (TFLOP/s with bands of 4 and of 16), 128 groups,
// depth 4096, 1024 columns: 562 and 626 of rows as they stand, 596 and 594 of rows that are looked up.
constexpr std::int32_t kGatedBand = static_cast<std::int32_t>(kBand);

GatedProducts products_of(const Product& product) {
  const DeviceProduct p = lowered_alone(product, {product.terms[0].b, product.c});
  GatedProducts all{{p, p, p}, product.gated->row_weights.device_data<float>(), kGatedBand};
  all.of[kGate].c = product.c.device_address();
  all.of[kUp].c = product.right[0].c.device_address();
  all.of[kHidden].c = product.gated->hidden.device_address();
  return all;
}

GatedMaps maps_of(const Product& product, const GatedProducts& all) {
  const DeviceProduct& p = all.of[kHidden];
  const ProductTerm& term = p.terms[0];
  const std::int64_t k = term.k;
  GatedMaps maps{};
  if (term.a_rows == nullptr)
    maps.rows = tensor_map(term.a, k, p.m, term.lda, 1, term.lda * p.m, kDepth, kRows);
  const void* const weights[] = {term.b, product.right[0].b.device_address()};
  for (int i = 0; i < 2; ++i)
    maps.weights[i] = tensor_map(weights[i], p.n, k, term.ldb, p.batch, p.b_stride, kTileWidth, kDepth);
  for (int i = 0; i < kOutputs; ++i)
    if (all.of[i].c != nullptr) maps.out[i] = map_of_output(all.of[i]);
  return maps;
}

bool is_aligned(const TensorView& x) {
  return reinterpret_cast<std::uintptr_t>(x.device_address()) % 16 == 0;
}

}  // namespace

void hopper_gated_product(const Product& product) {
  if (PlannedGpu::skips(1)) return;
  const GatedProducts all = products_of(product);
  const DeviceProduct& p = all.of[kHidden];
  const std::int64_t parts = row_blocks_of(p, kRows * kCluster) * divide_up(p.n, kColumns);
  const Launch how{.blocks = std::min<std::int64_t>(parts, multiprocessors() / kCluster) * kCluster,
                   .threads = kThreads,
                   .shared_bytes = kSharedBytes,
                   .cluster = kCluster};
  const GatedMaps maps = maps_of(product, all);
  p.terms[0].a_rows != nullptr ? launch(how, gated_blocks<true>, all, maps)
                               : launch(how, gated_blocks<false>, all, maps);
}

const char* hopper_gated_refuses(const Product& product) {
  const DeviceProduct p = products_of(product).of[kHidden];
  if (p.dtype != DType::bf16) return "the rows are not bfloat16";
  if (product.terms[0].b.dtype() != DType::bf16) return "the weights are packed";
  if (p.m == 0 || p.n == 0 || p.batch == 0) return "it is empty";
  if (!pays_to_gather(p)) return "it is too small";
  if (p.batch > kMostGroups) return "the groups are too many";
  if (p.terms[0].k % kChunk != 0 || p.n % kChunk != 0) return "rows are no multiples of 16 bytes";
  const Product::Term& term = product.terms[0];
  const Product::Right& up = product.right[0];
  for (const TensorView* x : {&term.a, &term.b, &up.b, &product.c, &up.c, &product.gated->hidden})
    if (!is_aligned(*x)) return "operands are not aligned to 16 bytes";
  return nullptr;
}

}  // namespace switchyard::gpu
