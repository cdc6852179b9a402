// Matrix products on Hopper with operands brought by the copy engine (PTX ISA: cp.async.bulk.tensor). Two
// blocks of threads (a cluster) make 256 x 256 of C, 128 rows each: both need the same columns of the right
// operand, of which each brings half to both. So what comes from the L2 cache is two thirds of what
// wgmma_product reads, which is bound by it. One thread of a block starts copies, two warpgroups multiply;
// barriers in shared memory say what is full and what is empty. Products of one a have tiles one after the
// other. Twins: wgmma_product and tensor_product, which have the same tiles.
#include <algorithm>

#include "kernels/cuda/copy_engine.h"
#include "kernels/cuda/wgmma_store.h"
#include "kernels/product/cuda/box_store.h"
#include "kernels/product/cuda/group_table.h"
#include "kernels/product/cuda/operand_maps.h"

namespace switchyard::gpu {

#if defined(__CUDACC__)
#pragma nv_diag_suppress 177  // code for other GPUs leaves all of it out
#endif
namespace {

constexpr int kTmaRows = 128, kTmaColumns = 256, kTmaDepth = 64, kTmaStages = 4, kCluster = 2;
constexpr std::uint16_t kBothBlocks = (1 << kCluster) - 1;
constexpr int kTmaThreads = 384, kConsumerWarps = 8;
constexpr int kTmaATile = kTmaRows * kTmaDepth, kTmaBTile = kTmaColumns * kTmaDepth;
constexpr std::uint32_t kStageBytes = (kTmaATile + kTmaBTile) * sizeof(bfloat16);
constexpr int kConsumers = 2, kStoreElements = kConsumers * kStoreTiles * kStoreTile;
constexpr std::size_t kTmaSharedBytes =
    std::size_t{kTmaStages} * kStageBytes + kStoreElements * sizeof(bfloat16);
// A block has 227 KB; tiles begin at the first multiple of 1024 behind the kernel's own arrays.
constexpr std::size_t kOwnBytes =
    2 * kTmaStages * sizeof(std::uint64_t) + 2 * (kMostGroups + 1) * sizeof(std::int32_t);
static_assert(kTmaSharedBytes + (kOwnBytes + 1023) / 1024 * 1024 <= 227 * 1024);

// The maps of the terms' operands, and of C; where products have one a, those of their b and C.
struct Maps {
  TensorMap a[kMostTerms], b[kMostTerms], c[kMostProducts];
};
static_assert(kMostProducts <= kMostTerms);

// Rows [rows, 64) of the depth become 0, in `blocks` blocks of 64 columns: they are those of the next group.
GPU_FUNCTION void clear_depth(bfloat16* tile, int blocks, int rows, int thread) {
  constexpr int kThreads = kConsumerWarps * kWarp, kChunksOfRow = kTileWidth / kChunk;
  for (int i = thread; i < blocks * (kTmaDepth - rows) * kChunksOfRow; i += kThreads) {
    const int chunk = i % kChunksOfRow, row = rows + i / kChunksOfRow % (kTmaDepth - rows),
              block = i / kChunksOfRow / (kTmaDepth - rows);
    *reinterpret_cast<Vector<std::uint32_t, 4>*>(tile + (block * kTmaDepth + row) * kTileWidth +
                                                 chunk * kChunk) = {};
  }
}

// The parts of products that are one cluster's, one after the other: every so many of all.
struct Walk {
  std::int32_t of_product, all;  // blocks of a product of the batch (at most, of a list), and of all
  std::int32_t band;
  std::uint32_t stores_boxes;  // bit i: of product i of the list

