// Products of few rows with packed weights on tensor cores. A block of threads makes 32 columns of C for up
// to 64 rows of a group, so that weights are read, and made bfloat16 in registers, once for all of them; they
// are the left operand, rows of A the right one, eight a tile. Its warps take groups of 32 inputs in turns,
// each with three more on their way into shared memory, and their sums are added in the order of warps.
//
// The numbers of all formats are exact in bfloat16. A group's products are summed in float32, without its
// scale and offset; these are applied to the sums, in float32. So results differ from few_rows_product's, its
// twin, in the order of sums alone. That of a row does not depend on how many rows are beside it.
#include <algorithm>

#include "kernels/cuda/wide.h"
#include "kernels/packed/cuda/packed_fragments.h"
#include "kernels/product/cuda/product.h"
#include "kernels/product/cuda/product_parts.h"

namespace switchyard::gpu {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * kWarp, kColumns = 2 * kBlockOutputs, kTileRows = 8;
// Rows of a group, on average. few_rows_product takes some 2 + 2 · rows operations a weight, this kernel 2.
constexpr int kLeastRows = 2, kMostRows = 64;
constexpr int kStages = 4;
constexpr int kSumPitch = kColumns + 4;  // four rows of a tile in different banks

template <DType packed>
constexpr int kStageBytes = LaneShare<packed>::kBytes* kWarp;

// The rows of A that are multiplied, a tile's row t / 4 for lane t.
template <int tiles>
struct TileRows {
  const bfloat16* a;  // of the lane's inputs
  int row[tiles], count;

