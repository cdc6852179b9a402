// Dense weights to blocks of a packed type (kernels/packed/packed_block.h), and back.
#pragma once

#include "core/tensor_view.h"
#include "core/thread_pool.h"

namespace switchyard {

// packed = the blocks nearest to `dense`, group by group; false, and anything in `packed`, where a value is
// no finite number, of a type that packed_dtype() names. Inputs are the last dim but one, a multiple of 32;
// outputs the last, a multiple of 16 (both CHECKed). Neither view has gaps. A GPU gives the host's bits; the
// host waits for the GPU.
struct PackArgs {
  TensorView dense;   // [..., in, out] f32 or bf16
  TensorView packed;  // [..., in / block_inputs(), out / 16] of a packed type
};
bool pack_weights(ThreadPool& pool, const PackArgs& args);

// dense = the values of the blocks, rounded once where it is bf16.
struct UnpackArgs {
  TensorView packed;  // [..., in / block_inputs(), out / 16] of a packed type
  TensorView dense;   // [..., in, out] f32 or bf16
};
void unpack_weights(ThreadPool& pool, const UnpackArgs& args);

// The shape of the dense weight of packed blocks [..., a, b]: the last two dims times block_inputs() and 16.
Shape unpacked_shape(DType packed, const Shape& blocks);

// Rows of blocks: row r has `columns` of them, from blocks + r · stride on, and the dense rows
// from r · block_inputs() on.
struct BlockRows {
  DType packed;
  std::byte* blocks;
  std::int64_t stride;  // blocks between rows
  std::int64_t columns;
  DType dtype;  // of the dense rows
  void* dense;
  std::int64_t leading;  // elements between dense rows
};
// Rows [begin, end).
using BlockRowsKernel = void(const BlockRows& rows, std::int64_t begin, std::int64_t end);
// The implementation that unpacks, for those who unpack a piece at a time inside a loop of their own.
BlockRowsKernel* unpack_kernel(DType packed, DType dense);

namespace ref {
BlockRowsKernel pack_block_rows;
BlockRowsKernel unpack_block_rows;
}  // namespace ref
namespace cpu {
BlockRowsKernel pack_block_rows_avx2;
BlockRowsKernel pack_block_rows_avx512;
BlockRowsKernel unpack_block_rows_avx2;
BlockRowsKernel unpack_block_rows_avx512;
}  // namespace cpu

namespace gpu {
// Adds to `infinite`, i32 [1], the number of groups that it cannot pack.
void pack_weights(const PackArgs& args, const TensorView& infinite);
void unpack_weights(const UnpackArgs& args);
}  // namespace gpu

}  // namespace switchyard