  // With the numbers of blocks that the table knows, where there are groups.
  GPU_FUNCTION Walk with(const GroupTable& table, const DeviceProduct& p) const {
    if (p.groups == Groups::none) return *this;
    Walk walk = *this;
    walk.of_product = table.row_blocks(p, kTmaRows * kCluster) *
                      static_cast<std::int32_t>((p.n + kTmaColumns - 1) / kTmaColumns);
    walk.all = walk.of_product * (p.groups == Groups::rows ? 1 : static_cast<std::int32_t>(p.batch));
    return walk;
  }
  // `block` of those of product p of the list.
  GPU_FUNCTION Part find(const GroupTable& table, const DeviceProduct& p, std::int32_t block,
                         int rank) const {
    const std::int32_t index = block % of_product, of_batch = block / of_product;
    Part part;
    if (p.groups == Groups::none)
      part = part_of_batch(p, index, of_batch, kTmaRows * kCluster, kTmaColumns, band);
    else
      table.find(p, index, of_batch, kTmaRows * kCluster, kTmaColumns, band, part);
    part.row += rank * kTmaRows;
    return part;
  }
};

template <typename C, bool transpose_a, bool transpose_b>
GPU_CLUSTER_KERNEL(kTmaThreads, kCluster)
tma_blocks(GPU_CONSTANT(ProductList) list, GPU_CONSTANT(Maps) maps, GPU_CONSTANT(Walk) of_launch) {
#if defined(GPU_HAS_WGMMA)
  GPU_SHARED(std::uint64_t, full, kTmaStages);
  GPU_SHARED(std::uint64_t, empty, kTmaStages);
  GPU_SHARED(std::int32_t, first_block, kMostGroups + 1);
  GPU_SHARED(std::int32_t, first_row, kMostGroups + 1);
  const GroupTable table{first_block, first_row};
  auto* const tiles = dynamic_shared<bfloat16>();
  const int rank = cluster_rank();
  const DeviceProduct& form = list.products[0];
  if (thread_index() == 0) {
    for (int stage = 0; stage < kTmaStages; ++stage) {
      init_barrier(&full[stage], 1);
      init_barrier(&empty[stage], kCluster * kConsumerWarps);
    }
    show_barriers();
  }
  if (form.groups != Groups::none && thread_index() < kWarp) table.make(form, kTmaRows * kCluster);
  cluster_barrier();
  const auto clusters = static_cast<std::int32_t>(block_count() / kCluster);
  // Both roles, and both blocks of the cluster, walk through the same parts and count the same
  // steps of all of them.
  int stage = 0;
  std::uint32_t phase = 0;
  const auto next_stage = [&] {
    if (++stage < kTmaStages) return;
    stage = 0;
    phase ^= 1;
  };
  if (thread_index() < 128) {
    give_up_registers<56>();
    if (thread_index() < kWarp) {
      const Walk walk = of_launch.with(table, form);
      for (auto block = static_cast<std::int32_t>(block_index() / kCluster); block < walk.all;
           block += clusters) {
        const int which = list.product_of(block);
        const DeviceProduct& p = list.products[which];
        const Part part = walk.find(table, p, block - list.first_block[which], rank);
        const int steps = depth_steps(p, part, kTmaDepth);
        for (int step = 0; step < steps; ++step, next_stage()) {
          if (thread_index() != 0) continue;
          wait_for_phase(&empty[stage], phase ^ 1);
          expect_bytes(&full[stage], kStageBytes);
          const DepthStep at = depth_step(p, part, step, kTmaDepth);
          const TensorMap &a_map = maps.a[at.term], &b_map = maps.b[which + at.term];
          bfloat16* const a = tiles + stage * (kTmaATile + kTmaBTile);
          bfloat16* const b = a + kTmaATile;
          const std::int64_t a_batch = p.groups == Groups::none && p.a_stride != 0 ? part.group : 0,
                             b_batch = p.b_stride != 0 ? part.group : 0;
          if constexpr (transpose_a) {
            for (int i = 0; i < kTmaRows / kTileWidth; ++i)
              copy_box(a + i * kTmaDepth * kTileWidth, a_map, part.row + i * kTileWidth, at.begin, a_batch,
                       &full[stage], 0);
          } else {
            copy_box(a, a_map, at.begin, part.row, a_batch, &full[stage], 0);
          }
          constexpr int kOwnColumns = kTmaColumns / kCluster;
          if constexpr (transpose_b) {
            copy_box(b + rank * kOwnColumns * kTmaDepth, b_map, at.begin, part.column + rank * kOwnColumns,
                     b_batch, &full[stage], kBothBlocks);
          } else {
            for (int i = rank * kOwnColumns / kTileWidth; i < (rank + 1) * kOwnColumns / kTileWidth; ++i)
              copy_box(b + i * kTmaDepth * kTileWidth, b_map, part.column + i * kTileWidth, at.begin, b_batch,
                       &full[stage], kBothBlocks);
          }
        }
      }
    }
  } else {
    take_registers<224>();
    const Walk walk = of_launch.with(table, form);
    // The same for all threads of a warp, as the compiler is to see.
    const int thread = thread_index() - 128, group = shuffle(thread / 128, 0);
    constexpr std::uint32_t kBlockBytes = kTmaDepth * kTileWidth * sizeof(bfloat16);
    BoxStore boxes(tiles + kTmaStages * (kTmaATile + kTmaBTile) + group * kStoreTiles * kStoreTile,
                   2 + group);
    // A stage has been read by this warp.
    const auto release = [&](int of) {
      if (thread % kWarp < kCluster) arrive_at(&empty[of], thread % kWarp);
    };
    for (auto block = static_cast<std::int32_t>(block_index() / kCluster); block < walk.all;
         block += clusters) {
      const int which = list.product_of(block);
      const DeviceProduct& p = list.products[which];
      const Part part = walk.find(table, p, block - list.first_block[which], rank);
      const int steps = depth_steps(p, part, kTmaDepth);
      float sums[kTmaColumns / 2];
      if (steps == 0) {
        GPU_UNROLL
        for (float& sum : sums) sum = 0;
      }
      int before = 0;
      for (int step = 0; step < steps; ++step) {
        wait_for_phase(&full[stage], phase);
        bfloat16* const a = tiles + stage * (kTmaATile + kTmaBTile);
        bfloat16* const b = a + kTmaATile;
        if constexpr (transpose_a && !transpose_b) {
          const int depth_left = static_cast<int>(part.depth_end - part.depth_begin) - step * kTmaDepth;
          if (p.groups == Groups::depth && depth_left < kTmaDepth) {
            clear_depth(a, kTmaRows / kTileWidth, depth_left, thread);
            clear_depth(b, kTmaColumns / kTileWidth, depth_left, thread);
            show_to_tensor_cores();
            named_barrier(1, kConsumerWarps * kWarp);
          }
        }
        begin_multiplying();
        GPU_UNROLL
        for (int depth = 0; depth < kTmaDepth; depth += 16) {
          const bfloat16* const x = transpose_a ? a + group * kTmaDepth * kTileWidth + depth * kTileWidth
                                                : a + group * 64 * kTileWidth + depth;
          const bfloat16* const y = b + (transpose_b ? depth : depth * kTileWidth);
          multiply<kTmaColumns, transpose_a ? 1 : 0, transpose_b ? 0 : 1>(
              sums, matrix_at(x, kBlockBytes), matrix_at(y, kBlockBytes), step > 0 || depth > 0);
        }
        end_multiplying();
        wait_for_products<1>();
        if (step > 0) release(before);
        before = stage;
        next_stage();
      }
      wait_for_products<0>();
      if (steps > 0) release(before);
      if constexpr (sizeof(C) == sizeof(bfloat16)) {
        if ((walk.stores_boxes >> which & 1) != 0) {
          boxes.store<kTmaColumns>(p, maps.c[which], part, part.row + group * kStoreRows, sums);
          continue;
        }
      }
      store_sums<C, kTmaColumns>(p, part, part.row + thread / kWarp * 16, sums);
    }
    boxes.finish();
  }
  // Neither block may go while the other still signals its barriers.
  cluster_barrier();
#endif
}

// Neighbours in the order of blocks. Measured on an H100 (TFLOP/s with bands of 8 and of 16): 128 groups of
// rows, depth 4096: 698 and 657 (1024 columns), 663 and 641 (2048); depth 1024, 4096 columns: 615 and 641,
// and 627 and 593 where B is not transposed; groups of depth: 606 and 671; 8192 x 8192 x 8192: 667 and 687.
std::int32_t band_of(const DeviceProduct& p) {
  constexpr std::int64_t kDeep = 2048;
  return p.groups == Groups::rows && p.terms[0].k >= kDeep ? static_cast<std::int32_t>(kBand / 2)
                                                           : static_cast<std::int32_t>(kBand);
}

template <bool transpose_a, bool transpose_b>
void make_maps(const DeviceProduct& p, int which, Maps& maps) {
  for (int t = 0; t < p.term_count; ++t) {
    const ProductTerm& term = p.terms[t];
    // The rows of all groups of depth are one matrix.
    const std::int64_t depth = p.groups == Groups::depth ? p.depth_rows : term.k,
                       a_batch = p.groups == Groups::none ? p.batch : 1;
    maps.a[t] = transpose_a ? map_of(term.a, p.m, depth, term.lda, a_batch, p.a_stride, kTmaDepth)
                            : map_of(term.a, depth, p.m, term.lda, a_batch, p.a_stride, kTmaRows);
    maps.b[which + t] =
        transpose_b ? map_of(term.b, depth, p.n, term.ldb, p.batch, p.b_stride, kTmaColumns / kCluster)
                    : map_of(term.b, p.n, depth, term.ldb, p.batch, p.b_stride, kTmaDepth);
  }
  if (stores_boxes(p)) {
    const std::int64_t batch = p.groups == Groups::rows ? 1 : p.batch;
    maps.c[which] = map_of(p.c, p.n, p.m, p.ldc, batch, p.c_stride, kStoreRows);
  }
}

template <typename C, bool transpose_a, bool transpose_b>
void run_layout_tma(DeviceProducts args) {
  const DeviceProduct& form = args.front();
  const std::int64_t products = form.groups == Groups::rows ? 1 : form.batch;
  const ProductList list = list_of(args, [&](const DeviceProduct& p) {
    return row_blocks_of(p, kTmaRows * kCluster) * divide_up(p.n, kTmaColumns) * products;
  });
  Maps maps{};
  std::uint32_t boxes = 0;
  for (std::size_t i = 0; i < args.size(); ++i) {
    if (args[i].is_empty()) continue;
    make_maps<transpose_a, transpose_b>(args[i], static_cast<int>(i), maps);
    if (stores_boxes(args[i])) boxes |= 1u << i;
  }
  // As many clusters as there is room for: each makes one part after the other, and brings operands of the
  // next while it stores the last.
  const std::int64_t clusters = std::min<std::int64_t>(list.blocks(), multiprocessors() / kCluster);
  launch({.blocks = clusters * kCluster,
          .threads = kTmaThreads,
          .shared_bytes = kTmaSharedBytes,
          .cluster = kCluster},
         tma_blocks<C, transpose_a, transpose_b>, list, maps,
         Walk{static_cast<std::int32_t>(list.blocks() / products), list.blocks(), band_of(form), boxes});
}

// Why it does not take the product, for its form.
const char* refuses_one(const DeviceProduct& p) {
  if (p.dtype != DType::bf16) return "the operands are not bfloat16";
  if (!chunks_are_aligned(p)) return "operands are not aligned to 16 bytes";
  static_assert(kMostGroups == 352);
  if (!GroupTable::takes(p)) return "it has more than 352 groups";
  if (p.groups == Groups::depth && p.depth_rows == 0) return "it has no depth";
  for (int t = 0; t < p.term_count; ++t) {
    if (p.terms[t].a_rows != nullptr) return "rows are looked up";
    if (p.terms[t].k == 0 && p.groups != Groups::depth) return "it has no depth";
  }
  return nullptr;
}

}  // namespace

void tma_product(DeviceProducts args) {
  if (are_empty(args) || PlannedGpu::skips(1)) return;
  const DeviceProduct& form = args.front();
  with_float_type(form.c_dtype, [&]<typename C>(C) {
    if (form.transpose_a)
      form.transpose_b ? run_layout_tma<C, true, true>(args) : run_layout_tma<C, true, false>(args);
    else
      form.transpose_b ? run_layout_tma<C, false, true>(args) : run_layout_tma<C, false, false>(args);
  });
}

const char* tma_refuses(DeviceProducts args) {
  if (const char* const reason = first_refusal(args, refuses_one)) return reason;
  const bool pays = std::ranges::any_of(args, [](const DeviceProduct& one) { return pays_to_gather(one); });
  return pays ? nullptr : "it is too small";
}

}  // namespace switchyard::gpu
