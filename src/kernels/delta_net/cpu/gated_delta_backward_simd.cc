// The gated delta rule's gradients for AVX2 and AVX-512, a chunk of tokens at a time, the last chunk first.
// Names are those of gated_delta_lanes-inl.h; what is not kept from the forward pass (states before chunks,
// U) is made again, one value head at a time.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/delta_net/cpu/gated_delta_backward_simd.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
#include <vector>

#include "hwy/highway.h"
#include "kernels/cpu/thread_scratch.h"
#include "kernels/delta_net/cpu/gated_delta_lanes-inl.h"
#include "kernels/registry/simd_rows.h"

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace switchyard {
namespace HWY_NAMESPACE {
namespace {

// One key head of one sequence, and its value heads.
class DeltaBackward {
 public:
  DeltaBackward(const GatedDeltaProblem& p, std::int64_t chunk, std::int64_t most_chunks, Cutter memory)
      : p_(p),
        q_(memory.matrix(p.length, p.key_width)),
        k_(memory.matrix(p.length, p.key_width)),
        dq_(memory.matrix(p.length, p.key_width)),
        dk_(memory.matrix(p.length, p.key_width)),
        q_factor_(memory.vector(p.length)),
        k_factor_(memory.vector(p.length)),
        u_(memory.matrix(p.length, p.value_width)),
        states_(memory.matrix(most_chunks * p.key_width, p.value_width)),
        key_columns_(memory.matrix(p.key_width, chunk)),
        queries_with_keys_(memory.matrix(chunk, chunk)),
        keys_with_keys_(memory.matrix(chunk, chunk)),
        work_(memory, chunk, std::max(p.key_width, p.value_width)),
        state_(memory.matrix(p.key_width, p.value_width)),
        state_columns_(memory.matrix(p.value_width, p.key_width)),
        dstate_(memory.matrix(p.key_width, p.value_width)),
        dout_(memory.matrix(chunk, p.value_width)),
        value_(memory.matrix(chunk, p.value_width)),
        du_(memory.matrix(chunk, p.value_width)),
        keyed_(memory.matrix(chunk, p.key_width)),
        u_columns_(memory.matrix(p.value_width, chunk)),
        pairs_(memory.matrix(chunk, chunk)),
        both_ways_(memory.matrix(chunk, chunk)),
        dsum_(static_cast<std::size_t>(chunk)),
        dstrength_(static_cast<std::size_t>(chunk)) {}

  static std::int64_t floats(const GatedDeltaProblem& p, std::int64_t chunk, std::int64_t most_chunks) {
    const std::int64_t key = padded(p.key_width), value = padded(p.value_width), square = padded(chunk);
    return p.length * (4 * key + value) + 2 * padded(p.length) + (most_chunks + 2) * p.key_width * value +
           p.key_width * square + chunk * 4 * square +
           DeltaWork::floats(chunk, std::max(p.key_width, p.value_width)) + p.value_width * (key + square) +
           chunk * (3 * value + key);
  }

  void run(std::int64_t batch, std::int64_t key_head) {
    for (std::int64_t t = 0; t < p_.length; ++t) {
      const std::int64_t at = p_.key_at(batch, t, key_head);
      q_factor_[t] = direction(p_, p_.q, at, p_.scale, q_.row(t));
      k_factor_[t] = direction(p_, p_.k, at, 1, k_.row(t));
    }
    clear(dq_, p_.length);
    clear(dk_, p_.length);
    for (std::int64_t i = 0; i < p_.group(); ++i) value_head(batch, key_head * p_.group() + i);
    for (std::int64_t t = 0; t < p_.length; ++t) {
      const std::int64_t at = p_.key_at(batch, t, key_head);
      put_direction(q_.row(t), q_factor_[t], p_.scale, dq_.row(t), at, p_.dq);
      put_direction(k_.row(t), k_factor_[t], 1, dk_.row(t), at, p_.dk);
    }
  }

 private:
  // The gradient of what was made `scale` times a unit vector, from that of the result.
  void put_direction(const float* x, float factor, float scale, float* gradient, std::int64_t at,
                     void* out) const {
    if (p_.unit_vectors && scale != 0)
      small_add(x, -small_dot(x, gradient, p_.key_width) / (scale * scale), p_.key_width, gradient);
    small_scaled(gradient, factor * scale, p_.key_width, gradient);
    narrow(gradient, p_.dtype, at, p_.key_width, out);
  }

  void value_head(std::int64_t batch, std::int64_t head) {
    std::vector<DeltaChunk> chunks;
    clear(state_, p_.key_width);
    for (std::int64_t token = 0; token < p_.length;) {
      const std::int64_t end = p_.chunk_end(batch, token);
      const DeltaChunk c{batch, token, end - token, head};
      if (p_.begins(batch, token)) clear(state_, p_.key_width);
      std::copy(state_.data, state_.row(p_.key_width), states_.row(std::ssize(chunks) * p_.key_width));
      prepare(c);
      make_u(p_, c, k_.from_row(token), state_, work_, u_.from_row(token));
      advance_state(p_, c, k_.from_row(token), u_.from_row(token), work_, state_);
      chunks.push_back(c);
      token = end;
    }
    clear(dstate_, p_.key_width);
    for (std::int64_t i = std::ssize(chunks) - 1; i >= 0; --i) {
      const DeltaChunk& c = chunks[static_cast<std::size_t>(i)];
      chunk_gradients(c, states_.from_row(i * p_.key_width));
      if (p_.begins(batch, c.token)) clear(dstate_, p_.key_width);
    }
  }

  // Products of a chunk's vectors with each other, its gates, A and P.
  void prepare(const DeltaChunk& c) {
    const Matrix q = q_.from_row(c.token), k = k_.from_row(c.token);
    small_transpose(k, c.count, p_.key_width, key_columns_);
    small_product(as_is(q), Part::all, c.count, p_.key_width, key_columns_, c.count, Into::set,
                  queries_with_keys_);
    small_product(as_is(k), Part::all, c.count, p_.key_width, key_columns_, c.count, Into::set,
                  keys_with_keys_);
    read_gates(p_, c, work_);
    make_a(c, keys_with_keys_, work_);
    for (std::int64_t i = 0; i < c.count; ++i) {
      for (std::int64_t j = 0; j < c.count; ++j)
        work_.p.row(i)[j] = j <= i ? work_.decay.row(i)[j] * queries_with_keys_.row(i)[j] : 0.0f;
    }
  }

  void chunk_gradients(const DeltaChunk& c, const Matrix& before) {
    const std::int64_t n = c.count, key = p_.key_width, value = p_.value_width;
    const Matrix q = q_.from_row(c.token), k = k_.from_row(c.token), dq = dq_.from_row(c.token),
                 dk = dk_.from_row(c.token), u = u_.from_row(c.token);
    prepare(c);
    const float* const to_end = work_.decay.row(n - 1);
    std::fill(dsum_.begin(), dsum_.end(), 0.0);
    std::fill(dstrength_.begin(), dstrength_.end(), 0.0);
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t at = p_.value_at(c.batch, c.token + i, c.head);
      widen(p_.dout, p_.dtype, at, value, dout_.row(i));
      widen(p_.v, p_.dtype, at, value, value_.row(i));
    }
    // dU, from the state after the chunk and from P; then dR in its place.
    small_product(as_is(k), Part::all, n, key, dstate_, value, Into::set, du_);
    for (std::int64_t i = 0; i < n; ++i) small_scaled(du_.row(i), to_end[i], value, du_.row(i));
    small_product(transposed(work_.p), Part::upper, n, n, dout_, value, Into::add, du_);
    solve_transposed(work_.a, n, value, du_);
    through_state_after(c, before, u, k, dk);
    through_state_before(c, before, q, k, dq, dk);
    through_pairs(c, u, q, k, dq, dk);
    // The gradient of the state before the chunk.
    for (std::int64_t i = 0; i < key; ++i)
      small_scaled(dstate_.row(i), work_.from_start[n - 1], value, dstate_.row(i));
    for (std::int64_t i = 0; i < n; ++i)
      small_scaled(dout_.row(i), work_.from_start[i], value, work_.scaled.row(i));
    small_product(transposed(q), Part::all, key, n, work_.scaled, value, Into::add, dstate_);
    for (std::int64_t i = 0; i < n; ++i)
      small_scaled(du_.row(i), work_.strength[i] * work_.from_start[i], value, work_.scaled.row(i));
    small_product(transposed(k), Part::all, key, n, work_.scaled, value, Into::subtract, dstate_);
    put_gradients(c);
  }

  // The gradients of U, the keys and the decay through the state after the chunk.
  void through_state_after(const DeltaChunk& c, const Matrix& before, const Matrix& u, const Matrix& k,
                           const Matrix& dk) {
    const std::int64_t n = c.count, last = n - 1;
    double kept = 0;
    for (std::int64_t i = 0; i < p_.key_width; ++i)
      kept += static_cast<double>(small_dot(before.row(i), dstate_.row(i), p_.value_width));
    dsum(last) += kept * static_cast<double>(work_.from_start[last]);
    small_transpose(dstate_, p_.key_width, p_.value_width, state_columns_);
    small_product(as_is(u), Part::all, n, p_.value_width, state_columns_, p_.key_width, Into::set, keyed_);
    for (std::int64_t j = 0; j < n; ++j) {
      const float to_end = work_.decay.row(last)[j];
      const double change = static_cast<double>(to_end * small_dot(k.row(j), keyed_.row(j), p_.key_width));
      dsum(last) += change;
      dsum(j) -= change;
      small_add(keyed_.row(j), to_end, p_.key_width, dk.row(j));
    }
  }

  // The gradients through what the state before the chunk gives to queries and takes from values.
  void through_state_before(const DeltaChunk& c, const Matrix& before, const Matrix& q, const Matrix& k,
                            const Matrix& dq, const Matrix& dk) {
    const std::int64_t n = c.count, key = p_.key_width, value = p_.value_width;
    small_transpose(before, key, value, state_columns_);
    small_product(as_is(dout_), Part::all, n, value, state_columns_, key, Into::set, keyed_);
    for (std::int64_t i = 0; i < n; ++i) {
      const float decay = work_.from_start[i];
      dsum(i) += static_cast<double>(decay * small_dot(q.row(i), keyed_.row(i), key));
      small_add(keyed_.row(i), decay, key, dq.row(i));
    }
    small_product(as_is(du_), Part::all, n, value, state_columns_, key, Into::set, keyed_);
    for (std::int64_t i = 0; i < n; ++i) {
      const float decay = work_.from_start[i], strength = work_.strength[i],
                  taken = decay * small_dot(k.row(i), keyed_.row(i), key);
      dsum(i) -= static_cast<double>(strength * taken);
      dstrength(i) +=
          static_cast<double>(small_dot(du_.row(i), value_.row(i), value)) - static_cast<double>(taken);
      small_add(keyed_.row(i), -strength * decay, key, dk.row(i));
    }
  }

  // The gradients through what tokens of the chunk give to each other: P and A.
  void through_pairs(const DeltaChunk& c, const Matrix& u, const Matrix& q, const Matrix& k, const Matrix& dq,
                     const Matrix& dk) {
    const std::int64_t n = c.count, key = p_.key_width, value = p_.value_width;
    small_transpose(u, n, value, u_columns_);
    small_product(as_is(dout_), Part::all, n, value, u_columns_, n, Into::set, pairs_);  // dP
    for (std::int64_t i = 0; i < n; ++i) {
      float *const row = pairs_.row(i), *const decay = work_.decay.row(i);
      for (std::int64_t j = 0; j < i; ++j) {
        const double change = static_cast<double>(row[j] * work_.p.row(i)[j]);
        dsum(i) += change;
        dsum(j) -= change;
      }
      for (std::int64_t j = 0; j < n; ++j) row[j] = j <= i ? row[j] * decay[j] : 0.0f;
    }
    small_product(as_is(pairs_), Part::lower, n, n, k, key, Into::add, dq);
    small_product(transposed(pairs_), Part::upper, n, n, q, key, Into::add, dk);
    small_product(as_is(du_), Part::all, n, value, u_columns_, n, Into::set, pairs_);  // -dA
    for (std::int64_t i = 0; i < n; ++i) {
      float *const row = pairs_.row(i), *const decay = work_.decay.row(i);
      for (std::int64_t j = 0; j < i; ++j) {
        const float product = -row[j] * decay[j] * keys_with_keys_.row(i)[j];
        const double change = static_cast<double>(product * work_.strength[i]);
        dstrength(i) += static_cast<double>(product);
        dsum(i) += change;
        dsum(j) -= change;
        // A is of both keys alike.
        both_ways_.row(i)[j] = both_ways_.row(j)[i] = -row[j] * decay[j] * work_.strength[i];
      }
      both_ways_.row(i)[i] = 0;
    }
    small_product(as_is(both_ways_), Part::all, n, n, k, key, Into::add, dk);
  }

  void put_gradients(const DeltaChunk& c) {
    double sum = 0;  // of the gradients of G, of which every later one holds g
    for (std::int64_t i = c.count - 1; i >= 0; --i) {
      const std::int64_t at = p_.number_at(c.batch, c.token + i, c.head);
      sum += dsum(i);
      p_.dg[at] = static_cast<float>(sum);
      p_.dbeta[at] = static_cast<float>(dstrength(i));
      small_scaled(du_.row(i), work_.strength[i], p_.value_width, du_.row(i));
      narrow(du_.row(i), p_.dtype, p_.value_at(c.batch, c.token + i, c.head), p_.value_width, p_.dv);
    }
  }

  double& dsum(std::int64_t i) { return dsum_[static_cast<std::size_t>(i)]; }
  double& dstrength(std::int64_t i) { return dstrength_[static_cast<std::size_t>(i)]; }

  const GatedDeltaProblem& p_;
  Matrix q_, k_, dq_, dk_;  // of the whole sequence
  float *q_factor_, *k_factor_;
  Matrix u_;       // of the whole sequence
  Matrix states_;  // before each chunk
  Matrix key_columns_, queries_with_keys_, keys_with_keys_;
  DeltaWork work_;
  Matrix state_, state_columns_, dstate_;
  Matrix dout_, value_, du_;  // of the chunk
  Matrix keyed_;              // [C,Dk], products with a state
  Matrix u_columns_, pairs_, both_ways_;
  std::vector<double> dsum_, dstrength_;  // of the chunk's G and beta
};

// The most chunks of a sequence of these pairs.
std::int64_t most_chunks_of(const GatedDeltaProblem& p, std::int64_t begin, std::int64_t end) {
  std::int64_t most = 0;
  for (std::int64_t batch = begin / p.key_heads; batch <= (end - 1) / p.key_heads; ++batch) {
    std::int64_t chunks = 0;
    for (std::int64_t token = 0; token < p.length; token = p.chunk_end(batch, token)) ++chunks;
    most = std::max(most, chunks);
  }
  return most;
}

}  // namespace

void gated_delta_backward_simd(const GatedDeltaProblem& p, std::int64_t begin, std::int64_t end,
                               cpu::ThreadScratch& scratch) {
  if (begin == end) return;
  const std::int64_t chunk = std::min(p.chunk, std::max<std::int64_t>(1, p.length)),
                     chunks = most_chunks_of(p, begin, end);
  DeltaBackward pass(p, chunk, chunks,
                     Cutter(scratch.at_least<float>(DeltaBackward::floats(p, chunk, chunks))));
  for (std::int64_t pair = begin; pair < end; ++pair) pass.run(pair / p.key_heads, pair % p.key_heads);
}

}  // namespace HWY_NAMESPACE
}  // namespace switchyard
HWY_AFTER_NAMESPACE();
#endif  // AVX2 or AVX-512

#if HWY_ONCE && defined(__x86_64__)
namespace switchyard::cpu {
namespace {

ThreadScratch& delta_backward_scratch() {
  thread_local ThreadScratch scratch;
  return scratch;
}

}  // namespace

SWITCHYARD_SIMD_EXPORT(gated_delta_backward,
                       (const GatedDeltaProblem& p, std::int64_t begin, std::int64_t end),
                       (p, begin, end, delta_backward_scratch()))

}  // namespace switchyard::cpu
#endif
