#include "kernels/attention/attention.h"

#include "core/error.h"
#include "core/tensor.h"
#include "kernels/attention/attention_problem.h"
#include "kernels/attention/checks.h"
#include "kernels/attention/reference/attention_reference.h"
#include "kernels/registry/kernel.h"

namespace switchyard {

std::vector<TileRange> tile_ranges(std::int64_t batch, std::int64_t length, const std::int32_t* index,
                                   const std::int32_t* segment, std::int64_t tile, const KeyWindow& seen) {
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
      range.min_visible = seen.first_visible(range.min_index);
      range.max_visible = seen.first_visible(range.max_index);
      result.push_back(range);
    }
  }
  return result;
}

AttentionSpec attention_spec(const AttentionArgs& a) {
  return {.batch = a.q.dim(0),
          .q_length = a.q.dim(1),
          .kv_length = a.k.dim(1),
          .heads = a.q.dim(2),
          .kv_heads = a.k.dim(2),
          .qk_dim = a.q.dim(3),
          .v_dim = a.v.dim(3),
          .scale = a.scale,
          .causal = a.causal,
          .dtype = a.q.dtype(),
          .q_index = a.q_index.device_data<std::int32_t>(),
          .kv_index = a.kv_index.device_data<std::int32_t>(),
          .q_segment = a.q_segment.device_data<std::int32_t>(),
          .kv_segment = a.kv_segment.device_data<std::int32_t>(),
          .seen = {a.window, a.chunk},
          .chosen = a.chosen.device_data<std::int32_t>(),
          .slots = a.slots.device_data<std::int32_t>(),
          .lengths = a.lengths.device_data<std::int32_t>(),
          .value_row = a.v.is_contiguous() ? 0 : a.v.stride(2)};
}

AttentionProblem attention_problem(const AttentionArgs& a) {
  AttentionProblem p;
  p.args = attention_spec(a);
  p.q = a.q.device_address();
  p.k = a.k.device_address();
  p.v = a.v.device_address();
  p.out = a.out.device_address();
  p.lse = a.lse.device_data<float>();
  p.top = a.top.device_data<float>();
  return p;
}

AttentionProblem attention_problem(const AttentionBackwardArgs& a) {
  AttentionProblem p = attention_problem(a.forward);
  p.dout = a.dout.device_address();
  p.dq = a.dq.device_address();
  p.dk = a.dk.device_address();
  p.dv = a.dv.device_address();
  return p;
}

namespace {

// Finds which tiles of keys each tile of queries chooses some of.
std::vector<std::uint8_t> chosen_tiles(const AttentionSpec& a) {
  const auto tiles = [](std::int64_t length) { return (length + kAttentionTile - 1) / kAttentionTile; };
  const std::int64_t of_keys = tiles(a.kv_length);
  std::vector<std::uint8_t> any(static_cast<std::size_t>(a.batch * tiles(a.q_length) * of_keys));
  for (std::int64_t b = 0; b < a.batch; ++b) {
    for (std::int64_t i = 0; i < a.q_length; ++i) {
      const std::int32_t* const words = a.chosen_by(b, i);
      std::uint8_t* const row = any.data() + (b * tiles(a.q_length) + i / kAttentionTile) * of_keys;
      for (std::int64_t w = 0; w < words_of_keys(a.kv_length); ++w)
        row[w * 32 / kAttentionTile] |= static_cast<std::uint8_t>(words[w] != 0);
    }
  }
  return any;
}

AttentionProblem in_tiles(AttentionProblem p) {
  const AttentionSpec& a = p.args;
  p.q_tiles = tile_ranges(a.batch, a.q_length, a.q_index, a.q_segment, kAttentionTile, a.seen);
  p.kv_tiles = tile_ranges(a.batch, a.kv_length, a.kv_index, a.kv_segment, kAttentionTile, {});
  if (a.chosen != nullptr) p.chosen_tiles = chosen_tiles(a);
  return p;
}

template <AttentionRun* kernel, typename Args>
void on_problem(ThreadPool& pool, const Args& args) {
  kernel(pool, attention_problem(args));
}

template <AttentionTilesRun* kernel>
void on_query_tiles(ThreadPool& pool, const AttentionArgs& args) {
  // Tiles of a head share the copies of keys and values; the threads have four rounds of work at least.
  constexpr std::int64_t kMostTiles = 4, kRounds = 4;
  const AttentionProblem p = in_tiles(attention_problem(args));
  const std::int64_t tiles = p.q_tile_count(), heads = p.args.heads;
  const std::int64_t group =
      std::clamp<std::int64_t>(p.args.batch * heads * tiles / (kRounds * pool.threads()), 1, kMostTiles);
  const std::int64_t groups = (tiles + group - 1) / group;
  pool.for_range(p.args.batch * heads * groups, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::int64_t tile = i % groups * group;
      kernel(p, i / groups / heads, i / groups % heads, tile, std::min(tile + group, tiles));
    }
  });
}

