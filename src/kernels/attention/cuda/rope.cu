// Rotations, of which a block takes a token and a thread some pairs of a head,
// and the tables of their angles.
#include "kernels/attention/kernels.h"
#include "kernels/attention/rope_problem.h"
#include "kernels/cuda/portable.h"
#include "kernels/cuda/wide.h"

namespace switchyard::gpu {
namespace {

constexpr int kThreads = 128;

struct Heads {
  int heads, half;  // pairs of a head
  std::int64_t token_stride, head_stride;
  bool inverse;
};

template <typename T, int width, bool interleaved>
GPU_KERNEL rotate(const T* x, T* y, const float* cos_table, const float* sin_table, Heads p) {
  const std::int64_t token = block_index();
  const int of_head = p.half / width;
  for (int piece = thread_index(); piece < p.heads * of_head; piece += thread_count()) {
    const int head = piece / of_head, pair = piece % of_head * width;
    const std::int64_t angle = token * p.half + pair;
    const std::int64_t at = token * p.token_stride + head * p.head_stride + (interleaved ? 2 * pair : pair);
    float c[width], s[width], values[2 * width];  // the first of all pairs and then the second, or in turns
    load_floats<width>(cos_table + angle, c);
    load_floats<width>(sin_table + angle, s);
    if constexpr (interleaved && width > 1) {
      load_floats<2 * width>(x + at, values);
    } else if constexpr (interleaved) {  // one pair, aligned as an element is
      load_floats<1>(x + at, values);
      load_floats<1>(x + at + 1, values + 1);
    } else {
      load_floats<width>(x + at, values);
      load_floats<width>(x + at + p.half, values + width);
    }
    for (int i = 0; i < width; ++i) {
      float& first = values[interleaved ? 2 * i : i];
      float& second = values[interleaved ? 2 * i + 1 : i + width];
      const float a = first, b = second, sine = p.inverse ? -s[i] : s[i];
      first = a * c[i] - b * sine;
      second = b * c[i] + a * sine;
    }
    if constexpr (interleaved && width > 1) {
      store_floats<2 * width>(values, y + at);
    } else if constexpr (interleaved) {
      store_floats<1>(values, y + at);
      store_floats<1>(values + 1, y + at + 1);
    } else {
      store_floats<width>(values, y + at);
      store_floats<width>(values + width, y + at + p.half);
    }
  }
}

// Frequencies that a kernel is given by value.
struct Frequencies {
  static constexpr int kMost = 256;
  double at[kMost];
};

// The tables' columns [first, first + count), of `pairs`.
GPU_KERNEL make_tables(const std::int32_t* positions, std::int64_t tokens, Frequencies frequencies, int count,
                       std::int64_t first, std::int64_t pairs, double amplitude, PositionGrowth growth,
                       float* cos_table, float* sin_table) {
  const std::int64_t i = thread_of_grid();
  if (i >= tokens * count) return;
  const std::int64_t token = i / count, at = token * pairs + first + i % count;
  const std::int32_t position = positions[token];
  const double angle = position * frequencies.at[i % count];
  const double grown =
      growth.factor == 0 ? 1.0 : 1 + growth.factor * log(1 + floor((position + growth.offset) / growth.positions));
  cos_table[at] = static_cast<float>(cos(angle) * (amplitude * grown));
  sin_table[at] = static_cast<float>(sin(angle) * (amplitude * grown));
}

}  // namespace

void rope(const RopeArgs& args) {
  const TensorView& x = args.x;
  const std::int64_t tokens = x.dim(0);
  const Heads p{static_cast<int>(x.dim(1)), static_cast<int>(x.dim(2) / 2), x.stride(0), x.stride(1),
                args.inverse};
  const float *const cos_table = args.cos.device_data<float>(), *const sin_table =
                                                                    args.sin.device_data<float>();
  const Launch how{.blocks = x.size() > 0 ? tokens : 0, .threads = kThreads};
  with_float_type(x.dtype(), [&]<typename T>(T) {
    const T* const from = x.device_data<T>();
    T* const to = args.y.device_data<T>();
    const bool wide = p.half % kWide<T> == 0 && p.token_stride % kWide<T> == 0 &&
                      p.head_stride % kWide<T> == 0 && are_wide({from, to, cos_table, sin_table});
    with_width<T>(wide, [&](auto width) {
      launch(how, args.interleaved ? rotate<T, width.value, true> : rotate<T, width.value, false>, from, to,
             cos_table, sin_table, p);
    });
  });
}

void rope_tables(const RopeTablesArgs& args) {
  const std::int64_t tokens = args.positions.size(),
                     pairs = static_cast<std::int64_t>(args.frequencies.size());
  for (std::int64_t first = 0; first < pairs; first += Frequencies::kMost) {
    Frequencies some{};
    const auto count = static_cast<int>(std::min<std::int64_t>(pairs - first, Frequencies::kMost));
    for (int i = 0; i < count; ++i) some.at[i] = args.frequencies[static_cast<std::size_t>(first + i)];
    launch(threads_for(tokens * count), make_tables, args.positions.device_data<std::int32_t>(), tokens, some,
           count, first, pairs, args.amplitude, args.growth, args.cos.device_data<float>(),
           args.sin.device_data<float>());
  }
}

}  // namespace switchyard::gpu
