#include "kernels/attention.h"

#include "core/error.h"
#include "core/tensor.h"
#include "kernels/attention_problem.h"
#include "kernels/dispatch.h"
#include "kernels/ref/attention_reference.h"

namespace switchyard {

std::vector<TileRange> tile_ranges(std::int64_t batch, std::int64_t length, const std::int32_t* index,
                                   const std::int32_t* segment, std::int64_t tile) {
  std::vector<TileRange> result;
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t begin = 0; begin < length; begin += tile) {
      constexpr auto kLow = std::numeric_limits<std::int32_t>::min(),
                     kHigh = std::numeric_limits<std::int32_t>::max();
      TileRange range{kHigh, kLow, kHigh, kLow};
      for (std::int64_t i = begin; i < std::min(length, begin + tile); ++i) {
        const std::int32_t at = index ? index[b * length + i] : static_cast<std::int32_t>(i);
        const std::int32_t of = segment ? segment[b * length + i] : 0;
        range = {std::min(range.min_index, at), std::max(range.max_index, at),
                 std::min(range.min_segment, of), std::max(range.max_segment, of)};
      }
      result.push_back(range);
    }
  }
  return result;
}

namespace {

AttentionProblem with_tiles(AttentionProblem p) {
  const AttentionArgs& a = p.args;
  p.q_tiles = tile_ranges(a.batch, a.q_length, a.q_index, a.q_segment, kAttentionTile);
  p.kv_tiles = tile_ranges(a.batch, a.kv_length, a.kv_index, a.kv_segment, kAttentionTile);
  return p;
}

template <AttentionTileRun* run>
void tiled_forward(ThreadPool& pool, const AttentionProblem& problem) {
  const AttentionProblem p = with_tiles(problem);
  const std::int64_t tiles = p.q_tile_count();
  pool.for_range(p.args.batch * p.args.heads * tiles, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i)
      run(p, i / tiles / p.args.heads, i / tiles % p.args.heads, i % tiles);
  });
}

template <AttentionHeadRun* run>
void tiled_backward(ThreadPool& pool, const AttentionProblem& problem) {
  const AttentionProblem p = with_tiles(problem);
  pool.for_range(p.args.batch * p.args.kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) run(p, i / p.args.kv_heads, i % p.args.kv_heads);
  });
}

template <typename T>
void reference_forward_typed(const AttentionProblem& p) {
  reference::attention(p.args, static_cast<const T*>(p.q), static_cast<const T*>(p.k),
                       static_cast<const T*>(p.v), static_cast<T*>(p.out), p.lse);
}

template <typename T>
void reference_backward_typed(const AttentionProblem& p) {
  reference::attention_backward(p.args, static_cast<const T*>(p.q), static_cast<const T*>(p.k),
                                static_cast<const T*>(p.v), static_cast<const T*>(p.out), p.lse,
                                static_cast<const T*>(p.dout), static_cast<T*>(p.dq), static_cast<T*>(p.dk),
                                static_cast<T*>(p.dv));
}

void reference_forward(ThreadPool&, const AttentionProblem& p) {
  p.args.dtype == DType::f32 ? reference_forward_typed<float>(p) : reference_forward_typed<bfloat16>(p);
}

void reference_backward(ThreadPool&, const AttentionProblem& p) {
  p.args.dtype == DType::f32 ? reference_backward_typed<float>(p) : reference_backward_typed<bfloat16>(p);
}

constexpr Implementation<AttentionRun, AttentionProblem> kForward[] = {
#if defined(__x86_64__)
    {"amx", Isa::amx, cpu::amx_tiles::attention, cpu::amx_tiles::attention_refuses},
    {"avx512_bf16", Isa::avx512_bf16, cpu::soft_tiles::attention, cpu::soft_tiles::attention_refuses},
    {"avx512", Isa::avx512, tiled_forward<cpu::attention_tile_avx512>},
    {"avx2", Isa::avx2, tiled_forward<cpu::attention_tile_avx2>},
#endif
    {"ref", Isa::ref, reference_forward},
};

constexpr Implementation<AttentionRun, AttentionProblem> kBackward[] = {
#if defined(__x86_64__)
    {"amx", Isa::amx, cpu::amx_tiles::attention_backward, cpu::amx_tiles::attention_refuses},
    {"avx512_bf16", Isa::avx512_bf16, cpu::soft_tiles::attention_backward,
     cpu::soft_tiles::attention_refuses},
    {"avx512", Isa::avx512, tiled_backward<cpu::attention_backward_head_avx512>},
    {"avx2", Isa::avx2, tiled_backward<cpu::attention_backward_head_avx2>},
#endif
    {"ref", Isa::ref, reference_backward},
};

// A causal query sees half of the keys on average. Backward makes the scores again and has four products
// more.
Work work_of(const char* kernel, const AttentionArgs& a, double products) {
  const auto d = [](std::int64_t x) { return static_cast<double>(x); };
  const double pairs = d(a.batch * a.heads) * d(a.q_length) * d(a.kv_length) * (a.causal ? 0.5 : 1.0);
  const double q = d(a.batch * a.q_length * a.heads) * d(a.qk_dim + a.v_dim);
  const double kv = d(a.batch * a.kv_length * a.kv_heads) * d(a.qk_dim + a.v_dim);
  return {kernel, a.dtype, pairs * d(a.qk_dim + a.v_dim) * products,
          products / 2 * (q + kv) * d(static_cast<std::int64_t>(size_of(a.dtype)))};
}

AttentionProblem problem_of(const AttentionArgs& args) {
  CHECK(is_float(args.dtype), "attention of {}", name_of(args.dtype));
  CHECK(args.kv_heads > 0 && args.heads % args.kv_heads == 0, "{} heads, {} kv heads", args.heads,
        args.kv_heads);
  CHECK((args.q_segment == nullptr) == (args.kv_segment == nullptr), "segments of queries or of keys only");
  AttentionProblem p;
  p.args = args;
  return p;
}

// Bytes of the buffers that the chosen forward implementation shares among its threads.
std::size_t workspace([[maybe_unused]] const AttentionProblem& p) {
#if defined(__x86_64__)
  auto* const chosen = choose("attention", kForward, p);
  if (chosen == cpu::amx_tiles::attention) return cpu::amx_tiles::attention_workspace(p.args);
  if (chosen == cpu::soft_tiles::attention) return cpu::soft_tiles::attention_workspace(p.args);
#endif
  return 0;
}

}  // namespace

void attention(ThreadPool& pool, const AttentionArgs& args, const void* q, const void* k, const void* v,
               void* out, float* lse) {
  AttentionProblem p = problem_of(args);
  if (pool.skips(work_of("attention", args, 2))) {
    const Buffer taken(pool.counts_workspace() ? workspace(p) : 0);
    return;
  }
  p.q = q, p.k = k, p.v = v, p.out = out, p.lse = lse;
  choose("attention", kForward, p)(pool, p);
}

void attention_backward(ThreadPool& pool, const AttentionArgs& args, const void* q, const void* k,
                        const void* v, const void* out, const float* lse, const void* dout, void* dq,
                        void* dk, void* dv) {
  if (pool.skips(work_of("attention_backward", args, 5))) return;
  AttentionProblem p = problem_of(args);
  p.q = q, p.k = k, p.v = v, p.out = const_cast<void*>(out), p.lse = const_cast<float*>(lse);
  p.dout = dout, p.dq = dq, p.dk = dk, p.dv = dv;
  choose("attention_backward", kBackward, p)(pool, p);
}

}  // namespace switchyard