template <AttentionHeadRun* kernel>
void on_kv_heads(ThreadPool& pool, const AttentionBackwardArgs& args) {
  const AttentionProblem p = in_tiles(attention_problem(args));
  pool.for_range(p.args.batch * p.args.kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) kernel(p, i / p.args.kv_heads, i % p.args.kv_heads);
  });
}

template <typename T>
void reference_forward_typed(const AttentionProblem& p) {
  reference::attention(p.args, static_cast<const T*>(p.q), static_cast<const T*>(p.k),
                       static_cast<const T*>(p.v), static_cast<T*>(p.out), p.lse, p.top);
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

// The share of all pairs of query and key that is worked on, of places that go on as those of one sequence: a
// causal query sees half of the keys on average, and with a window no more than that.
double visible_share(const AttentionSpec& a) {
  if (!a.causal) return 1;
  const auto length = static_cast<double>(a.kv_length);
  return a.seen.limits() && a.kv_length > 0 ? a.seen.pairs(a.kv_length) / (length * length) : 0.5;
}

// Backward makes the scores again and has four products more.
Work work_of(const AttentionSpec& a, double products) {
  const auto d = [](std::int64_t x) { return static_cast<double>(x); };
  const double pairs = d(a.batch * a.heads) * d(a.q_length) * d(a.kv_length) * visible_share(a);
  const double q = d(a.batch * a.q_length * a.heads) * d(a.qk_dim + a.v_dim);
  const double kv = d(a.batch * a.kv_length * a.kv_heads) * d(a.qk_dim + a.v_dim);
  return {.dtype = a.dtype,
          .flops = pairs * d(a.qk_dim + a.v_dim) * products,
          .bytes = products / 2 * (q + kv) * d(static_cast<std::int64_t>(size_of(a.dtype)))};
}

Work forward_work(const AttentionArgs& args) {
  return work_of(attention_spec(args), 2);
}

Work backward_work(const AttentionBackwardArgs& args) {
  return work_of(attention_spec(args.forward), 5);
}

#if defined(__x86_64__)
const char* tiles_refuse(const AttentionArgs& args) {
  if (args.q.dtype() != DType::bf16) return "the operands are not bfloat16";
  if (!(args.scale > 0)) return "the scale is not positive";
  return args.chosen.defined() ? "keys are chosen for each query" : parts_refuse(args);
}

const char* backward_tiles_refuse(const AttentionBackwardArgs& args) {
  return tiles_refuse(args.forward);
}
#endif

// clang-format off
constexpr Implementation<AttentionArgs> kForwards[] = {
    {"cuda_hopper", Gpu::hopper,      gpu::hopper_attention, gpu::hopper_attention_refuses, &proofs::hopper_attention},
    {"cuda_hopper_latent", Gpu::hopper, gpu::hopper_latent_attention, gpu::hopper_latent_refuses, &proofs::hopper_latent_attention},
    {"cuda_flash",  Gpu::any,         gpu::flash_attention, gpu::flash_attention_refuses},
    {"cuda_warps",  Gpu::any,         gpu::warp_attention},
#if defined(__x86_64__)
    {"amx",         Isa::amx,         on_problem<cpu::amx_tiles::attention>,  tiles_refuse, cpu::amx_tiles::attention_workspace},
    {"avx512_bf16", Isa::avx512_bf16, on_problem<cpu::soft_tiles::attention>, tiles_refuse, cpu::soft_tiles::attention_workspace},
    {"avx512",      Isa::avx512,      on_query_tiles<cpu::attention_tiles_avx512>, parts_refuse},
    {"avx2",        Isa::avx2,        on_query_tiles<cpu::attention_tiles_avx2>, parts_refuse},
#endif
    {"ref",         Isa::ref,         on_problem<reference_forward>},
};
constexpr Implementation<AttentionBackwardArgs> kBackwards[] = {
    {"cuda_hopper", Gpu::hopper,      gpu::hopper_attention_backward, gpu::hopper_attention_backward_refuses, &proofs::hopper_attention_backward},
    {"cuda_flash",  Gpu::any,         gpu::flash_attention_backward, gpu::flash_attention_backward_refuses},
    {"cuda_warps",  Gpu::any,         gpu::warp_attention_backward},
#if defined(__x86_64__)
    {"amx",         Isa::amx,         on_problem<cpu::amx_tiles::attention_backward>,  backward_tiles_refuse},
    {"avx512_bf16", Isa::avx512_bf16, on_problem<cpu::soft_tiles::attention_backward>, backward_tiles_refuse},
    {"avx512",      Isa::avx512,      on_kv_heads<cpu::attention_backward_head_avx512>},
    {"avx2",        Isa::avx2,        on_kv_heads<cpu::attention_backward_head_avx2>},
#endif
    {"ref",         Isa::ref,         on_problem<reference_backward>},
};
// clang-format on
constexpr Kernel<AttentionArgs> kAttention{"attention", forward_work, &AttentionArgs::q, kForwards};
constexpr Kernel<AttentionBackwardArgs> kAttentionBackward{"attention_backward", backward_work,
                                                           &AttentionBackwardArgs::dq, kBackwards};

void check(const char* op, const AttentionArgs& a) {
  CHECK(a.q.rank() == 4 && a.k.rank() == 4 && a.v.rank() == 4 && is_float(a.q.dtype()),
        "[{}] q {} of {}, k {}, v {}", op, to_string(a.q.shape()), name_of(a.q.dtype()),
        to_string(a.k.shape()), to_string(a.v.shape()));
  const AttentionSpec s = attention_spec(a);
  CHECK(a.window >= 0 && a.chunk >= 0 && (a.causal || !s.seen.limits()),
        "[{}] a window of {} and chunks of {}{}", op, a.window, a.chunk, a.causal ? "" : ", not causal");
  CHECK(s.kv_heads > 0 && s.heads % s.kv_heads == 0, "[{}] {} heads, {} kv heads", op, s.heads, s.kv_heads);
  check_view(op, "q", a.q, s.dtype, a.q.shape());
  const std::int64_t slots = a.slots.defined() ? a.k.dim(0) : s.batch;
  check_view(op, "k", a.k, s.dtype, {slots, s.kv_length, s.kv_heads, s.qk_dim});
  const bool in_keys =
      a.v.strides() == a.k.strides() && (a.v.is_abstract() || a.v.device_address() == a.k.device_address());
  CHECK(a.v.dtype() == s.dtype && a.v.shape() == Shape({slots, s.kv_length, s.kv_heads, s.v_dim}) &&
            (a.v.is_contiguous() || in_keys),
        "[{}] v {} of {}, k {}", op, to_string(a.v.shape()), name_of(a.v.dtype()), to_string(a.k.shape()));
  check_view(op, "out", a.out, s.dtype, {s.batch, s.q_length, s.heads, s.v_dim});
  check_view(op, "lse", a.lse, DType::f32, {s.batch, s.heads, s.q_length});
  if (a.top.defined()) check_view(op, "top", a.top, DType::f32, a.lse.shape());
  if (a.slots.defined() || a.lengths.defined()) {
    CHECK(!a.kv_index.defined() && !a.q_segment.defined() && !a.kv_segment.defined(),
          "[{}] places or segments of keys in slots", op);
    check_view(op, "slots", a.slots, DType::i32, {s.batch});
    check_view(op, "lengths", a.lengths, DType::i32, {s.batch});
  }
  check_masks(op, a);
  if (a.chosen.defined())
    check_view(op, "chosen", a.chosen, DType::i32, {s.batch, s.q_length, words_of_keys(s.kv_length)});
}

}  // namespace

void attention(ThreadPool& pool, const AttentionArgs& args) {
  check("attention", args);
  run(pool, kAttention, args);
}

void attention_backward(ThreadPool& pool, const AttentionBackwardArgs& args) {
  constexpr const char* kOp = "attention_backward";
  check(kOp, args.forward);
  CHECK(parts_refuse(args.forward) == nullptr, "[{}] {}", kOp, parts_refuse(args.forward));
  const DType dtype = args.forward.q.dtype();
  check_view(kOp, "dout", args.dout, dtype, args.forward.out.shape());
  check_view(kOp, "dq", args.dq, dtype, args.forward.q.shape());
  check_view(kOp, "dk", args.dk, dtype, args.forward.k.shape());
  check_view(kOp, "dv", args.dv, dtype, args.forward.v.shape());
  run(pool, kAttentionBackward, args);
}

}  // namespace switchyard
