// Products of few rows with packed weights, which are read as they are stored: decoding reads each weight
// for a row or for some, so memory bounds it. A block of threads makes 32 columns of C for the rows of one
// group; its warps take groups of 32 inputs in turns, a lane one column, and their sums are added in the
// order of warps. Sums are of float32 and weights are not rounded before. Twin: the weights unpacked, and
// run_product.
#include "kernels/gpu/packed_groups.h"
#include "kernels/gpu/packed_product.h"
#include "kernels/gpu/product_parts.h"
#include "kernels/gpu/wide.h"

namespace switchyard::gpu {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * kWarp, kMostRows = 8;

template <typename C>
GPU_FUNCTION void put_sum(const Product& p, std::int64_t at, float sum) {
  C* const c = static_cast<C*>(p.c) + at;
  *c = from_float<C>(p.accumulate ? sum + to_float(*c) : sum);
}

template <DType packed, typename T, int rows>
GPU_KERNEL few_rows_product(GPU_CONSTANT(Product) p, std::int64_t row_blocks) {
  GPU_SHARED(float, of_warps, kWarps* rows* kWarp);
  Part part;
  if (!find_part(p, block_index(), block_index_z(), rows, kWarp, row_blocks, part)) return;
  const int warp = thread_index() / kWarp, lane = thread_index() % kWarp;
  // Past the last column a lane repeats what one of it does.
  const std::int64_t column = part.column + lane < p.n ? part.column + lane : part.column;
  const std::byte* const blocks =
      static_cast<const std::byte*>(p.terms[0].b) +
      (part.b_offset + column / kBlockOutputs) * static_cast<std::int64_t>(size_of(packed));
  const int output = static_cast<int>(column % kBlockOutputs);
  const std::int64_t row_bytes = p.ldb * static_cast<std::int64_t>(size_of(packed));
  const T* x[rows];
  GPU_UNROLL
  for (int r = 0; r < rows; ++r) {
    const std::int64_t row = part.row + r < part.rows_end ? part.row + r : part.row;
    const std::int32_t* const lookup = p.terms[0].a_rows;
    x[r] =
        static_cast<const T*>(p.terms[0].a) + part.a_offset + (lookup == nullptr ? row : lookup[row]) * p.lda;
  }
  float sums[rows];
  GPU_UNROLL
  for (float& sum : sums) sum = 0;
  for (std::int64_t group = warp; group < p.terms[0].k / kGroupInputs; group += kWarps) {
    const std::byte* const block = blocks + group / groups_of(packed) * row_bytes;
    const std::int64_t of_block = group % groups_of(packed);
    GroupNumbers<packed> numbers;
    numbers.load(block, output, of_block);
    const GroupScales scales = scales_at<packed>(block, output, of_block);
    float products[rows][2], inputs[rows];  // of each half of the group; of all its inputs
    GPU_UNROLL
    for (int r = 0; r < rows; ++r) products[r][0] = products[r][1] = inputs[r] = 0;
    constexpr int kAtOnce = 8;
    GPU_UNROLL
    for (int first = 0; first < kGroupInputs; first += kAtOnce) {
      float weights[kAtOnce];
      GPU_UNROLL
      for (int i = 0; i < kAtOnce; ++i) weights[i] = numbers.number(first + i);
      GPU_UNROLL
      for (int r = 0; r < rows; ++r) {
        if (r > 0 && part.row + r >= part.rows_end) continue;
        float values[kAtOnce];
        load_floats<kAtOnce>(x[r] + group * kGroupInputs + first, values);
        GPU_UNROLL
        for (int i = 0; i < kAtOnce; ++i) {
          products[r][first / 16] = fmaf(values[i], weights[i], products[r][first / 16]);
          if constexpr (has_offset(packed)) inputs[r] += values[i];
        }
      }
    }
    GPU_UNROLL
    for (int r = 0; r < rows; ++r) {
      sums[r] = fmaf(scales.scales[0], products[r][0], sums[r]);
      sums[r] = fmaf(scales.scales[1], products[r][1], sums[r]);
      if constexpr (has_offset(packed)) sums[r] = fmaf(scales.offset, inputs[r], sums[r]);
    }
  }
  GPU_UNROLL
  for (int r = 0; r < rows; ++r) of_warps[(warp * rows + r) * kWarp + lane] = sums[r];
  barrier();
  for (int i = thread_index(); i < rows * kWarp; i += kThreads) {
    const std::int64_t row = part.row + i / kWarp, to = part.column + i % kWarp;
    if (row >= part.rows_end || to >= p.n) continue;
    float sum = 0;
    for (int of = 0; of < kWarps; ++of) sum += of_warps[of * rows * kWarp + i];
    if (p.bias != nullptr) sum += to_float(static_cast<const T*>(p.bias)[part.bias_offset + to]);
    const std::int64_t at = part.c_offset + row * p.ldc + to;
    p.c_dtype == DType::f32 ? put_sum<float>(p, at, sum) : put_sum<bfloat16>(p, at, sum);
  }
}

bool is_aligned(const Product& p) {
  const auto size = static_cast<std::int64_t>(size_of(p.dtype));
  return reinterpret_cast<std::uintptr_t>(p.terms[0].a) % 16 == 0 && p.lda * size % 16 == 0 &&
         p.a_stride * size % 16 == 0;
}

// Parts of at most kMostRows rows each read the weights once. Unpacking takes eight times as long, for all of
// the groups, and their product some time more.
bool has_few_rows(const Product& p) {
  const std::int64_t groups = p.groups == Groups::rows ? p.batch : 1;
  return divide_up(p.m, kMostRows) + (p.groups == Groups::rows ? groups : 0) <= 2 * groups;
}

template <DType packed, int rows>
void run_few_rows(const Product& p) {
  with_float_type(p.dtype, [&]<typename T>(T) {
    launch(product_launch(p, rows, kWarp, kThreads, 0), few_rows_product<packed, T, rows>, p,
           row_blocks_of(p, rows));
  });
}

}  // namespace

bool run_packed_product(const Product& p, DType packed) {
  if (p.transpose_a || !has_few_rows(p) || !is_aligned(p)) return false;
  if (p.m == 0 || p.n == 0 || p.batch == 0) return true;
  const bool single = p.groups == Groups::rows ? 4 * p.m <= p.batch : p.m == 1;
  with_packed_type(packed, [&]<DType type>(std::integral_constant<DType, type>) {
    single ? run_few_rows<type, 1>(p) : run_few_rows<type, kMostRows>(p);
  });
  return true;
}

}  // namespace switchyard::gpu
