// Products of few rows. A block of threads makes 32 columns of C for the rows of one group; its warps take
// groups of 32 inputs in turns, a lane one column, and their sums are added in the order of warps. Sums are
// of float32, and packed weights are not rounded before. Twins: run_product without
// it, with packed weights unpacked.
#include "kernels/cuda/wide.h"
#include "kernels/packed/cuda/packed_groups.h"
#include "kernels/product/cuda/product.h"
#include "kernels/product/cuda/product_parts.h"

namespace switchyard::gpu {
namespace {

constexpr int kWarps = 8, kThreads = kWarps * kWarp, kMostRows = 8;

// Products of one row with a group of 32 inputs of a column: with the numbers of each half, and
// the sum of the inputs.
struct GroupSums {
  float products[2] = {0, 0}, inputs = 0;
};

// A column of weights that are not packed.
template <typename T>
struct DenseColumn {
  static constexpr bool kOffsets = false;
  const T* column;
  std::int64_t leading;
  T values[kGroupInputs];

  GPU_FUNCTION DenseColumn(const DeviceProduct& p, const Part& part, std::int64_t at)
      : column(static_cast<const T*>(p.terms[0].b) + part.b_offset + at), leading(p.terms[0].ldb) {}
  GPU_FUNCTION void load(std::int64_t group) {
    const T* const from = column + group * kGroupInputs * leading;
    GPU_UNROLL
    for (int i = 0; i < kGroupInputs; ++i) values[i] = from[i * leading];
  }
  GPU_FUNCTION float number(int input) const { return to_float(values[input]); }
  GPU_FUNCTION float added(float sum, const GroupSums& of) const {
    return sum + (of.products[0] + of.products[1]);
  }
};

// A column of packed blocks.
template <DType packed>
struct PackedColumn {
  static constexpr bool kOffsets = has_offset(packed);
  static constexpr auto kBytes = static_cast<std::int64_t>(size_of(packed));
  const std::byte* blocks;
  int output;
  std::int64_t row_bytes;
  GroupNumbers<packed> numbers;
  GroupScales scales;