  GPU_FUNCTION TileRows(const DeviceProduct& p, const Part& part)
      : a(static_cast<const bfloat16*>(p.terms[0].a) + part.a_offset + thread_index() % 4 * kChunk) {
    const auto rows = static_cast<int>(part.rows_end - part.row);
    count = rows >= tiles * kTileRows ? tiles : (rows + kTileRows - 1) / kTileRows;
    const std::int32_t* const lookup = p.terms[0].a_rows;
    GPU_UNROLL
    for (int t = 0; t < tiles; ++t) {
      // Past the last row a lane repeats the first one.
      const int i = t * kTileRows + thread_index() % kWarp / 4;
      const std::int64_t at = part.row + (i < rows ? i : 0);
      row[t] = lookup == nullptr ? static_cast<int>(at) : lookup[at];
    }
  }
  // Its inputs of a group, in the order of packed_fragments.h.
  GPU_FUNCTION void load(int tile, int leading, int group, std::uint32_t (&x)[4]) const {
    const auto* const from = a + static_cast<std::int64_t>(row[tile]) * leading + group * kGroupInputs;
    const auto words = *reinterpret_cast<const Vector<std::uint32_t, 4>*>(from);
    x[0] = words.at[0], x[1] = words.at[1], x[2] = words.at[2], x[3] = words.at[3];
  }
};

// totals += a group's products with a tile of rows, scaled. totals: [left operand][as multiply_tiles]
template <DType packed>
GPU_FUNCTION void add_group(const std::uint32_t (&weights)[2][2][4], const LaneScales& scales,
                            const std::uint32_t (&inputs)[4], float (&totals)[2][4]) {
  // In the order of the weights' pairs.
  const std::uint32_t x[4] = {lower_halves(inputs[0], inputs[1]), upper_halves(inputs[0], inputs[1]),
                              lower_halves(inputs[2], inputs[3]), upper_halves(inputs[2], inputs[3])};
  constexpr int kHalves = LaneShare<packed>::kScales;
  GPU_UNROLL
  for (int half = 0; half < kHalves; ++half) {
    // Half a group is the inputs of two in four lanes.
    const bool own = kHalves == 1 || thread_index() % 4 / 2 == half;
    GPU_UNROLL
    for (int i = 0; i < 2; ++i) {
      float sums[4] = {};
      GPU_UNROLL
      for (int step = 0; step < 2; ++step)
        multiply_tiles(sums, weights[i][step], own ? x[2 * step] : 0, own ? x[2 * step + 1] : 0);
      GPU_UNROLL
      for (int j = 0; j < 4; ++j)
        totals[i][j] = fmaf(scales.scales[half][2 * i + j / 2], sums[j], totals[i][j]);
    }
  }
  if constexpr (LaneShare<packed>::kOffsets) {
    constexpr std::uint32_t kOnes[4] = {twice(0x3f80), twice(0x3f80), twice(0x3f80), twice(0x3f80)};
    float sums[4] = {};  // of inputs, the same for all outputs
    multiply_tiles(sums, kOnes, x[0], x[1]);
    multiply_tiles(sums, kOnes, x[2], x[3]);
    GPU_UNROLL
    for (int i = 0; i < 2; ++i) {
      GPU_UNROLL
      for (int j = 0; j < 4; ++j) totals[i][j] = fmaf(scales.offsets[2 * i + j / 2], sums[j], totals[i][j]);
    }
  }
}

template <typename C>
GPU_FUNCTION void put_total(const DeviceProduct& p, std::int64_t at, float total) {
  C* const c = static_cast<C*>(p.c) + at;
  *c = from_float<C>(p.accumulate ? total + to_float(*c) : total);
}

// Adds the warps' totals of a tile, whose first row is `first`, and writes what is within C.
GPU_FUNCTION void put_tile(const DeviceProduct& p, const Part& part, int first, const float (&totals)[2][4],
                           float* of_warps) {
  const int thread = thread_index(), lane = thread % kWarp;
  barrier();  // the tile before has been read
  GPU_UNROLL
  for (int j = 0; j < 2; ++j) {
    float* const to = of_warps + (thread / kWarp * kTileRows + lane % 4 * 2 + j) * kSumPitch + lane / 4 * 4;
    *reinterpret_cast<Vector<float, 4>*>(to) = {
        {totals[0][j], totals[0][2 + j], totals[1][j], totals[1][2 + j]}};
  }
  barrier();
  static_assert(kThreads == kTileRows * kColumns);
  const std::int64_t row = part.row + first + thread / kColumns, to = part.column + thread % kColumns;
  if (row >= part.rows_end || to >= p.n) return;
  float total = 0;
  for (int warp = 0; warp < kWarps; ++warp)
    total += of_warps[(warp * kTileRows + thread / kColumns) * kSumPitch + thread % kColumns];
  if (p.bias != nullptr) total += to_float(static_cast<const bfloat16*>(p.bias)[part.bias_offset + to]);
  const std::int64_t at = part.c_offset + row * p.ldc + to;
  p.c_dtype == DType::f32 ? put_total<float>(p, at, total) : put_total<bfloat16>(p, at, total);
}

// Blocks on a multiprocessor: two leave a thread 128 registers, which hold the totals of four tiles where a
// format has no more than a scale of two bytes.
template <DType packed, int tiles>
constexpr int kBlocksAtOnce = tiles <= 2 || (tiles == 4 && !LaneShare<packed>::kOffsets &&
                                             !LaneShare<packed>::kFactors && packed != DType::packed_fp8)
                                  ? 2
                                  : 1;

template <DType packed, int tiles>
GPU_KERNEL
#if defined(__CUDACC__)
__launch_bounds__(kThreads, kBlocksAtOnce<packed, tiles>)
#endif
    few_packed_rows(GPU_CONSTANT(ProductList) list, std::int64_t row_blocks) {
  using Sums = Vector<float, 4>;
  GPU_SHARED(Sums, of_warps, kWarps * kTileRows * kSumPitch / 4);
  const int which = list.product_of(static_cast<std::int32_t>(block_index()));
  const DeviceProduct& p = list.products[which];
  const std::int64_t index = block_index() - list.first_block[which];
  Part part;
  if (!find_part(p, index, block_index_z(), tiles * kTileRows, kColumns, row_blocks, part)) return;
  constexpr auto kBlockBytes = static_cast<std::int64_t>(size_of(packed));
  constexpr int kGroups = static_cast<int>(groups_of(packed));
  const int warp = thread_index() / kWarp, lane = thread_index() % kWarp;
  const int groups = static_cast<int>(p.terms[0].k / kGroupInputs),
            leading = static_cast<int>(p.terms[0].lda);
  // Past the last column a lane repeats the first block.
  const int output = lane / 4 * 4, block = part.column + output < p.n ? output / 16 : 0;
  const auto* const blocks = static_cast<const std::byte*>(p.terms[0].b) +
                             (part.b_offset + part.column / kBlockOutputs + block) * kBlockBytes;
  const std::int64_t row_bytes = p.terms[0].ldb * kBlockBytes;
  unsigned char* const stages = dynamic_shared<unsigned char>() + warp * kStages * kStageBytes<packed>;
  const auto copy = [&](int group, int stage) {
    if (group < groups)
      LaneShare<packed>(stages + stage * kStageBytes<packed>)
          .copy(blocks + group / kGroups * row_bytes, output % 16, group % kGroups);
    end_copies();
  };
  GPU_UNROLL
  for (int stage = 0; stage < kStages - 1; ++stage) copy(warp + stage * kWarps, stage);
  const TileRows<tiles> rows(p, part);
  std::uint32_t inputs[tiles][4] = {};
  GPU_UNROLL
  for (int t = 0; t < tiles; ++t) {
    if (t < rows.count && warp < groups) rows.load(t, leading, warp, inputs[t]);
  }
  float totals[tiles][2][4] = {};
  int stage = 0;
  GPU_NO_UNROLL
  for (int group = warp; group < groups; group += kWarps) {
    wait_for_copies<kStages - 2>();
    const LaneShare<packed> share(stages + stage * kStageBytes<packed>);
    std::uint32_t weights[2][2][4];
    share.read(weights);
    const LaneScales scales = share.scales();
    // Into what the lane has read last; it reads what it copied itself, so no thread waits for another.
    copy(group + (kStages - 1) * kWarps, (stage + kStages - 1) % kStages);
    stage = (stage + 1) % kStages;
    GPU_UNROLL
    for (int t = 0; t < tiles; ++t) {
      if (t >= rows.count) break;
      add_group<packed>(weights, scales, inputs[t], totals[t]);
      if (group + kWarps < groups) rows.load(t, leading, group + kWarps, inputs[t]);
    }
  }
  wait_for_copies<0>();
  GPU_UNROLL
  for (int t = 0; t < tiles; ++t) {
    if (t < rows.count) put_tile(p, part, t * kTileRows, totals[t], of_warps->at);
  }
}

bool is_aligned(const DeviceProduct& p) {
  const ProductTerm& term = p.terms[0];
  return are_wide({term.a, term.b}) && term.lda % kChunk == 0 && p.a_stride % kChunk == 0;
}

// Tiles of rows that a block holds: for all rows of a group, where it has no more than four times its share.
int tiles_of(const DeviceProduct& p) {
  const std::int64_t share = p.groups == Groups::rows ? divide_up(4 * p.m, p.batch) : p.m,
                     rows = std::min(p.m, share);
  return rows <= 8 ? 1 : rows <= 16 ? 2 : rows <= 32 ? 4 : 8;
}

template <DType packed>
void run_few_rows(DeviceProducts args) {
  const auto start = [&](auto kernel, int tiles) {
    launch_list(args, tiles * kTileRows, kColumns, kThreads, kWarps * kStages * kStageBytes<packed>, kernel);
  };
  switch (const int tiles = tiles_of(args.front())) {
    case 1:
      return start(few_packed_rows<packed, 1>, tiles);
    case 2:
      return start(few_packed_rows<packed, 2>, tiles);
    case 4:
      return start(few_packed_rows<packed, 4>, tiles);
    default:
      return start(few_packed_rows<packed, 8>, tiles);
  }
}

const char* refuses_one(const DeviceProduct& p) {
  const std::int64_t groups = p.groups == Groups::rows ? p.batch : 1;
  if (!is_packed(p.weight_dtype)) return "the weights are not packed";
  if (p.dtype != DType::bf16) return "the rows are not bfloat16";
  if (p.groups == Groups::depth) return "the depth is in groups";
  if (p.transpose_a || p.transpose_b) return "an operand is transposed";
  if (p.term_count > 1) return "a second term is added";
  if (p.m < kLeastRows * groups) return "it has less than two rows a group";
  if (p.m > kMostRows * groups) return "it has more than 64 rows a group";
  return is_aligned(p) ? nullptr : "rows of A, or the weights, are not aligned to 16 bytes";
}

}  // namespace

const char* few_rows_packed_refuses(DeviceProducts args) {
  return first_refusal(args, refuses_one);
}

void few_rows_packed_product(DeviceProducts args) {
  if (are_empty(args)) return;
  with_packed_type(args.front().weight_dtype,
                   [&]<DType packed>(std::integral_constant<DType, packed>) { run_few_rows<packed>(args); });
}

}  // namespace switchyard::gpu
