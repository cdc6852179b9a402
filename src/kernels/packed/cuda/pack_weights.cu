// Dense weights to packed ones, with the bits of the reference (packed_block.cc). A thread takes a group of
// 32 inputs of an output; threads that are neighbours take neighbouring outputs.
#include "core/half.h"
#include "kernels/cuda/rounded.h"
#include "kernels/cuda/wide.h"
#include "kernels/packed/packed_block.h"
#include "kernels/packed/packed_weights.h"

namespace switchyard::gpu {
namespace {

// A PackedGroup of kernels, with numbers as they are computed.
struct NearestGroup {
  int numbers[kGroupInputs] = {};
  std::uint32_t scale = 0;
  std::uint16_t offset = 0;
};

GPU_FUNCTION float magnitude_of(float x) {
  return x < 0 ? -x : x;
}
GPU_FUNCTION float clamped(float x, float least, float most) {
  return x < least ? least : (x > most ? most : x);
}
GPU_FUNCTION float scale_of(const NearestGroup& group) {
  return half_to_float(static_cast<std::uint16_t>(group.scale));
}
// The numbers for a scale that is no zero.
GPU_FUNCTION void divide(const float (&values)[kGroupInputs], float scale, float least, float most,
                         NearestGroup& group) {
  GPU_UNROLL
  for (int i = 0; i < kGroupInputs; ++i)
    group.numbers[i] = static_cast<int>(rintf(clamped(rounded_quotient(values[i], scale), least, most)));
}
GPU_FUNCTION float largest_magnitude(const float (&values)[kGroupInputs]) {
  float largest = 0;
  GPU_UNROLL
  for (int i = 0; i < kGroupInputs; ++i)
    largest = magnitude_of(values[i]) > largest ? magnitude_of(values[i]) : largest;
  return largest;
}

GPU_FUNCTION NearestGroup nearest_int8(const float (&values)[kGroupInputs]) {
  NearestGroup group;
  group.scale = float_to_half(rounded_quotient(largest_magnitude(values), 127));
  if (const float scale = scale_of(group); scale != 0) divide(values, scale, -127, 127, group);
  return group;
}

GPU_FUNCTION NearestGroup nearest_int4(const float (&values)[kGroupInputs]) {
  NearestGroup group;
  float extreme = 0;
  GPU_UNROLL
  for (int i = 0; i < kGroupInputs; ++i)
    extreme = magnitude_of(values[i]) > magnitude_of(extreme) ? values[i] : extreme;
  if (extreme == 0) return group;
  float fitted = 0, gain = 0;
  for (int trial = 0; trial < 17; ++trial) {
    const float inverse =
        rounded_quotient(rounded_addition(-8.0f, 0.125f * static_cast<float>(trial - 5)), extreme);
    float products = 0, squares = 0;
    GPU_UNROLL
    for (int i = 0; i < kGroupInputs; ++i) {
      const float q = rintf(clamped(rounded_product(values[i], inverse), -8, 7));
      products = rounded_addition(products, rounded_product(values[i], q));
      squares = rounded_addition(squares, rounded_product(q, q));
    }
    if (squares == 0) continue;
    const float gained = rounded_quotient(rounded_product(products, products), squares);
    if (gained > gain) {
      gain = gained;
      fitted = rounded_quotient(products, squares);
    }
  }
  group.scale = float_to_half(fitted);
  if (const float scale = scale_of(group); scale != 0) divide(values, scale, -8, 7, group);
  return group;
}

GPU_FUNCTION NearestGroup nearest_int4a(const float (&values)[kGroupInputs]) {
  NearestGroup group;
  float least = values[0], most = values[0];
  GPU_UNROLL
  for (int i = 1; i < kGroupInputs; ++i) {
    least = values[i] < least ? values[i] : least;
    most = values[i] < most ? most : values[i];  // the last of equal ones: of -0 and 0
  }
  group.offset = float_to_half(least);
  const float offset = half_to_float(group.offset);
  group.scale = float_to_half(rounded_quotient(rounded_difference(most, offset), 15));
  const float scale = scale_of(group);
  if (scale == 0 || !(magnitude_of(scale) < INFINITY)) return group;
  float above[kGroupInputs];
  GPU_UNROLL
  for (int i = 0; i < kGroupInputs; ++i) above[i] = rounded_difference(values[i], offset);
  divide(above, scale, 0, 15, group);
  return group;
}

// The nearest e2m1, ties to the even mantissa: half of the way from one magnitude to the next is a tie, which
// goes to the one with an even number.
GPU_FUNCTION int nearest_fp4(float x) {
  const float magnitude = magnitude_of(x);
  int best = 0;
  GPU_UNROLL
  for (int i = 1; i < 8; ++i) {
    const float middle =
        (fp4_to_float(static_cast<std::uint32_t>(i - 1)) + fp4_to_float(static_cast<std::uint32_t>(i))) / 2;
    if (magnitude > middle || (magnitude == middle && i % 2 == 0)) best = i;
  }
  return best | ((bits_of(x) >> 31) != 0 ? 8 : 0);
}

GPU_FUNCTION NearestGroup nearest_mxfp4(const float (&values)[kGroupInputs]) {
  NearestGroup group;
  const float largest = largest_magnitude(values);
  if (largest == 0) return group;
  constexpr int kMostExponent = 2;  // of e2m1: 6 = 1.5 · 2²
  const int exponent = static_cast<int>(bits_of(largest) >> 23) - kMostExponent;
  group.scale = static_cast<std::uint32_t>(exponent < 0 ? 0 : exponent);
  const float scale = mxfp4_scale(group.scale);
  GPU_UNROLL
  for (int i = 0; i < kGroupInputs; ++i) group.numbers[i] = nearest_fp4(rounded_quotient(values[i], scale));
  return group;
}

template <DType packed>
GPU_FUNCTION NearestGroup nearest(const float (&values)[kGroupInputs]) {
  if constexpr (packed == DType::packed_int8) return nearest_int8(values);
  if constexpr (packed == DType::packed_int4) return nearest_int4(values);
  if constexpr (packed == DType::packed_int4a) return nearest_int4a(values);
  if constexpr (packed == DType::packed_mxfp4) return nearest_mxfp4(values);
}

GPU_FUNCTION bool infinite_half(std::uint32_t half) {
  return (half & 0x7c00u) == 0x7c00u;
}

template <DType packed>
GPU_FUNCTION void write(const NearestGroup& group, std::byte* block, int output) {
  std::byte* const words = block + header_bytes(packed) + 4 * output;
  constexpr int kWords = static_cast<int>(group_bytes(packed) / kWordBytes), kEach = kGroupInputs / kWords,
                kBits = 32 / kEach;
  GPU_UNROLL
  for (int u = 0; u < kWords; ++u) {
    std::uint32_t word = 0;
    GPU_UNROLL
    for (int i = 0; i < kEach; ++i) {
      const int input = has_bytes(packed) ? i : i / 2 + 4 * (i % 2);
      word |= (static_cast<std::uint32_t>(group.numbers[kEach * u + input]) & ((1u << kBits) - 1))
              << kBits * i;
    }
    *reinterpret_cast<std::uint32_t*>(words + u * kWordBytes) = word;
  }
  if constexpr (packed == DType::packed_mxfp4) {
    block[output] = static_cast<std::byte>(group.scale);
  } else {
    auto* const halves = reinterpret_cast<std::uint16_t*>(block);
    halves[output] = static_cast<std::uint16_t>(group.scale);
    if constexpr (has_offset(packed)) halves[kBlockOutputs + output] = group.offset;
  }
}

// Counts the groups that cannot be packed in `infinite`.
template <DType packed, typename T>
GPU_KERNEL pack_groups(const T* dense, std::int64_t outputs, std::int64_t groups, std::byte* blocks,
                       std::int32_t* infinite) {
  const std::int64_t i = thread_of_grid();
  if (i >= groups) return;
  const std::int64_t n = i % outputs, row = i / outputs;
  const T* const from = dense + row * kGroupInputs * outputs + n;
  float values[kGroupInputs];
  bool finite = true;
  GPU_UNROLL
  for (int input = 0; input < kGroupInputs; ++input) {
    values[input] = to_float(from[input * outputs]);
    finite = finite && magnitude_of(values[input]) < INFINITY;
  }
  if (finite) {
    const NearestGroup group = nearest<packed>(values);
    finite = packed == DType::packed_mxfp4 || !(infinite_half(group.scale) || infinite_half(group.offset));
    const std::int64_t place = row * (outputs / kBlockOutputs) + n / kBlockOutputs;
    write<packed>(group, blocks + place * static_cast<std::int64_t>(size_of(packed)),
                  static_cast<int>(n % kBlockOutputs));
  }
  if (!finite) atomic_add(infinite, 1);
}

}  // namespace

void pack_weights(const PackArgs& args, const TensorView& infinite) {
  const TensorView& x = args.packed;
  if (x.size() == 0) return;
  const std::int64_t outputs = args.dense.dim(args.dense.rank() - 1), groups = x.size() * kBlockOutputs;
  with_packed_type(x.dtype(), [&]<DType packed>(std::integral_constant<DType, packed>) {
    if constexpr (packed_format(packed).packable) {
      static_assert(groups_of(packed) == 1 && high_bits(packed) == 0, "a thread writes a group of a block");
      with_float_type(args.dense.dtype(), [&]<typename T>(T) {
        launch(threads_for(groups), pack_groups<packed, T>, args.dense.device_data<T>(), outputs, groups,
               x.device_address(), infinite.device_data<std::int32_t>());
      });
    }
  });
}

}  // namespace switchyard::gpu
