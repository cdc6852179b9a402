// Runs a formula on a CPU. No include guard: included behind formulas-inl.h, within the namespace of
// F = Number<T>, of T elements: it has F::kStep neighbours, F::load(from, count), store(to, count) and sum(),
// where lanes from `count` on are 0.

template <class F, class Out>
ELEMENT void store_results(F value, std::int64_t at, std::int64_t count, Out* const* to) {
  value.store(to[0] + at, count);
}
template <class F, class Out>
ELEMENT void store_results(Two<F> values, std::int64_t at, std::int64_t count, Out* const* to) {
  values.first.store(to[0] + at, count);
  if (to[1] != nullptr) values.second.store(to[1] + at, count);
}

template <std::size_t operand, class T, class Out, class F, class Formula>
ELEMENT F load_operand(const Formula& formula, F of_row, const void* from, std::int64_t at,
                       std::int64_t count) {
  const auto* const x = static_cast<const OperandType<Formula, operand, T, Out>*>(from);
  if constexpr (requires { requires Formula::kRowNumber == operand; })
    return x == nullptr ? of_row : staged(formula, F::load(x + at, count));
  else
    return F::load(x + at, count);
}

// Row `row`, or [begin, end) of elements that are rows; returns what the formula sums up.
template <class T, class Out, class Way, class Formula, std::size_t... i>
ELEMENT Number<T> run_part(const Formula& formula, const Elements& p, Number<T> of_row, std::int64_t row,
                           std::int64_t begin, std::int64_t end, std::index_sequence<i...>) {
  using F = Number<T>;
  const void* const from[] = {p.in[i].data...};
  const std::int64_t shifts[] = {row * p.in[i].shift...};
  Out* const to[] = {static_cast<Out*>(p.out[0].data) + row * p.out[0].shift,
                     static_cast<Out*>(p.out[1].data)};
  F sum(0.0f);
  for (std::int64_t at = begin; at < end; at += F::kStep) {
    store_results(Way::apply(formula, sum,
                             load_operand<i, T, Out>(formula, of_row, from[i], at + shifts[i], end - at)...),
                  at, end - at, to);
  }
  return sum;
}

template <class T, class Out, class Way, class Formula, class Operands>
void run_rows(const Elements& p, std::int64_t begin, std::int64_t end) {
  using F = Number<T>;
  const auto formula = with_number<Formula>(p.number);
  if (!p.by_rows) {
    run_part<T, Out, Way>(formula, p, F(1.0f), 0, begin, end, Operands());
    return;
  }
  for (std::int64_t row = begin; row < end; ++row) {
    const Single number = p.row_number == nullptr
                              ? Single(1.0f)
                              : staged(formula, Single::load(p.row_number, p.row_dtype, row));
    const F sum = run_part<T, Out, Way>(formula, p, F(number.value), row, row * p.columns,
                                        (row + 1) * p.columns, Operands());
    if (p.sum != nullptr) Single(sum.sum()).store(p.sum, p.sum_dtype, row);
  }
}

template <class Way, class Formula, int operands>
void run_formula(const Elements& p, std::int64_t begin, std::int64_t end) {
  using Operands = std::make_index_sequence<operands>;
  if constexpr (requires { Formula::kOfResult; }) {
    if (p.dtype != p.out_dtype) {
      p.dtype == DType::f32 ? run_rows<float, bfloat16, Way, Formula, Operands>(p, begin, end)
                            : run_rows<bfloat16, float, Way, Formula, Operands>(p, begin, end);
      return;
    }
  }
  p.dtype == DType::f32 ? run_rows<float, float, Way, Formula, Operands>(p, begin, end)
                        : run_rows<bfloat16, bfloat16, Way, Formula, Operands>(p, begin, end);
}
