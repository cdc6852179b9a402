// Formulas for a GPU: a thread takes neighbours of 16 bytes and more, or a block a row whose sum is wanted.
#include <type_traits>
#include <utility>

#include "kernels/cuda/portable.h"
#include "kernels/cuda/rounded.h"
#include "kernels/cuda/wide.h"
#include "kernels/element/kernels.h"

#undef ELEMENT
#define ELEMENT GPU_FUNCTION

namespace switchyard::gpu {
namespace {

using F = Rounded;

GPU_FUNCTION F select(bool condition, F x, F y) {
  return condition ? x : y;
}
GPU_FUNCTION F fused(F x, F y, F z) {
  return fmaf(x.value, y.value, z.value);
}
GPU_FUNCTION F tanh_of(F x) {
  return tanhf(x.value);
}
GPU_FUNCTION F exp_of(F x) {
  return expf(x.value);
}
GPU_FUNCTION F softplus(F x) {
  return fmaxf(x.value, 0.0f) + log1pf(expf(-fabsf(x.value)));
}
GPU_FUNCTION F sigmoid(F x) {
  return F(1.0f) / (F(1.0f) + F(expf(-x.value)));
}

#include "kernels/element/formulas-inl.h"

constexpr int kElementThreads = 256;

template <int width>
GPU_FUNCTION void put(F value, int j, float (*y)[width]) {
  y[0][j] = value.value;
}
template <int width>
GPU_FUNCTION void put(Two<F> values, int j, float (*y)[width]) {
  y[0][j] = values.first.value;
  y[1][j] = values.second.value;
}

// The number that all of a row's elements share.
template <class Formula>
GPU_FUNCTION F number_of_row(const Formula& formula, const Elements& p, std::int64_t row) {
  if (p.row_number == nullptr) return 1.0f;
  return staged(formula,
                F(p.row_dtype == DType::f32 ? static_cast<const float*>(p.row_number)[row]
                                            : to_float(static_cast<const bfloat16*>(p.row_number)[row])));
}

// `width` neighbours, from `at` on, of an operand.
template <std::size_t operand, int width, class T, class Out, class Formula>
GPU_FUNCTION void load_operand(const Formula& formula, const ElementArray& from, std::int64_t row,
                               std::int64_t at, F of_row, float* to) {
  const auto* const x =
      static_cast<const OperandType<Formula, operand, T, Out>*>(from.data) + row * from.shift + at;
  if constexpr (requires { requires Formula::kRowNumber == operand; }) {
    if (from.data == nullptr) {
      for (int j = 0; j < width; ++j) to[j] = of_row.value;
      return;
    }
    load_floats<width>(x, to);
    for (int j = 0; j < width; ++j) to[j] = staged(formula, F(to[j])).value;
  } else {
    load_floats<width>(x, to);
  }
}

template <int width, class T, class Out, class Way, class Formula, std::size_t... i, std::size_t... o>
GPU_FUNCTION void run_part(const Formula& formula, const Elements& p, std::int64_t row, std::int64_t at,
                           F of_row, F& sum, std::index_sequence<i...>, std::index_sequence<o...>) {
  float x[sizeof...(i)][width], y[sizeof...(o)][width];
  (load_operand<i, width, T, Out>(formula, p.in[i], row, at, of_row, x[i]), ...);
  for (int j = 0; j < width; ++j) put(Way::apply(formula, sum, F(x[i][j])...), j, y);
  const auto store = [&](const ElementArray& to, const float* from) {
    if (to.data != nullptr) store_floats<width>(from, static_cast<Out*>(to.data) + row * to.shift + at);
  };
  (store(p.out[o], y[o]), ...);
}

template <int width, class T, class Out, class Way, class Formula, int operands, int results>
GPU_KERNEL run_formula(GPU_CONSTANT(Elements) p, Formula formula) {
  const std::int64_t at = thread_of_grid() * width;
  if (at >= p.rows * p.columns) return;
  const std::int64_t row = p.by_rows ? at / p.columns : 0;
  F sum(0.0f);
  run_part<width, T, Out, Way>(formula, p, row, at, number_of_row(formula, p, row), sum,
                               std::make_index_sequence<operands>(), std::make_index_sequence<results>());
}

// A block takes a row.
template <int width, class T, class Out, class Way, class Formula, int operands, int results>
GPU_KERNEL sum_formula(GPU_CONSTANT(Elements) p, Formula formula) {
  GPU_SHARED(float, scratch, kElementThreads / kWarp);
  const std::int64_t row = block_index();
  const F of_row = number_of_row(formula, p, row);
  F sum(0.0f);
  for (std::int64_t at = row * p.columns + thread_index() * width; at < (row + 1) * p.columns;
       at += thread_count() * width)
    run_part<width, T, Out, Way>(formula, p, row, at, of_row, sum, std::make_index_sequence<operands>(),
                                 std::make_index_sequence<results>());
  const float all = block_sum(sum.value, scratch);
  if (thread_index() != 0) return;
  if (p.sum_dtype == DType::f32)
    static_cast<float*>(p.sum)[row] = all;
  else
    static_cast<bfloat16*>(p.sum)[row] = from_float<bfloat16>(all);
}

template <class T, class Out, class Way, class Formula, int operands, int results>
void launch_of_types(const Elements& p) {
  using Narrow = std::conditional_t<sizeof(T) < sizeof(Out), T, Out>;
  bool wide = (p.by_rows ? p.columns : p.rows) % kWide<Narrow> == 0;
  for (const ElementArray& array : {p.in[0], p.in[1], p.in[2], p.in[3], p.out[0], p.out[1]})
    wide = wide && are_wide({array.data}) && array.shift % kWide<Narrow> == 0;
  const auto formula = with_number<Formula>(p.number);
  with_width<Narrow>(wide, [&]<int width>(std::integral_constant<int, width>) {
    if constexpr (std::is_same_v<Way, Backward> && requires { Formula::kRowNumber; }) {
      if (p.sum != nullptr)
        return launch({.blocks = p.rows, .threads = kElementThreads},
                      sum_formula<width, T, Out, Way, Formula, operands, results>, p, formula);
    }
    launch(threads_for(divide_up(p.rows * p.columns, width)),
           run_formula<width, T, Out, Way, Formula, operands, results>, p, formula);
  });
}

template <class Way, class Formula, int operands, int results>
void launch_formula(const ElementArgs& args) {
  const Elements p = elements_of(args);
  with_float_type(p.dtype, [&]<typename T>(T) {
    if constexpr (requires { Formula::kOfResult; })
      with_float_type(p.out_dtype, [&]<typename Out>(Out) {
        launch_of_types<T, Out, Way, Formula, operands, results>(p);
      });
    else
      launch_of_types<T, T, Way, Formula, operands, results>(p);
  });
}

}  // namespace

#define SWITCHYARD_DEFINE(name, formula, way, operands, results) \
  void name(const ElementArgs& args) {                           \
    launch_formula<way, formula, operands, results>(args);       \
  }
SWITCHYARD_PORTABLE_FORMULAS(SWITCHYARD_DEFINE)
SWITCHYARD_VECTOR_FORMULAS(SWITCHYARD_DEFINE)

}  // namespace switchyard::gpu
