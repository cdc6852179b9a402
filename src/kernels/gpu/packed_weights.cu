// Packed weights to dense ones. A thread takes a group of 32 inputs of an output; threads that are neighbours
// take neighbouring outputs.
#include "core/e4m3.h"
#include "core/half.h"
#include "kernels/gpu/code.h"
#include "kernels/gpu/kernels.h"
#include "kernels/gpu/wide.h"
#include "kernels/packed_block.h"
#include "kernels/packed_weights.h"

namespace switchyard::gpu {
namespace {

// Matrices of blocks, and of what they hold, which has no gaps.
struct PackedMatrices {
  const std::byte* blocks;
  std::int64_t rows, columns;       // of blocks, in a matrix
  std::int64_t row_stride, stride;  // blocks between rows and between matrices
  std::int64_t groups;              // of all matrices
};

GPU_FUNCTION std::uint32_t word_at(const std::byte* at) {
  return *reinterpret_cast<const std::uint32_t*>(at);
}
GPU_FUNCTION float half_at(const std::byte* block, std::int64_t i) {
  return half_to_float(*reinterpret_cast<const std::uint16_t*>(block + 2 * i));
}
GPU_FUNCTION int byte_at(const std::byte* at) {
  return *reinterpret_cast<const std::uint8_t*>(at);
}

// What numbers of a group of an output are multiplied by, in each half, and what is then added.
struct GroupScales {
  float scales[2];
  float offset;
};
template <DType packed>
GPU_FUNCTION GroupScales scales_at(const std::byte* block, int output, std::int64_t group) {
  if constexpr (packed == DType::packed_mxfp4) {
    const float scale = mxfp4_scale(static_cast<std::uint32_t>(byte_at(block + output)));
    return {{scale, scale}, 0};
  } else if constexpr (packed == DType::packed_fp8) {
    const float scale = float_of_bits(word_at(block + 4 * output));
    return {{scale, scale}, 0};
  } else {
    const float both = half_at(block, output);
    GroupScales result{{both, both}, 0};
    if constexpr (has_offset(packed)) result.offset = half_at(block, kBlockOutputs + output);
    if constexpr (is_k_quant(packed)) {
      const std::byte* const factors = block + scale_factors_at(packed, group) + output;
      for (int half = 0; half < 2; ++half) {
        const int factor = byte_at(factors + (scales_of(packed) == 2 ? half * kBlockOutputs : 0));
        result.scales[half] *= static_cast<float>(
            packed == DType::packed_q6_k ? static_cast<std::int8_t>(static_cast<std::uint8_t>(factor))
                                         : factor);
      }
      if constexpr (has_offset(packed))
        result.offset =
            -(result.offset * static_cast<float>(byte_at(block + offset_factors_at(packed, group) + output)));
    }
    return result;
  }
}

// The value of the number `number` as it is stored: a byte, or its bits from below.
template <DType packed>
GPU_FUNCTION float value_of_number(std::uint32_t number, const GroupScales& of, int half) {
  if constexpr (packed == DType::packed_mxfp4) return of.scales[0] * fp4_to_float(number);
  if constexpr (packed == DType::packed_fp8)
    return of.scales[0] * e4m3_to_float(static_cast<std::uint8_t>(number));
  int q = static_cast<int>(number);
  if constexpr (packed == DType::packed_int8) q = static_cast<std::int8_t>(number);
  if constexpr (packed == DType::packed_int4) q = number >= 8 ? q - 16 : q;
  if constexpr (packed == DType::packed_q6_k) q -= 32;
  const float product = of.scales[half] * static_cast<float>(q);
  if constexpr (has_offset(packed)) return rounded_sum(product, of.offset);
  return product;
}

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
  const std::byte* const words = block + header_bytes(packed) + group * group_bytes(packed) + 4 * output;
  T* const to = dense + group_row * kGroupInputs * outputs + n;
  const auto put = [&](int input, std::uint32_t number) {
    to[input * outputs] = from_float<T>(value_of_number<packed>(number, scales, input / 16));
  };
  if constexpr (has_bytes(packed)) {
    GPU_UNROLL
    for (int u = 0; u < 8; ++u) {
      const std::uint32_t word = word_at(words + u * kWordBytes);
      GPU_UNROLL
      for (int j = 0; j < 4; ++j) put(4 * u + j, word >> 8 * j & 255u);
    }
  } else {
    constexpr int kHigh = high_bits(packed);
    GPU_UNROLL
    for (int u = 0; u < 4; ++u) {
      const std::uint32_t word = word_at(words + u * kWordBytes);
      std::uint32_t upper = 0;
      if constexpr (kHigh > 0)
        upper = word_at(words + (4 + u * kHigh / 4) * kWordBytes) >> u * 8 * kHigh % 32;
      GPU_UNROLL
      for (int j = 0; j < 8; ++j) {
        const std::uint32_t high = upper >> j * kHigh & ((1u << kHigh) - 1u);
        put(8 * u + j / 2 + 4 * (j % 2), (word >> 4 * j & 15u) | high << 4);
      }
    }
  }
}

template <typename Body>
void with_packed_type(DType packed, const Body& body) {
  const auto take = [&]<DType type>(std::integral_constant<DType, type> constant) {
    if (packed == type) body(constant);
  };
  CHECK(is_packed(packed), "blocks of {}", name_of(packed));
  take(std::integral_constant<DType, DType::packed_int8>());
  take(std::integral_constant<DType, DType::packed_int4>());
  take(std::integral_constant<DType, DType::packed_int4a>());
  take(std::integral_constant<DType, DType::packed_mxfp4>());
  take(std::integral_constant<DType, DType::packed_int5a>());
  take(std::integral_constant<DType, DType::packed_q4_k>());
  take(std::integral_constant<DType, DType::packed_q5_k>());
  take(std::integral_constant<DType, DType::packed_q6_k>());
  take(std::integral_constant<DType, DType::packed_fp8>());
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
