// Flat operations, and the gated activation: a thread takes neighbours of 16 bytes, a block of threads as
// many elements in a row.
#include "kernels/elementwise.h"
#include "kernels/gpu/code.h"
#include "kernels/gpu/kernels.h"

namespace switchyard::gpu {
namespace {

constexpr int kThreads = 256;

GPU_FUNCTION std::int64_t global_thread() {
  return block_index() * thread_count() + thread_index();
}

// Of `count` elements, a thread each.
Launch flat(std::int64_t count) {
  return {.blocks = divide_up(count, kThreads), .threads = kThreads};
}

// a is added to row by row, where `columns` is the length of b's; else b is as long.
template <typename Out, typename B>
GPU_KERNEL add_elements(const Out* a, const B* b, Out* out, std::int64_t count, std::int64_t columns) {
  const std::int64_t i = global_thread();
  if (i < count) out[i] = from_float<Out>(to_float(a[i]) + to_float(b[columns > 0 ? i % columns : i]));
}

template <typename T>
GPU_KERNEL scale_elements(const T* x, float factor, T* out, std::int64_t count) {
  const std::int64_t i = global_thread();
  if (i < count) out[i] = from_float<T>(to_float(x[i]) * factor);
}

template <typename T, typename Out>
GPU_KERNEL convert_elements(const T* x, Out* out, std::int64_t count, std::int64_t columns,
                            std::int64_t stride) {
  const std::int64_t i = global_thread();
  if (i < count) out[i / columns * stride + i % columns] = from_float<Out>(to_float(x[i]));
}

GPU_FUNCTION float sigmoid(float x) {
  return 1.0f / (1.0f + expf(-x));
}

template <typename T>
GPU_KERNEL swiglu_elements(const T* gate, const T* up, const float* weights, T* hidden, std::int64_t count,
                           std::int64_t columns) {
  const std::int64_t i = global_thread();
  if (i >= count) return;
  const float g = to_float(gate[i]), w = weights == nullptr ? 1.0f : weights[i / columns];
  hidden[i] = from_float<T>(g * sigmoid(g) * to_float(up[i]) * w);
}

// A block takes a row, for its weight's gradient is a sum over the row.
template <typename T>
GPU_KERNEL swiglu_backward_rows(const T* gate, const T* up, const float* weights, const T* dhidden, T* dgate,
                                T* dup, float* dweights, std::int64_t columns) {
  GPU_SHARED(float, scratch, kThreads / kWarp);
  const std::int64_t row = block_index();
  const float w = weights == nullptr ? 1.0f : weights[row];
  float dw = 0;
  for (std::int64_t i = row * columns + thread_index(); i < (row + 1) * columns; i += thread_count()) {
    const float g = to_float(gate[i]), u = to_float(up[i]), dh = to_float(dhidden[i]);
    const float s = sigmoid(g), silu = g * s;
    dw += dh * silu * u;
    dup[i] = from_float<T>(dh * w * silu);
    dgate[i] = from_float<T>(dh * w * u * s * (1.0f + g * (1.0f - s)));
  }
  if (dweights == nullptr) return;  // all threads
  dw = block_sum(dw, scratch);
  if (thread_index() == 0) dweights[row] = dw;
}

}  // namespace

void add(const TensorView& a, const TensorView& b, const TensorView& out) {
  with_float_type(out.dtype(), [&]<typename Out>(Out) {
    with_float_type(b.dtype(), [&]<typename B>(B) {
      launch(flat(out.size()), add_elements<Out, B>, a.device_data<Out>(), b.device_data<B>(),
             out.device_data<Out>(), out.size(), 0);
    });
  });
}

void add_to_rows(const TensorView& rows, const TensorView& row, const TensorView& out) {
  with_float_type(out.dtype(), [&]<typename T>(T) {
    launch(flat(out.size()), add_elements<T, T>, rows.device_data<T>(), row.device_data<T>(),
           out.device_data<T>(), out.size(), row.size());
  });
}

void scale(const TensorView& x, float factor, const TensorView& out) {
  with_float_type(x.dtype(), [&]<typename T>(T) {
    launch(flat(x.size()), scale_elements<T>, x.device_data<T>(), factor, out.device_data<T>(), x.size());
  });
}

void convert(const TensorView& x, const TensorView& out) {
  const std::int64_t count = x.size();
  if (count == 0) return;
  if (x.dtype() == out.dtype() && !is_float(x.dtype())) return copy(x, out);
  const bool rows = !out.is_contiguous();
  with_float_type(x.dtype(), [&]<typename T>(T) {
    with_float_type(out.dtype(), [&]<typename Out>(Out) {
      launch(flat(count), convert_elements<T, Out>, x.device_data<T>(), out.device_data<Out>(), count,
             rows ? out.dim(1) : count, rows ? out.stride(0) : count);
    });
  });
}

void swiglu(const SwigluArgs& args) {
  const std::int64_t columns = args.gate.shape().back();
  with_float_type(args.gate.dtype(), [&]<typename T>(T) {
    launch(flat(args.gate.size()), swiglu_elements<T>, args.gate.device_data<T>(), args.up.device_data<T>(),
           args.row_weights.device_data<float>(), args.hidden.device_data<T>(), args.gate.size(), columns);
  });
}

void swiglu_backward(const SwigluBackwardArgs& args) {
  const std::int64_t columns = args.gate.shape().back();
  std::int64_t rows = 1;  // those without columns have a gradient of their weight, 0
  for (std::size_t i = 0; i + 1 < args.gate.rank(); ++i) rows *= args.gate.dim(i);
  with_float_type(args.gate.dtype(), [&]<typename T>(T) {
    launch({.blocks = rows, .threads = kThreads}, swiglu_backward_rows<T>, args.gate.device_data<T>(),
           args.up.device_data<T>(), args.row_weights.device_data<float>(), args.dhidden.device_data<T>(),
           args.dgate.device_data<T>(), args.dup.device_data<T>(), args.drow_weights.device_data<float>(),
           columns);
  });
}

}  // namespace switchyard::gpu
