#include "kernels/packed_weights.h"

#include <atomic>
#include <bit>
#include <cstring>
#include <type_traits>

#include "core/error.h"
#include "kernels/gpu/kernels.h"
#include "kernels/packed_block.h"
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
  CHECK(rank >= 2 && unpacked_shape(packed.dtype(), packed.shape()) == dense.shape() &&
            packed.is_contiguous() && dense.is_contiguous(),
        "[{}] blocks {} and values {}", op, to_string(packed.shape()), to_string(dense.shape()));
  const std::int64_t columns = packed.dim(rank - 1);
  return {.packed = packed.dtype(),
          .blocks = packed.device_address(),
          .stride = columns,
          .columns = columns,
          .dtype = dense.dtype(),
          .dense = dense.device_address(),
          .leading = dense.dim(rank - 1)};
}

// By the exponents alone, so that no instruction set is needed.
template <typename T>
bool all_finite(const T* x, std::int64_t count) {
  using Bits = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint16_t>;
  constexpr Bits kExponent = sizeof(T) == 4 ? Bits(0x7f800000u) : Bits(0x7f80u);
  bool finite = true;
  for (std::int64_t i = 0; i < count; ++i) finite &= (std::bit_cast<Bits>(x[i]) & kExponent) != kExponent;
  return finite;
}

// True where the float16 scales and offsets of these rows' blocks are finite. A value that is too large for
// float16 makes the scale of its group infinite.
bool finite_scales(const BlockRows& rows, std::int64_t begin, std::int64_t end) {
  if (rows.packed == DType::packed_mxfp4) return true;  // exponents
  constexpr unsigned kExponent = 0x7c00;
  const std::int64_t halves = header_bytes(rows.packed) / 2;
  bool finite = true;
  for (std::int64_t row = begin; row < end; ++row) {
    const std::byte* block =
        rows.blocks + row * rows.stride * static_cast<std::int64_t>(size_of(rows.packed));
    for (std::int64_t i = 0; i < rows.columns; ++i, block += size_of(rows.packed)) {
      for (std::int64_t h = 0; h < halves; ++h) {
        std::uint16_t half = 0;
        std::memcpy(&half, block + 2 * h, sizeof half);
        finite &= (half & kExponent) != kExponent;
      }
    }
  }
  return finite;
}

Work work_of(const char* op, const TensorView& packed, const TensorView& dense) {
  return {op, dense.dtype(), 0, static_cast<double>(packed.bytes() + dense.bytes())};
}

}  // namespace

Shape unpacked_shape(DType packed, const Shape& blocks) {
  CHECK(blocks.size() >= 2, "blocks of {} dims", blocks.size());
  Shape shape = blocks;
  shape[shape.size() - 2] *= block_inputs(packed);
  shape[shape.size() - 1] *= kBlockOutputs;
  return shape;
}

bool pack_weights(ThreadPool& pool, const PackArgs& args) {
  const BlockRows rows = rows_of("pack_weights", args.packed, args.dense);
  if (pool.skips(work_of("pack_weights", args.packed, args.dense)) || args.packed.size() == 0) return true;
  CHECK(packed_dtype(name_of(args.packed.dtype())), "[pack_weights] {}", name_of(args.packed.dtype()));
  if (args.packed.on_gpu()) no_gpu_kernel(args.packed);
  BlockRowsKernel* const pack = choose("pack_weights", kPack, rows);
  std::atomic<bool> finite{true};
  pool.for_range(args.packed.size() / rows.columns, 1, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t row = block_inputs(rows.packed) * rows.leading;
    const bool all =
        rows.dtype == DType::f32
            ? all_finite(static_cast<const float*>(rows.dense) + begin * row, (end - begin) * row)
            : all_finite(static_cast<const bfloat16*>(rows.dense) + begin * row, (end - begin) * row);
    if (all) pack(rows, begin, end);
    if (!all || !finite_scales(rows, begin, end)) finite = false;
  });
  return finite;
}

void unpack_weights(ThreadPool& pool, const UnpackArgs& args) {
  const BlockRows rows = rows_of("unpack_weights", args.packed, args.dense);
  if (pool.skips(work_of("unpack_weights", args.packed, args.dense))) return;
  if (args.packed.size() == 0) return;
  if (args.packed.on_gpu()) return gpu::unpack_weights(args);
  BlockRowsKernel* const unpack = unpack_kernel(rows.packed, rows.dtype);
  pool.for_range(args.packed.size() / rows.columns, 1,
                 [&](std::int64_t begin, std::int64_t end) { unpack(rows, begin, end); });
}

BlockRowsKernel* unpack_kernel(DType packed, DType dense) {
  BlockRows rows{};
  rows.packed = packed;
  rows.dtype = dense;
  return choose("unpack_weights", kUnpack, rows);
}

}  // namespace switchyard
