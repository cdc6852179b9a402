// Steps that both passes of the gated delta rule take with a chunk of tokens. Included once per instruction
// set, inside a file that uses hwy/foreach_target.h.
//
// With G_i the sum of g over the chunk's tokens up to i, S the state before it, and rows of Q
// and K its unit vectors:
//
//   U = (I + A)^-1 R,  R_i = beta_i (v_i - e^G_i S^T k_i),  A_ij = beta_i e^(G_i - G_j) k_i·k_j for j < i
//   out_i = e^G_i S^T q_i + sum over j <= i of P_ij u_j,    P_ij = e^(G_i - G_j) q_i·k_j
//   S after the chunk = e^G_n S + sum over j of e^(G_n - G_j) k_j u_j^T
//
// Decays between tokens are products of e^g, never differences of sums: those would lose digits.
#include <cmath>
#include <cstdint>

#include "kernels/cpu/small_products-inl.h"
#include "kernels/delta_net/gated_delta_problem.h"

#if defined(SWITCHYARD_GATED_DELTA_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SWITCHYARD_GATED_DELTA_LANES_INL_H_
#undef SWITCHYARD_GATED_DELTA_LANES_INL_H_
#else
#define SWITCHYARD_GATED_DELTA_LANES_INL_H_
#endif

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace switchyard {
namespace HWY_NAMESPACE {
namespace {

// A thread's memory, cut into matrices and vectors.
class Cutter {
 public:
  explicit Cutter(float* memory) : at_(memory) {}
  Matrix matrix(std::int64_t rows, std::int64_t columns) {
    const Matrix m{at_, padded(columns)};
    at_ += rows * m.stride;
    return m;
  }
  float* vector(std::int64_t count) { return matrix(1, count).data; }

 private:
  float* at_;
};

// Row of `width` elements, in floats; the padding is zero.
template <typename T>
void widen_row(const T* x, std::int64_t width, float* to) {
  std::int64_t i = 0;
  for (; i + kVector <= width; i += kVector) lanes::store(lanes::load(x + i), to + i);
  if (i < width) lanes::store(lanes::load_some(x + i, static_cast<std::size_t>(width - i)), to + i);
}

template <typename T>
void narrow_row(const float* x, std::int64_t width, T* to) {
  std::int64_t i = 0;
  for (; i + kVector <= width; i += kVector) lanes::store(lanes::load(x + i), to + i);
  if (i < width) lanes::store_some(lanes::load(x + i), to + i, static_cast<std::size_t>(width - i));
}

void widen(const void* x, DType dtype, std::int64_t at, std::int64_t width, float* to) {
  dtype == DType::f32 ? widen_row(static_cast<const float*>(x) + at, width, to)
                      : widen_row(static_cast<const bfloat16*>(x) + at, width, to);
}
void narrow(const float* x, DType dtype, std::int64_t at, std::int64_t width, void* to) {
  dtype == DType::f32 ? narrow_row(x, width, static_cast<float*>(to) + at)
                      : narrow_row(x, width, static_cast<bfloat16*>(to) + at);
}

// A vector divided by its length where that is wanted, times `scale`. Returns what it was
// multiplied by but for that.
float direction(const GatedDeltaProblem& p, const void* x, std::int64_t at, float scale, float* to) {
  widen(x, p.dtype, at, p.key_width, to);
  const float factor = p.unit_vectors ? 1 / std::sqrt(small_dot(to, to, p.key_width) + kUnitEpsilon) : 1.0f;
  small_scaled(to, factor * scale, p.key_width, to);
  return factor;
}

// One chunk of a value head: tokens [token, token + count).
struct DeltaChunk {
  std::int64_t batch, token, count, head;
};

// Memory for one value head's chunk.
struct DeltaWork {
  Matrix decay;       // [C,C] e^(G_i - G_j) for j <= i, else zeros
  Matrix a;           // [C,C] A
  Matrix p;           // [C,C] P
  Matrix scaled;      // [C,Dk or Dv] for products with the state
  float* from_start;  // [C] e^G_i
  float* strength;    // [C] beta_i

  static std::int64_t floats(std::int64_t chunk, std::int64_t widest) {
    return chunk * (3 * padded(chunk) + padded(widest)) + 2 * padded(chunk);
  }
  DeltaWork(Cutter& memory, std::int64_t chunk, std::int64_t widest)
      : decay(memory.matrix(chunk, chunk)),
        a(memory.matrix(chunk, chunk)),
        p(memory.matrix(chunk, chunk)),
        scaled(memory.matrix(chunk, widest)),
        from_start(memory.vector(chunk)),
        strength(memory.vector(chunk)) {}
};

// decay, from_start and strength of a chunk.
void read_gates(const GatedDeltaProblem& problem, const DeltaChunk& c, DeltaWork& w) {
  float product = 1;
  for (std::int64_t i = 0; i < c.count; ++i) {
    const std::int64_t at = problem.number_at(c.batch, c.token + i, c.head);
    const float e = std::exp(problem.g[at]);
    product *= e;
    w.from_start[i] = product;
    w.strength[i] = problem.beta[at];
    float* const row = w.decay.row(i);
    if (i == 0)
      std::fill(row, row + w.decay.stride, 0.0f);
    else
      small_scaled(w.decay.row(i - 1), e, w.decay.stride, row);
    row[i] = 1;
  }
}

// A of the chunk, from the products of its keys.
void make_a(const DeltaChunk& c, const Matrix& keys, DeltaWork& w) {
  for (std::int64_t i = 0; i < c.count; ++i) {
    for (std::int64_t j = 0; j < i; ++j) w.a.row(i)[j] = w.strength[i] * w.decay.row(i)[j] * keys.row(i)[j];
    std::fill(w.a.row(i) + i, w.a.row(i) + c.count, 0.0f);
  }
}

constexpr std::int64_t kSolvedAtOnce = 16;

// x = (I + A)^-1 x, of `columns` columns.
void solve(const Matrix& a, std::int64_t count, std::int64_t columns, const Matrix& x) {
  for (std::int64_t begin = 0; begin < count; begin += kSolvedAtOnce) {
    const std::int64_t end = std::min(count, begin + kSolvedAtOnce);
    if (begin > 0)
      small_product(as_is(a.from_row(begin)), Part::all, end - begin, begin, x, columns, Into::subtract,
                    x.from_row(begin));
    for (std::int64_t i = begin + 1; i < end; ++i) {
      for (std::int64_t j = begin; j < i; ++j) small_add(x.row(j), -a.row(i)[j], columns, x.row(i));
    }
  }
}

// x = (I + A)^-T x.
void solve_transposed(const Matrix& a, std::int64_t count, std::int64_t columns, const Matrix& x) {
  for (std::int64_t begin = (count - 1) / kSolvedAtOnce * kSolvedAtOnce; begin >= 0; begin -= kSolvedAtOnce) {
    const std::int64_t end = std::min(count, begin + kSolvedAtOnce);
    if (end < count) {
      const Matrix below{a.row(end) + begin, a.stride};
      small_product(transposed(below), Part::all, end - begin, count - end, x.from_row(end), columns,
                    Into::subtract, x.from_row(begin));
    }
    for (std::int64_t i = end - 2; i >= begin; --i) {
      for (std::int64_t j = i + 1; j < end; ++j) small_add(x.row(j), -a.row(j)[i], columns, x.row(i));
    }
  }
}

// U of the chunk from the state before it; gates and A are there.
void make_u(const GatedDeltaProblem& problem, const DeltaChunk& c, const Matrix& k, const Matrix& state,
            const DeltaWork& w, const Matrix& u) {
  small_product(as_is(k), Part::all, c.count, problem.key_width, state, problem.value_width, Into::set, u);
  for (std::int64_t i = 0; i < c.count; ++i) {
    float* const value = w.scaled.data;
    widen(problem.v, problem.dtype, problem.value_at(c.batch, c.token + i, c.head), problem.value_width,
          value);
    small_scale(value, w.strength[i], -w.strength[i] * w.from_start[i], problem.value_width, u.row(i));
  }
  solve(w.a, c.count, problem.value_width, u);
}

// The state after the chunk from that before it.
void advance_state(const GatedDeltaProblem& problem, const DeltaChunk& c, const Matrix& k, const Matrix& u,
                   const DeltaWork& w, const Matrix& state) {
  for (std::int64_t j = 0; j < c.count; ++j)
    small_scaled(u.row(j), w.decay.row(c.count - 1)[j], problem.value_width, w.scaled.row(j));
  for (std::int64_t i = 0; i < problem.key_width; ++i)
    small_scaled(state.row(i), w.from_start[c.count - 1], problem.value_width, state.row(i));
  small_product(transposed(k), Part::all, problem.key_width, c.count, w.scaled, problem.value_width,
                Into::add, state);
}

void clear(const Matrix& m, std::int64_t rows) {
  std::fill(m.data, m.data + rows * m.stride, 0.0f);
}

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace switchyard
HWY_AFTER_NAMESPACE();
#endif  // AVX2 or AVX-512

#endif  // per-target include guard
