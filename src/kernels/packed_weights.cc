#include "kernels/packed_weights.h"

#include "core/error.h"
#include "kernels/simd_list.h"

namespace switchyard {
namespace {

const char* refuse_mxfp4(const BlockRows& rows) {
  return rows.packed == DType::packed_mxfp4 ? "it does not pack mxfp4" : nullptr;
}

constexpr Implementation<BlockRowsKernel, BlockRows> kPack[] = {
#if defined(__x86_64__)
    {"avx512", Isa::avx512, cpu::pack_block_rows_avx512, refuse_mxfp4},
    {"avx2", Isa::avx2, cpu::pack_block_rows_avx2, refuse_mxfp4},
#endif
    {"ref", Isa::ref, ref::pack_block_rows},
};
constexpr Implementation<BlockRowsKernel, BlockRows> kUnpack[] = {SWITCHYARD_SIMD_LIST(unpack_block_rows)};

// All matrices of the views are one: rows of blocks follow each other without gaps.
BlockRows rows_of(const char* op, const TensorView& packed, const TensorView& dense) {
  const std::size_t rank = packed.rank();
  CHECK(is_packed(packed.dtype()) && is_float(dense.dtype()), "[{}] {} and {}", op, name_of(packed.dtype()),
        name_of(dense.dtype()));
  CHECK(rank >= 2 && unpacked_shape(packed.shape()) == dense.shape() && packed.is_contiguous() &&
            dense.is_contiguous(),
        "[{}] blocks {} and values {}", op, to_string(packed.shape()), to_string(dense.shape()));
  const std::int64_t columns = packed.dim(rank - 1);
  return {.packed = packed.dtype(),
          .blocks = packed.kernel_address(),
          .stride = columns,
          .columns = columns,
          .dtype = dense.dtype(),
          .dense = dense.kernel_address(),
          .leading = dense.dim(rank - 1)};
}

void run(ThreadPool& pool, BlockRowsKernel* kernel, const BlockRows& rows, const TensorView& packed) {
  if (packed.size() == 0) return;
  pool.for_range(packed.size() / rows.columns, 1,
                 [&](std::int64_t begin, std::int64_t end) { kernel(rows, begin, end); });
}

Work work_of(const char* op, const TensorView& packed, const TensorView& dense) {
  return {op, dense.dtype(), 0, static_cast<double>(packed.bytes() + dense.bytes())};
}

}  // namespace

Shape unpacked_shape(const Shape& blocks) {
  CHECK(blocks.size() >= 2, "blocks of {} dims", blocks.size());
  Shape shape = blocks;
  shape[shape.size() - 2] *= kBlockInputs;
  shape[shape.size() - 1] *= kBlockOutputs;
  return shape;
}

void pack_weights(ThreadPool& pool, const PackArgs& args) {
  const BlockRows rows = rows_of("pack_weights", args.packed, args.dense);
  if (pool.skips(work_of("pack_weights", args.packed, args.dense))) return;
  run(pool, choose("pack_weights", kPack, rows), rows, args.packed);
}

void unpack_weights(ThreadPool& pool, const UnpackArgs& args) {
  const BlockRows rows = rows_of("unpack_weights", args.packed, args.dense);
  if (pool.skips(work_of("unpack_weights", args.packed, args.dense))) return;
  run(pool, unpack_kernel(rows), rows, args.packed);
}

BlockRowsKernel* unpack_kernel(const BlockRows& rows) {
  return choose("unpack_weights", kUnpack, rows);
}

}  // namespace switchyard