  GPU_FUNCTION PackedColumn(const DeviceProduct& p, const Part& part, std::int64_t at)
      : blocks(static_cast<const std::byte*>(p.terms[0].b) + (part.b_offset + at / kBlockOutputs) * kBytes),
        output(static_cast<int>(at % kBlockOutputs)),
        row_bytes(p.terms[0].ldb * kBytes) {}
  GPU_FUNCTION void load(std::int64_t group) {
    const std::byte* const block = blocks + group / groups_of(packed) * row_bytes;
    numbers.load(block, output, group % groups_of(packed));
    scales = scales_at<packed>(block, output, group % groups_of(packed));
  }
  GPU_FUNCTION float number(int input) const { return numbers.number(input); }
  GPU_FUNCTION float added(float sum, const GroupSums& of) const {
    sum = fmaf(scales.scales[0], of.products[0], sum);
    sum = fmaf(scales.scales[1], of.products[1], sum);
    return kOffsets ? fmaf(scales.offset, of.inputs, sum) : sum;
  }
};

template <typename C>
GPU_FUNCTION void put_sum(const DeviceProduct& p, std::int64_t at, float sum) {
  C* const c = static_cast<C*>(p.c) + at;
  *c = from_float<C>(p.accumulate ? sum + to_float(*c) : sum);
}

template <typename Column, typename T, int rows>
GPU_KERNEL few_rows_blocks(GPU_CONSTANT(ProductList) list, std::int64_t row_blocks) {
  GPU_SHARED(float, of_warps, kWarps* rows* kWarp);
  const int which = list.product_of(static_cast<std::int32_t>(block_index()));
  const DeviceProduct& p = list.products[which];
  const std::int64_t block = block_index() - list.first_block[which];
  Part part;
  if (!find_part(p, block, block_index_z(), rows, kWarp, row_blocks, part)) return;
  const int warp = thread_index() / kWarp, lane = thread_index() % kWarp;
  // Past the last column a lane repeats the block's first one.
  Column weights(p, part, part.column + lane < p.n ? part.column + lane : part.column);
  const T* x[rows];
  GPU_UNROLL
  for (int r = 0; r < rows; ++r) {
    const std::int64_t row = part.row + r < part.rows_end ? part.row + r : part.row;
    const std::int32_t* const lookup = p.terms[0].a_rows;
    x[r] = static_cast<const T*>(p.terms[0].a) + part.a_offset +
           (lookup == nullptr ? row : lookup[row]) * p.terms[0].lda;
  }
  float sums[rows];
  GPU_UNROLL
  for (float& sum : sums) sum = 0;
  for (std::int64_t group = warp; group < p.terms[0].k / kGroupInputs; group += kWarps) {
    weights.load(group);
    GroupSums of_rows[rows];
    constexpr int kAtOnce = 8;
    GPU_UNROLL
    for (int first = 0; first < kGroupInputs; first += kAtOnce) {
      float numbers[kAtOnce];
      GPU_UNROLL
      for (int i = 0; i < kAtOnce; ++i) numbers[i] = weights.number(first + i);
      GPU_UNROLL
      for (int r = 0; r < rows; ++r) {
        if (r > 0 && part.row + r >= part.rows_end) continue;
        float inputs[kAtOnce];
        load_floats<kAtOnce>(x[r] + group * kGroupInputs + first, inputs);
        float& product = of_rows[r].products[first / 16];
        GPU_UNROLL
        for (int i = 0; i < kAtOnce; ++i) {
          product = fmaf(inputs[i], numbers[i], product);
          if constexpr (Column::kOffsets) of_rows[r].inputs += inputs[i];
        }
      }
    }
    GPU_UNROLL
    for (int r = 0; r < rows; ++r) sums[r] = weights.added(sums[r], of_rows[r]);
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

bool is_aligned(const DeviceProduct& p) {
  const auto size = static_cast<std::int64_t>(size_of(p.dtype));
  return reinterpret_cast<std::uintptr_t>(p.terms[0].a) % 16 == 0 && p.terms[0].lda * size % 16 == 0 &&
         p.a_stride * size % 16 == 0;
}

// Parts of at most kMostRows rows each read the weights of their group. Against tensor cores, which read them
// once, that pays for one part; unpacking takes eight times as long, and of all groups.
bool has_few_rows(const DeviceProduct& p, bool packed) {
  if (p.groups == Groups::none) return p.m <= (packed ? 2 : 1) * kMostRows;
  return p.m <= (packed ? kMostRows : kMostRows / 2) * p.batch;
}

template <typename Column, typename T>
void run_few_rows(DeviceProducts args) {
  const DeviceProduct& form = args.front();
  const bool single = form.groups == Groups::rows ? 4 * form.m <= form.batch : form.m == 1;
  const auto start = [&](auto kernel, int rows) { launch_list(args, rows, kWarp, kThreads, 0, kernel); };
  single ? start(few_rows_blocks<Column, T, 1>, 1) : start(few_rows_blocks<Column, T, kMostRows>, kMostRows);
}

const char* refuses_one(const DeviceProduct& p) {
  if (p.groups == Groups::depth) return "the depth is in groups";
  if (p.transpose_a || p.transpose_b) return "an operand is transposed";
  if (p.term_count > 1) return "a second term is added";
  if (p.terms[0].k % kGroupInputs != 0) return "the depth is not a multiple of 32";
  if (!has_few_rows(p, is_packed(p.weight_dtype))) return "it has more than a few rows";
  return is_aligned(p) ? nullptr : "rows of A are not aligned to 16 bytes";
}

}  // namespace

const char* few_rows_refuses(DeviceProducts args) {
  return first_refusal(args, refuses_one);
}

void few_rows_product(DeviceProducts args) {
  if (are_empty(args)) return;
  const DeviceProduct& form = args.front();
  with_float_type(form.dtype, [&]<typename T>(T) {
    if (!is_packed(form.weight_dtype)) return run_few_rows<DenseColumn<T>, T>(args);
    with_packed_type(form.weight_dtype, [&]<DType type>(std::integral_constant<DType, type>) {
      run_few_rows<PackedColumn<type>, T>(args);
    });
  });
}

}  // namespace switchyard::gpu
