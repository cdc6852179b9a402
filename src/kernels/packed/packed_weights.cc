#include "kernels/packed/packed_weights.h"

#include <atomic>
#include <bit>
#include <cstring>
#include <type_traits>

#include "core/error.h"
#include "core/tensor.h"
#include "kernels/cuda/workspace.h"
#include "kernels/packed/packed_block.h"
#include "kernels/registry/kernel.h"
#include "kernels/registry/simd_rows.h"

namespace switchyard {
namespace {

// pack_weights' arguments, and where it says that all values and scales are finite.
struct PackJob {
  TensorView dense, packed;
  bool* finite;
};

const char* refuse_mxfp4(const PackJob& job) {
  return job.packed.dtype() == DType::packed_mxfp4 ? "it does not pack mxfp4" : nullptr;
}

// For unpack_kernel: blocks that another kernel's loop unpacks.
constexpr InnerImplementation<BlockRowsKernel, BlockRows> kUnpackInLoops[] = {
    SWITCHYARD_SIMD_INNER(unpack_block_rows)};

// All matrices of the views are one: rows of blocks follow each other without gaps.
BlockRows rows_of(const TensorView& packed, const TensorView& dense) {
  const std::int64_t columns = packed.dim(packed.rank() - 1);
  return {.packed = packed.dtype(),
          .blocks = packed.kernel_address(),
          .stride = columns,
          .columns = columns,
          .dtype = dense.dtype(),
          .dense = dense.kernel_address(),
          .leading = dense.dim(packed.rank() - 1)};
}

void check(const char* op, const TensorView& packed, const TensorView& dense) {
  const std::size_t rank = packed.rank();
  CHECK(is_packed(packed.dtype()) && is_float(dense.dtype()), "[{}] {} and {}", op, name_of(packed.dtype()),
        name_of(dense.dtype()));
  CHECK(rank >= 2 && unpacked_shape(packed.dtype(), packed.shape()) == dense.shape() &&
            packed.is_contiguous() && dense.is_contiguous(),
        "[{}] blocks {} and values {}", op, to_string(packed.shape()), to_string(dense.shape()));
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
  if (packed_format(rows.packed).scale != PackedScale::half) return true;
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

template <BlockRowsKernel* kernel>
void pack_rows(ThreadPool& pool, const PackJob& job) {
  if (job.packed.size() == 0) return;
  const BlockRows rows = rows_of(job.packed, job.dense);
  std::atomic<bool> finite{true};
  pool.for_range(job.packed.size() / rows.columns, 1, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t row = block_inputs(rows.packed) * rows.leading;
    const bool all =
        rows.dtype == DType::f32
            ? all_finite(static_cast<const float*>(rows.dense) + begin * row, (end - begin) * row)
            : all_finite(static_cast<const bfloat16*>(rows.dense) + begin * row, (end - begin) * row);
    if (all) kernel(rows, begin, end);
    if (!all || !finite_scales(rows, begin, end)) finite = false;
  });
  *job.finite = finite;
}

template <BlockRowsKernel* kernel>
void unpack_rows(ThreadPool& pool, const UnpackArgs& args) {
  if (args.packed.size() == 0) return;
  const BlockRows rows = rows_of(args.packed, args.dense);
  pool.for_range(args.packed.size() / rows.columns, 1,
                 [&](std::int64_t begin, std::int64_t end) { kernel(rows, begin, end); });
}

template <typename Args>
Work work_of(const Args& args) {
  return {.dtype = args.dense.dtype(),
          .bytes = static_cast<double>(args.packed.bytes() + args.dense.bytes())};
}

void pack_on_gpu(const PackJob& job) {
  const gpu::Workspace there(job.packed, sizeof(std::int32_t));
  const TensorView infinite = there.view(DType::i32, {1});
  std::int32_t count = 0;
  const TensorView here = TensorView::of_host(&count, {1});
  copy(here, infinite);
  gpu::pack_weights({job.dense, job.packed}, infinite);
  copy(infinite, here);
  *job.finite = count == 0;
}

constexpr Implementation<PackJob> kPacks[] = {
    {"cuda", Gpu::any, pack_on_gpu},
#if defined(__x86_64__)
    {"avx512", Isa::avx512, pack_rows<cpu::pack_block_rows_avx512>, refuse_mxfp4},
    {"avx2", Isa::avx2, pack_rows<cpu::pack_block_rows_avx2>, refuse_mxfp4},
#endif
    {"ref", Isa::ref, pack_rows<ref::pack_block_rows>},
};
constexpr Implementation<UnpackArgs> kUnpacks[] = {{"cuda", Gpu::any, gpu::unpack_weights},
                                                   SWITCHYARD_SIMD_ROWS(unpack_rows, unpack_block_rows)};
constexpr Kernel<PackJob> kPack{"pack_weights", work_of<PackJob>, &PackJob::packed, kPacks};
constexpr Kernel<UnpackArgs> kUnpack{"unpack_weights", work_of<UnpackArgs>, &UnpackArgs::packed, kUnpacks};

}  // namespace

Shape unpacked_shape(DType packed, const Shape& blocks) {
  CHECK(blocks.size() >= 2, "blocks of {} dims", blocks.size());
  Shape shape = blocks;
  shape[shape.size() - 2] *= block_inputs(packed);
  shape[shape.size() - 1] *= kBlockOutputs;
  return shape;
}

bool pack_weights(ThreadPool& pool, const PackArgs& args) {
  check("pack_weights", args.packed, args.dense);
  CHECK(packed_format(args.packed.dtype()).packable, "[pack_weights] {}", name_of(args.packed.dtype()));
  bool finite = true;
  run(pool, kPack, {args.dense, args.packed, &finite});
  return finite;
}

void unpack_weights(ThreadPool& pool, const UnpackArgs& args) {
  check("unpack_weights", args.packed, args.dense);
  run(pool, kUnpack, args);
}

BlockRowsKernel* unpack_kernel(DType packed, DType dense) {
  BlockRows rows{};
  rows.packed = packed;
  rows.dtype = dense;
  return choose("unpack_weights", kUnpackInLoops, rows);
}

}  // namespace switchyard
