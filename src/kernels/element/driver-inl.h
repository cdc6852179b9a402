// Runs a formula on a CPU. No include guard: included behind formulas-inl.h, within the namespace of
// F = Number<T>, of T elements: it has F::kStep neighbours, F::load(from, count), store(to, count) and sum(),
// where lanes from `count` on are 0.

// A call's form, as constants of its loop: a number for each row, and a second result.
template <bool row_number, bool second>
struct Having {};

template <class F, class Out, bool row_number, bool second>
ELEMENT void store_results(F value, std::int64_t at, std::int64_t count, Out* const* to,
                           Having<row_number, second>) {
  value.store(to[0] + at, count);
}
template <class F, class Out, bool row_number, bool second>
ELEMENT void store_results(Two<F> values, std::int64_t at, std::int64_t count, Out* const* to,
                           Having<row_number, second>) {
  values.first.store(to[0] + at, count);
  if constexpr (second) values.second.store(to[1] + at, count);
}

template <std::size_t operand, class From, class F, class Formula, bool row_number, bool second>
ELEMENT F load_operand(const Formula& formula, F of_row, const void* from, std::int64_t at,
                       std::int64_t count, Having<row_number, second>) {
  if constexpr (requires { requires Formula::kRowNumber == operand; }) {
    if constexpr (row_number) return of_row;
    return staged(formula, F::load(static_cast<const From*>(from) + at, count));
  } else {
    return F::load(static_cast<const From*>(from) + at, count);
  }
}

// `count` elements from `at` on.
template <class T, class Out, class Way, class Formula, class F, class Has, std::size_t... i>
ELEMENT void run_step(const Formula& formula, F& sum, F of_row, const void* const* from, Out* const* to,
                      std::int64_t at, std::int64_t count, Has has, std::index_sequence<i...>) {
  store_results(Way::apply(formula, sum,
                           load_operand<i, OperandType<Formula, i, T, Out>>(formula, of_row, from[i], at,
                                                                            count, has)...),
                at, count, to, has);
}

// Row `row`, or [begin, end) of elements that are rows; returns what the formula sums up.
template <class T, class Out, class Way, class Formula, class Has, std::size_t... i>
ELEMENT Number<T> run_part(const Formula& formula, const Elements& p, Number<T> of_row, std::int64_t row,
                           std::int64_t begin, std::int64_t end, Has has,
                           std::index_sequence<i...> operands) {
  using F = Number<T>;
  const void* const from[] = {static_cast<const OperandType<Formula, i, T, Out>*>(p.in[i].data) +
                              row * p.in[i].shift...};
  Out* const to[] = {static_cast<Out*>(p.out[0].data) + row * p.out[0].shift,
                     static_cast<Out*>(p.out[1].data)};
  F sum(0.0f);
  std::int64_t at = begin;
  for (; at <= end - F::kStep; at += F::kStep)
    run_step<T, Out, Way>(formula, sum, of_row, from, to, at, F::kStep, has, operands);
  if (at < end) run_step<T, Out, Way>(formula, sum, of_row, from, to, at, end - at, has, operands);
  return sum;
}

template <class T, class Out, class Way, class Formula, class Operands, class Has>
void run_rows(const Elements& p, std::int64_t begin, std::int64_t end, Has has) {
  using F = Number<T>;
  const auto formula = with_number<Formula>(p.number);
  if (!p.by_rows) {
    run_part<T, Out, Way>(formula, p, F(1.0f), 0, begin, end, has, Operands());
    return;
  }
  for (std::int64_t row = begin; row < end; ++row) {
    const Single number = p.row_number == nullptr
                              ? Single(1.0f)
                              : staged(formula, Single::load(p.row_number, p.row_dtype, row));
    const F sum = run_part<T, Out, Way>(formula, p, F(number.value), row, row * p.columns,
                                        (row + 1) * p.columns, has, Operands());
    if (p.sum != nullptr) Single(sum.sum()).store(p.sum, p.sum_dtype, row);
  }
}

template <class T, class Out, class Way, class Formula, class Operands>
void run_types(const Elements& p, std::int64_t begin, std::int64_t end) {
  if constexpr (requires { Formula::kRowNumber; }) {
    if (p.in[Formula::kRowNumber].data == nullptr) {
      p.out[1].data == nullptr
          ? run_rows<T, Out, Way, Formula, Operands>(p, begin, end, Having<true, false>())
          : run_rows<T, Out, Way, Formula, Operands>(p, begin, end, Having<true, true>());
      return;
    }
  }
  run_rows<T, Out, Way, Formula, Operands>(p, begin, end, Having<false, true>());
}

template <class Way, class Formula, int operands>
void run_formula(const Elements& p, std::int64_t begin, std::int64_t end) {
  using Operands = std::make_index_sequence<operands>;
  if constexpr (requires { Formula::kOfResult; }) {
    if (p.dtype != p.out_dtype) {
      p.dtype == DType::f32 ? run_types<float, bfloat16, Way, Formula, Operands>(p, begin, end)
                            : run_types<bfloat16, float, Way, Formula, Operands>(p, begin, end);
      return;
    }
  }
  p.dtype == DType::f32 ? run_types<float, float, Way, Formula, Operands>(p, begin, end)
                        : run_types<bfloat16, bfloat16, Way, Formula, Operands>(p, begin, end);
}
