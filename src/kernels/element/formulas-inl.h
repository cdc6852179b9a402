// Formulas of ops over elements, as arithmetic of a number F: vectors or single numbers of a CPU, single
// numbers of a GPU. No include guard: a driver includes this within its own namespace, behind its F. F has +
// - * / and comparisons, each rounded once; fused(a, b, c) = a · b + c, rounded once; select(condition, x,
// y); and functions that each driver has of its own and whose last bits differ: sigmoid() and, for formulas
// without vectors, tanh_of(), exp_of() and softplus().
//
// kRowNumber: the operand that may be one number a row; what is `staged` of it is asked once a row then, else
// of each element. kOfResult: bits of the operands of the results' dtype, where others may have another.
//
// The order of operations gives the bits of all CPUs. `select` keeps a NaN, which minima drop.

struct Forward {
  template <class Formula, class F, class... Operands>
  ELEMENT static auto apply(const Formula& formula, F&, Operands... x) {
    return formula.forward(x...);
  }
};
// Calls with the row's sum so far where the formula sums up.
struct Backward {
  template <class Formula, class F, class... Operands>
  ELEMENT static auto apply(const Formula& formula, F& sum, Operands... x) {
    if constexpr (requires { formula.backward(x..., sum); })
      return formula.backward(x..., sum);
    else
      return formula.backward(x...);
  }
};

template <class F>
struct Two {
  F first, second;
};

// The parts that drivers share: a formula with the number of a call, the type of an operand where elements
// are T and results Out, and what is staged.
template <class Formula>
Formula with_number(float number) {
  if constexpr (std::is_empty_v<Formula>)
    return {};
  else
    return {number};
}

template <class Formula, std::size_t operand>
constexpr bool is_of_result() {
  if constexpr (requires { Formula::kOfResult; })
    return (Formula::kOfResult >> operand & 1) != 0;
  else
    return false;
}
template <class Formula, std::size_t operand, class T, class Out>
using OperandType = std::conditional_t<is_of_result<Formula, operand>(), Out, T>;

template <class Formula, class F>
ELEMENT F staged(const Formula& formula, F number) {
  if constexpr (requires { formula.staged(number); })
    return formula.staged(number);
  else
    return number;
}

struct Add {
  static constexpr unsigned kOfResult = 0b01;

  template <class F>
  ELEMENT F forward(F a, F b) const {
    return a + b;
  }
};

struct Scale {
  float factor;

  template <class F>
  ELEMENT F forward(F x) const {
    return x * F(factor);
  }
};

struct Convert {
  static constexpr unsigned kOfResult = 0;

  template <class F>
  ELEMENT F forward(F x) const {
    return x;
  }
};

// silu(gate) · up · weight, of a weight for each row.
struct Swiglu {
  static constexpr int kRowNumber = 2;

  template <class F>
  ELEMENT F forward(F gate, F up, F weight) const {
    return gate * sigmoid(gate) * up * weight;
  }
  template <class F>
  ELEMENT Two<F> backward(F gate, F up, F weight, F dhidden, F& sum) const {
    const F s = sigmoid(gate), silu = gate * s, weighted = dhidden * weight;
    sum = fused(dhidden * silu, up, sum);
    return {weighted * up * (s * fused(gate, F(1.0f) - s, F(1.0f))), weighted * silu};
  }
};

// x within [-bound, bound]. A NaN stays one, and has no gradient.
struct Clamp {
  float bound;

  template <class F>
  ELEMENT F forward(F x) const {
    const F high(bound), low(-bound);
    const F within = select(x < low, low, x);
    return select(within > high, high, within);
  }
  template <class F>
  ELEMENT F backward(F x, F dout) const {
    const F high(bound), low(-bound), none(0.0f);
    return select(x >= low, select(x <= high, dout, none), none);
  }
};

// cap · tanh(x / cap). Its gradient follows from what it made.
struct SoftCap {
  float cap;

  template <class F>
  ELEMENT F forward(F x) const {
    return F(cap) * tanh_of(x / F(cap));
  }
  template <class F>
  ELEMENT F backward(F out, F dout) const {
    const F tanh = out / F(cap);
    return dout * (F(1.0f) - tanh * tanh);
  }
};

// x · sigmoid(gate), of a gate for each element or for each row.
struct SigmoidGate {
  static constexpr int kRowNumber = 1;

  template <class F>
  ELEMENT F staged(F gate) const {
    return sigmoid(gate);
  }
  template <class F>
  ELEMENT F forward(F x, F s) const {
    return x * s;
  }
  template <class F>
  ELEMENT Two<F> backward(F x, F s, F dout, F& sum) const {
    const F dgate = (dout * x) * (s * (F(1.0f) - s));
    sum = sum + dgate;
    return {dout * s, dgate};
  }
};

// x · softplus(gate), of a gate for each element or for each row. The slope of softplus is
// sigmoid(gate) = 1 - e^-softplus(gate).
struct SoftplusGate {
  static constexpr int kRowNumber = 1;

  template <class F>
  ELEMENT F staged(F gate) const {
    return softplus(gate);
  }
  template <class F>
  ELEMENT F forward(F x, F s) const {
    return x * s;
  }
  template <class F>
  ELEMENT Two<F> backward(F x, F s, F dout, F& sum) const {
    const F dgate = (dout * x) * (F(1.0f) - exp_of(F(0.0f) - s));
    sum = sum + dgate;
    return {dout * s, dgate};
  }
};
