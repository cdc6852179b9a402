// Flat operations, and the gated activation: a thread takes neighbours of 16 bytes, a block of threads as
// many elements in a row.
#include "kernels/cuda/portable.h"
#include "kernels/cuda/wide.h"
#include "kernels/pointwise/cuda/swiglu.h"
#include "kernels/pointwise/elementwise_problem.h"

namespace switchyard::gpu {
namespace {

constexpr int kElementwiseThreads = 256, kAtOnce = 8;  // elements that a thread takes where that fits

// Of `count` elements, `width` a thread.
Launch flat(std::int64_t count, int width) {
  return {.blocks = divide_up(divide_up(count, width), kElementwiseThreads), .threads = kElementwiseThreads};
}

// Calls body(width): of kAtOnce where rows of `columns` elements are multiples of it, and
// all aligned to 16 bytes.
template <typename Body>
void with_elements_at_once(std::int64_t columns, std::initializer_list<const void*> addresses,
                           const Body& body) {
  if (columns % kAtOnce == 0 && are_wide(addresses))
    body(std::integral_constant<int, kAtOnce>());
  else
    body(std::integral_constant<int, 1>());
}

// a is added to row by row, where `columns` is the length of b's; else b is as long.
template <typename Out, typename B, int width>
GPU_KERNEL add_elements(const Out* a, const B* b, Out* out, std::int64_t count, std::int64_t columns) {
  const std::int64_t i = thread_of_grid() * width;
  if (i >= count) return;
  float x[width], y[width];
  load_floats<width>(a + i, x);
  load_floats<width>(b + (columns > 0 ? i % columns : i), y);
  for (int j = 0; j < width; ++j) x[j] += y[j];
  store_floats<width>(x, out + i);
}

template <typename T, int width>
GPU_KERNEL scale_elements(const T* x, float factor, T* out, std::int64_t count) {
  const std::int64_t i = thread_of_grid() * width;
  if (i >= count) return;
  float values[width];
  load_floats<width>(x + i, values);
  for (int j = 0; j < width; ++j) values[j] *= factor;
  store_floats<width>(values, out + i);
}

template <typename T, typename Out, int width>
GPU_KERNEL convert_elements(const T* x, Out* out, std::int64_t count, std::int64_t columns,
                            std::int64_t stride) {
  const std::int64_t i = thread_of_grid() * width;
  if (i >= count) return;
  float values[width];
  load_floats<width>(x + i, values);
  store_floats<width>(values, out + (columns == stride ? i : i / columns * stride + i % columns));
}

template <typename T, int width>
GPU_KERNEL swiglu_elements(const T* gate, const T* up, const float* weights, T* hidden, std::int64_t count,
                           std::int64_t columns) {
  const std::int64_t i = thread_of_grid() * width;
  if (i >= count) return;
  const float w = weights == nullptr ? 1.0f : weights[i / columns];
  float g[width], u[width];
  load_floats<width>(gate + i, g);
  load_floats<width>(up + i, u);
  for (int j = 0; j < width; ++j) g[j] = swiglu_of(g[j], u[j], w);
  store_floats<width>(g, hidden + i);
}

// A block takes a row, for its weight's gradient is a sum over the row.
template <typename T, int width>
GPU_KERNEL swiglu_backward_rows(const T* gate, const T* up, const float* weights, const T* dhidden, T* dgate,
                                T* dup, float* dweights, std::int64_t columns) {
  GPU_SHARED(float, scratch, kElementwiseThreads / kWarp);
  const std::int64_t row = block_index();
  const float w = weights == nullptr ? 1.0f : weights[row];
  float dw = 0;
  for (std::int64_t i = row * columns + thread_index() * width; i < (row + 1) * columns;
       i += thread_count() * width) {
    float g[width], u[width], dh[width];
    load_floats<width>(gate + i, g);
    load_floats<width>(up + i, u);
    load_floats<width>(dhidden + i, dh);
    for (int j = 0; j < width; ++j) {
      const SwigluGradients gradients = swiglu_gradients(g[j], u[j], w, dh[j]);
      dw += gradients.weight;
      g[j] = gradients.gate;
      u[j] = gradients.up;
    }
    store_floats<width>(g, dgate + i);
    store_floats<width>(u, dup + i);
  }
  if (dweights == nullptr) return;  // all threads
  dw = block_sum(dw, scratch);
  if (thread_index() == 0) dweights[row] = dw;
}

}  // namespace

void add(const FlatArgs& args) {
  const TensorView &a = args.a, &b = args.b, &out = args.out;
  with_float_type(out.dtype(), [&]<typename Out>(Out) {
    with_float_type(b.dtype(), [&]<typename B>(B) {
      const Out* const x = a.device_data<Out>();
      const B* const y = b.device_data<B>();
      Out* const to = out.device_data<Out>();
      with_elements_at_once(out.size(), {x, y, to}, [&](auto width) {
        launch(flat(out.size(), width()), add_elements<Out, B, width()>, x, y, to, out.size(), 0);
      });
    });
  });
}

void add_to_rows(const FlatArgs& args) {
  const TensorView &rows = args.a, &row = args.b, &out = args.out;
  with_float_type(out.dtype(), [&]<typename T>(T) {
    const T *const x = rows.device_data<T>(), *const y = row.device_data<T>();
    T* const to = out.device_data<T>();
    with_elements_at_once(row.size(), {x, y, to}, [&](auto width) {
      launch(flat(out.size(), width()), add_elements<T, T, width()>, x, y, to, out.size(), row.size());
    });
  });
}

void scale(const FlatArgs& args) {
  const TensorView &x = args.a, &out = args.out;
  with_float_type(x.dtype(), [&]<typename T>(T) {
    const T* const from = x.device_data<T>();
    T* const to = out.device_data<T>();
    with_elements_at_once(x.size(), {from, to}, [&](auto width) {
      launch(flat(x.size(), width()), scale_elements<T, width()>, from, args.factor, to, x.size());
    });
  });
}

void convert(const FlatArgs& args) {
  const TensorView &x = args.a, &out = args.out;
  const std::int64_t count = x.size();
  if (count == 0) return;
  if (x.dtype() == out.dtype() && out.is_contiguous()) return copy(x, out);
  const bool rows = !out.is_contiguous();
  const std::int64_t columns = rows ? out.dim(1) : count, stride = rows ? out.stride(0) : count;
  with_float_type(x.dtype(), [&]<typename T>(T) {
    with_float_type(out.dtype(), [&]<typename Out>(Out) {
      const T* const from = x.device_data<T>();
      Out* const to = out.device_data<Out>();
      const bool whole_rows = stride % kAtOnce == 0;
      with_elements_at_once(whole_rows ? columns : 1, {from, to}, [&](auto width) {
        launch(flat(count, width()), convert_elements<T, Out, width()>, from, to, count, columns, stride);
      });
    });
  });
}

void swiglu(const SwigluArgs& args) {
  const std::int64_t columns = args.gate.shape().back(), count = args.gate.size();
  const float* const weights = args.row_weights.device_data<float>();
  with_float_type(args.gate.dtype(), [&]<typename T>(T) {
    const T *const gate = args.gate.device_data<T>(), *const up = args.up.device_data<T>();
    T* const hidden = args.hidden.device_data<T>();
    with_elements_at_once(columns, {gate, up, hidden}, [&](auto width) {
      launch(flat(count, width()), swiglu_elements<T, width()>, gate, up, weights, hidden, count, columns);
    });
  });
}

void swiglu_backward(const SwigluBackwardArgs& args) {
  const std::int64_t columns = args.gate.shape().back();
  std::int64_t rows = 1;  // those without columns have a gradient of their weight, 0
  for (std::size_t i = 0; i + 1 < args.gate.rank(); ++i) rows *= args.gate.dim(i);
  with_float_type(args.gate.dtype(), [&]<typename T>(T) {
    const T *const gate = args.gate.device_data<T>(), *const up = args.up.device_data<T>(),
                   *const dhidden = args.dhidden.device_data<T>();
    T *const dgate = args.dgate.device_data<T>(), *const dup = args.dup.device_data<T>();
    with_elements_at_once(columns, {gate, up, dhidden, dgate, dup}, [&](auto width) {
      launch({.blocks = rows, .threads = kElementwiseThreads}, swiglu_backward_rows<T, width()>, gate, up,
             args.row_weights.device_data<float>(), dhidden, dgate, dup,
             args.drow_weights.device_data<float>(), columns);
    });
  });
}

}  // namespace switchyard::gpu
