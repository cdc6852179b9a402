// Packed weights to dense ones. A thread takes a group of 32 inputs of an output; threads that are neighbours
// take neighbouring outputs.
#include "kernels/cuda/wide.h"
#include "kernels/packed/cuda/packed_groups.h"
#include "kernels/packed/packed_weights.h"

namespace switchyard::gpu {
namespace {

// Matrices of blocks, and of what they hold, which has no gaps.
struct PackedMatrices {
  const std::byte* blocks;
  std::int64_t rows, columns;       // of blocks, in a matrix
  std::int64_t row_stride, stride;  // blocks between rows and between matrices
  std::int64_t groups;              // of all matrices
};

template <DType packed, typename T>
GPU_KERNEL unpack_groups(PackedMatrices p, T* dense) {
  const std::int64_t i = thread_of_grid(), outputs = p.columns * kBlockOutputs;
  const std::int64_t n = i % outputs, group_row = i / outputs;  // of all matrices' rows of groups
  constexpr std::int64_t kGroups = groups_of(packed);
  if (group_row >= p.groups) return;
  const std::int64_t row = group_row / kGroups, group = group_row % kGroups;
  const std::int64_t place = row / p.rows * p.stride + row % p.rows * p.row_stride + n / kBlockOutputs;
  const std::byte* const block = p.blocks + place * static_cast<std::int64_t>(size_of(packed));
  const int output = static_cast<int>(n % kBlockOutputs);
  const GroupScales scales = scales_at<packed>(block, output, group);
  GroupNumbers<packed> numbers;
  numbers.load(block, output, group);
  T* const to = dense + group_row * kGroupInputs * outputs + n;
  GPU_UNROLL
  for (int input = 0; input < kGroupInputs; ++input) {
    const float product = scales.scales[input / 16] * numbers.number(input);
    to[input * outputs] = from_float<T>(has_offset(packed) ? rounded_sum(product, scales.offset) : product);
  }
}

}  // namespace

void unpack_weights(const UnpackArgs& args) {
  const TensorView& x = args.packed;
  const std::size_t rank = x.rank();
  if (x.size() == 0) return;
  const std::int64_t rows = x.dim(rank - 2), columns = x.dim(rank - 1);
  // Of more than three dims, without gaps, all but the last two count matrices.
  const PackedMatrices p{.blocks = x.device_address(),
                         .rows = rows,
                         .columns = columns,
                         .row_stride = x.stride(rank - 2),
                         .stride = rank == 3 ? x.stride(0) : rows * columns,
                         .groups = x.size() / columns * groups_of(x.dtype())};
  with_packed_type(x.dtype(), [&]<DType packed>(std::integral_constant<DType, packed>) {
    with_float_type(args.dense.dtype(), [&]<typename T>(T) {
      launch(threads_for(p.groups * columns * kBlockOutputs), unpack_groups<packed, T>, p,
             args.dense.device_data<T>());
    });
  });
}

}  // namespace switchyard::gpu
