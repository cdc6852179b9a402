// The gate of an output: each element's own, or one of a row.
#include "kernels/cuda/portable.h"
#include "kernels/cuda/wide.h"
#include "kernels/pointwise/kernels.h"

namespace switchyard::gpu {
namespace {

GPU_FUNCTION float sigmoid_of_gate(float gate) {
  return 1.0f / (1.0f + expf(-gate));
}

// `width` neighbours a thread, all of one row where a row has one gate.
template <int width, typename T>
GPU_KERNEL apply_gates(const T* x, const T* gate, T* out, std::int64_t count, std::int64_t columns,
                       bool one_a_row) {
  const std::int64_t i = thread_of_grid() * width;
  if (i >= count) return;
  float values[width], gates[width];
  load_floats<width>(x + i, values);
  if (one_a_row) {
    const float of_row = to_float(gate[i / columns]);
    for (int j = 0; j < width; ++j) gates[j] = of_row;
  } else {
    load_floats<width>(gate + i, gates);
  }
  for (int j = 0; j < width; ++j) values[j] *= sigmoid_of_gate(gates[j]);
  store_floats<width>(values, out + i);
}

template <int width, typename T>
GPU_KERNEL gate_gradients(const T* x, const T* gate, const T* dout, T* dx, T* dgate, std::int64_t count) {
  const std::int64_t i = thread_of_grid() * width;
  if (i >= count) return;
  float values[width], gates[width], gradient[width];
  load_floats<width>(x + i, values);
  load_floats<width>(gate + i, gates);
  load_floats<width>(dout + i, gradient);
  for (int j = 0; j < width; ++j) {
    const float sigmoid = sigmoid_of_gate(gates[j]), g = gradient[j];
    gradient[j] = g * sigmoid;
    gates[j] = g * values[j] * sigmoid * (1.0f - sigmoid);
  }
  store_floats<width>(gradient, dx + i);
  store_floats<width>(gates, dgate + i);
}

// A block takes a row, which has one gate.
template <typename T>
GPU_KERNEL gate_row_gradients(const T* x, const T* gate, const T* dout, T* dx, T* dgate,
                              std::int64_t columns) {
  GPU_SHARED(float, scratch, kWarp);
  const std::int64_t row = block_index(), first = row * columns;
  const float sigmoid = sigmoid_of_gate(to_float(gate[row]));
  float sum = 0;
  for (std::int64_t i = first + thread_index(); i < first + columns; i += thread_count()) {
    const float g = to_float(dout[i]);
    sum += g * to_float(x[i]);
    dx[i] = from_float<T>(g * sigmoid);
  }
  sum = block_sum(sum, scratch);
  if (thread_index() == 0) dgate[row] = from_float<T>(sum * sigmoid * (1.0f - sigmoid));
}

// Whether pieces of 16 bytes have whole rows, or whole arrays, to go through.
bool gates_in_pieces(const TensorView& x, std::int64_t run, std::initializer_list<const void*> addresses) {
  return run % (16 / static_cast<std::int64_t>(size_of(x.dtype()))) == 0 && are_wide(addresses);
}

bool has_gate_of_row(const TensorView& x, const TensorView& gate) {
  return gate.shape().back() == 1 && gate.size() * x.shape().back() == x.size();
}

}  // namespace

void sigmoid_gate(const SigmoidGateArgs& a) {
  const std::int64_t count = a.x.size(), columns = a.x.shape().back();
  const bool one = has_gate_of_row(a.x, a.gate);
  with_float_type(a.x.dtype(), [&]<typename T>(T) {
    const T *const x = a.x.device_data<T>(), *const gate = a.gate.device_data<T>();
    T* const out = a.out.device_data<T>();
    const bool wide =
        one ? gates_in_pieces(a.x, columns, {x, out}) : gates_in_pieces(a.x, count, {x, gate, out});
    with_width<T>(wide, [&]<int width>(std::integral_constant<int, width>) {
      launch(threads_for(divide_up(count, width)), apply_gates<width, T>, x, gate, out, count, columns, one);
    });
  });
}

void sigmoid_gate_backward(const SigmoidGateBackwardArgs& a) {
  const std::int64_t count = a.x.size(), columns = a.x.shape().back();
  with_float_type(a.x.dtype(), [&]<typename T>(T) {
    const T *const x = a.x.device_data<T>(), *const gate = a.gate.device_data<T>(),
                   *const dout = a.dout.device_data<T>();
    T *const dx = a.dx.device_data<T>(), *const dgate = a.dgate.device_data<T>();
    if (has_gate_of_row(a.x, a.gate)) {
      launch({.blocks = a.gate.size(), .threads = 256}, gate_row_gradients<T>, x, gate, dout, dx, dgate,
             columns);
      return;
    }
    const bool wide = gates_in_pieces(a.x, count, {x, gate, dout, dx, dgate});
    with_width<T>(wide, [&]<int width>(std::integral_constant<int, width>) {
      launch(threads_for(divide_up(count, width)), gate_gradients<width, T>, x, gate, dout, dx, dgate, count);
    });
  });
}

}  // namespace switchyard::gpu
