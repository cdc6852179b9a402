// Runs a formula on a CPU. No include guard: included behind formulas-inl.h, within the namespace of a number
// F = Number<T>, which has F::kStep neighbours, F::load(from, count), store(to, count) and sum(), where lanes
// from `count` on are 0.

template <class Formula>
consteval int row_number_of() {
  if constexpr (requires { Formula::kRowNumber; })
    return Formula::kRowNumber;
  else
    return -1;
}

template <class Formula>
Formula with_number(float number) {
  if constexpr (std::is_empty_v<Formula>)
    return {};
  else
    return {number};
}

template <class T, class F>
ELEMENT void store_results(F value, std::int64_t at, std::int64_t count, T* const* to) {
  value.store(to[0] + at, count);
}
template <class T, class F>
ELEMENT void store_results(Two<F> values, std::int64_t at, std::int64_t count, T* const* to) {
  values.first.store(to[0] + at, count);
  if (to[1] != nullptr) values.second.store(to[1] + at, count);
}

// An operand: the number that a row has, or elements.
template <bool may_be_of_row, class F, class Formula, class T>
ELEMENT F operand(const Formula& formula, F of_row, const T* from, std::int64_t at, std::int64_t count) {
  if constexpr (may_be_of_row) {
    if (from == nullptr) return of_row;
    if constexpr (requires { formula.staged(of_row); }) return formula.staged(F::load(from + at, count));
  }
  return F::load(from + at, count);
}

// Elements [begin, end), all of one row; returns what the formula sums up.
template <class T, class Way, class Formula, std::size_t... i>
ELEMENT Number<T> run_part(const Formula& formula, const Elements& p, Number<T> of_row, std::int64_t begin,
                           std::int64_t end, std::index_sequence<i...>) {
  using F = Number<T>;
  const T* const from[] = {static_cast<const T*>(p.in[i])...};
  T* const to[] = {static_cast<T*>(p.out[0]), static_cast<T*>(p.out[1])};
  F sum(0.0f);
  for (std::int64_t at = begin; at < end; at += F::kStep) {
    store_results(
        Way::apply(formula, sum,
                   operand<i == row_number_of<Formula>()>(formula, of_row, from[i], at, end - at)...),
        at, end - at, to);
  }
  return sum;
}

template <class T, class Way, class Formula, class Operands>
void run_rows(const Elements& p, std::int64_t begin, std::int64_t end) {
  using F = Number<T>;
  const auto formula = with_number<Formula>(p.number);
  if (p.row_number == nullptr && p.sum == nullptr) {
    run_part<T, Way>(formula, p, F(1.0f), begin * p.columns, end * p.columns, Operands());
    return;
  }
  for (std::int64_t row = begin; row < end; ++row) {
    Single number(1.0f);
    if (p.row_number != nullptr) {
      number = Single::load(p.row_number, p.row_dtype, row);
      if constexpr (requires { formula.staged(number); }) number = formula.staged(number);
    }
    const F sum =
        run_part<T, Way>(formula, p, F(number.value), row * p.columns, (row + 1) * p.columns, Operands());
    if (p.sum != nullptr) Single(sum.sum()).store(p.sum, p.sum_dtype, row);
  }
}

template <class Way, class Formula, int operands>
void run_formula(const Elements& p, std::int64_t begin, std::int64_t end) {
  using Operands = std::make_index_sequence<operands>;
  p.dtype == DType::f32 ? run_rows<float, Way, Formula, Operands>(p, begin, end)
                        : run_rows<bfloat16, Way, Formula, Operands>(p, begin, end);
}
