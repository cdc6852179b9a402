// The gated delta rule's forward pass for AVX2 and AVX-512, a chunk of
// tokens at a time (gated_delta_lanes-inl.h).
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/delta_net/cpu/gated_delta_simd.cc"
#include "hwy/foreach_target.h"
// After foreach_target.
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
class DeltaForward {
 public:
  DeltaForward(const GatedDeltaProblem& p, std::int64_t chunk, Cutter memory)
      : p_(p),
        q_(memory.matrix(chunk, p.key_width)),
        k_(memory.matrix(chunk, p.key_width)),
        key_columns_(memory.matrix(p.key_width, chunk)),
        queries_with_keys_(memory.matrix(chunk, chunk)),
        keys_with_keys_(memory.matrix(chunk, chunk)),
        u_(memory.matrix(chunk, p.value_width)),
        out_(memory.matrix(chunk, p.value_width)),
        work_(memory, chunk, std::max(p.key_width, p.value_width)),
        states_(memory.matrix(p.group() * p.key_width, p.value_width)) {}

  static std::int64_t floats(const GatedDeltaProblem& p, std::int64_t chunk) {
    return chunk * (2 * padded(p.key_width) + 2 * padded(p.value_width) + 2 * padded(chunk)) +
           p.key_width * padded(chunk) + DeltaWork::floats(chunk, std::max(p.key_width, p.value_width)) +
           p.group() * p.key_width * padded(p.value_width);
  }

  void run(std::int64_t batch, std::int64_t key_head) {
    move_states(batch, key_head, true);
    for (std::int64_t token = 0; token < p_.length;) {
      const std::int64_t end = p_.chunk_end(batch, token), count = end - token;
      if (p_.begins(batch, token)) clear(states_, p_.group() * p_.key_width);
      for (std::int64_t i = 0; i < count; ++i) {
        const std::int64_t at = p_.key_at(batch, token + i, key_head);
        direction(p_, p_.q, at, p_.scale, q_.row(i));
        direction(p_, p_.k, at, 1, k_.row(i));
      }
      small_transpose(k_, count, p_.key_width, key_columns_);
      small_product(as_is(q_), Part::all, count, p_.key_width, key_columns_, count, Into::set,
                    queries_with_keys_);
      small_product(as_is(k_), Part::all, count, p_.key_width, key_columns_, count, Into::set,
                    keys_with_keys_);
      for (std::int64_t i = 0; i < p_.group(); ++i)
        value_head({batch, token, count, key_head * p_.group() + i}, states_.from_row(i * p_.key_width));
      token = end;
    }
    move_states(batch, key_head, false);
  }

 private:
  void value_head(const DeltaChunk& c, const Matrix& state) {
    read_gates(p_, c, work_);
    make_a(c, keys_with_keys_, work_);
    make_u(p_, c, k_, state, work_, u_);
    small_product(as_is(q_), Part::all, c.count, p_.key_width, state, p_.value_width, Into::set, out_);
    for (std::int64_t i = 0; i < c.count; ++i) {
      small_scaled(out_.row(i), work_.from_start[i], p_.value_width, out_.row(i));
      for (std::int64_t j = 0; j < c.count; ++j)
        work_.p.row(i)[j] = j <= i ? work_.decay.row(i)[j] * queries_with_keys_.row(i)[j] : 0.0f;
    }
    small_product(as_is(work_.p), Part::lower, c.count, c.count, u_, p_.value_width, Into::add, out_);
    for (std::int64_t i = 0; i < c.count; ++i)
      narrow(out_.row(i), p_.dtype, p_.value_at(c.batch, c.token + i, c.head), p_.value_width, p_.out);
    advance_state(p_, c, k_, u_, work_, state);
  }

  // Between the caller's states and ours.
  void move_states(std::int64_t batch, std::int64_t key_head, bool in) {
    if (p_.state == nullptr) return;
    const std::int64_t first = (batch * p_.value_heads + key_head * p_.group()) * p_.key_width;
    for (std::int64_t i = 0; i < p_.group() * p_.key_width; ++i) {
      float* const theirs = p_.state + (first + i) * p_.value_width;
      in ? widen_row(theirs, p_.value_width, states_.row(i))
         : narrow_row(states_.row(i), p_.value_width, theirs);
    }
  }

  const GatedDeltaProblem& p_;
  Matrix q_, k_, key_columns_, queries_with_keys_, keys_with_keys_, u_, out_;
  DeltaWork work_;
  Matrix states_;  // of the value heads, one after the other
};

}  // namespace

void gated_delta_simd(const GatedDeltaProblem& p, std::int64_t begin, std::int64_t end,
                      cpu::ThreadScratch& scratch) {
  const std::int64_t chunk = std::min(p.chunk, std::max<std::int64_t>(1, p.length));
  DeltaForward pass(p, chunk, Cutter(scratch.at_least<float>(DeltaForward::floats(p, chunk))));
  for (std::int64_t pair = begin; pair < end; ++pair) pass.run(pair / p.key_heads, pair % p.key_heads);
}

}  // namespace HWY_NAMESPACE
}  // namespace switchyard
HWY_AFTER_NAMESPACE();
#endif  // AVX2 or AVX-512

#if HWY_ONCE && defined(__x86_64__)
namespace switchyard::cpu {
namespace {

ThreadScratch& delta_scratch() {
  thread_local ThreadScratch scratch;
  return scratch;
}

}  // namespace

SWITCHYARD_SIMD_EXPORT(gated_delta, (const GatedDeltaProblem& p, std::int64_t begin, std::int64_t end),
                       (p, begin, end, delta_scratch()))

}  // namespace switchyard::cpu
#endif
