// Attention on normal numbers. The reference computes in double; what the others may differ by is in
// docs/design/numerics.md: fp32 sums, exponentials within 3e-6, and in tiles weights rounded to bf16.
#include "kernels/attention/attention_cases.h"

#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <tuple>

#include "kernels/attention/append_tokens.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/int8_vectors.h"
#include "kernels/attention/reference/attention_rounding.h"
#include "kernels/testing/cases.h"

namespace switchyard::selftest {
namespace {

struct AttentionShape {
  std::int64_t batch, q_length, kv_length, heads, kv_heads, qk_dim, v_dim;
  bool causal = true;
  int segments = 0;    // 0: null arrays
  bool index = false;  // positions given, keys ahead of the queries by kv_length - q_length
  KeyWindow seen = {};
  int chosen = 0;         // one key of so many is chosen, and the first; 0: all
  bool in_keys = false;   // values are the first elements of keys: only forward
  bool in_slots = false;  // of a cache, which sequences have in falling order, the later with fewer keys
};

constexpr AttentionShape kAttentionShapes[] = {
    {0, 5, 5, 2, 1, 8, 8},
    {1, 0, 5, 2, 1, 8, 8},
    {1, 5, 0, 2, 1, 8, 8},
    {1, 1, 1, 1, 1, 1, 1},
    {2, 7, 7, 2, 2, 24, 16},
    {1, 65, 65, 4, 2, 40, 20},                 // two query heads a key head
    {2, 130, 130, 2, 1, 24, 24, true, 3},      // segments
    {1, 100, 100, 2, 2, 16, 33, false, 4},     // and no order
    {1, 129, 129, 1, 1, 192, 128},             // widths of MLA
    {1, 64, 128, 6, 2, 17, 5, true, 0, true},  // later queries
    {1, 1, 150, 4, 2, 24, 16, true, 2, true},  // one query
    {1, 70, 40, 2, 1, 8, 8, true, 0, true},    // the first queries stand before every key
    {1, 66, 66, 2, 2, 8, 8, false},
    {1, 300, 300, 4, 1, 32, 64},  // several blocks of queries and keys
    {1, 270, 520, 1, 1, 64, 32, true, 2, true},
    {1, 65, 65, 4, 2, 40, 20, true, 0, false, {7, 0}},
    {1, 129, 129, 1, 1, 17, 33, true, 0, false, {0, 9}},
    {2, 130, 130, 2, 1, 16, 33, true, 3, false, {50, 64}},
    {1, 70, 40, 2, 1, 8, 8, true, 0, true, {5, 16}},  // places below zero
    {1, 600, 600, 2, 1, 32, 32, true, 0, false, {300, 0}},
    {3, 40, 600, 2, 2, 33, 31, false, 3},
    {2, 130, 130, 2, 1, 24, 24, true, 0, false, {1, 0}},  // each query sees its own key
    {1, 270, 520, 1, 1, 64, 32, true, 2, true, {100, 0}},
    {1, 270, 520, 1, 1, 64, 32, true, 0, true, {0, 150}},
    {2, 130, 130, 2, 2, 24, 16, true, 3, false, {}, 5},
    {1, 300, 300, 2, 2, 40, 20, true, 0, false, {}, 60},  // some tiles hold no chosen key
    {1, 20, 150, 2, 1, 17, 33, true, 0, true, {}, 7},
    {1, 400, 400, 2, 1, 64, 64},  // widths and lengths around the tiles of Hopper's kernels
    {2, 257, 257, 4, 2, 128, 128},
    {1, 193, 300, 2, 2, 96, 96, false},
    {2, 200, 200, 2, 1, 64, 64, true, 3},
    {1, 300, 420, 2, 1, 128, 128, true, 2, true, {70, 0}},
    {1, 260, 260, 2, 1, 192, 128, true, 0, false, {0, 100}},
    {1, 170, 170, 2, 1, 256, 256},
    {2, 5, 200, 16, 1, 576, 512, true, 0, true, {}, 0, true, true},  // latents of a cache
    {1, 70, 130, 4, 1, 576, 512, true, 0, true, {}, 0, true},
    {3, 9, 150, 20, 1, 72, 64, true, 0, true, {40, 0}, 0, true, true},
    {1, 65, 65, 3, 1, 576, 512, false, 2, false, {}, 0, true},
    {2, 7, 90, 4, 2, 24, 16, true, 0, true, {}, 0, true, true},  // of two key heads
};

// Arguments and inputs of both passes; the backward pass is given the reference's out and lse.
struct AttentionData {
  AttentionData(const AttentionShape& s, DType type, std::uint32_t seed);
  AttentionSpec args;
  PoisonedArray q, k, v, dout, out, lse;
  reference::AttentionMagnitudes rounding;
  std::vector<std::int32_t> q_index, kv_index, q_segment, kv_segment, chosen, slots, lengths;

 private:
  void give_slots();
  template <typename T>
  void compute();
};

PoisonedArray array_of(const AttentionShape& s, DType dtype, std::uint32_t seed, bool queries,
                       std::int64_t width) {
  const std::int64_t vectors = s.batch * (queries ? s.q_length * s.heads : s.kv_length * s.kv_heads);
  return PoisonedArray::normal(dtype, vectors * width, seed);
}

AttentionData::AttentionData(const AttentionShape& s, DType type, std::uint32_t seed)
    : q(array_of(s, type, seed, true, s.qk_dim)),
      k(array_of(s, type, seed + 1, false, s.qk_dim)),
      v(array_of(s, type, seed + 2, false, s.in_keys ? 0 : s.v_dim)),
      dout(array_of(s, type, seed + 3, true, s.v_dim)),
      out(type, dout.size()),
      lse(DType::f32, s.batch * s.heads * s.q_length) {
  // Scores of wider heads would be so large that f32's rounding of them shows in their exponentials.
  const float scale = s.qk_dim > 256 ? 0.06f : s.qk_dim > 192 ? 0.15f : 0.3f;
  args = {s.batch, s.q_length, s.kv_length, s.heads, s.kv_heads, s.qk_dim, s.v_dim, scale, s.causal, type};
  args.seen = s.seen;
  const auto fill = [&](std::int64_t length, std::int64_t first, std::vector<std::int32_t>& index,
                        std::vector<std::int32_t>& segment) {
    for (std::int64_t i = 0; i < s.batch * length; ++i) {
      index.push_back(static_cast<std::int32_t>(first + i % length));
      segment.push_back(static_cast<std::int32_t>((i % length + i / length) * s.segments / length));
    }
  };
  fill(s.q_length, s.kv_length - s.q_length, q_index, q_segment);
  fill(s.kv_length, 0, kv_index, kv_segment);
  if (s.index) args.q_index = q_index.data(), args.kv_index = kv_index.data();
  if (s.segments > 0) args.q_segment = q_segment.data(), args.kv_segment = kv_segment.data();
  if (s.in_keys) args.value_row = s.qk_dim;
  if (s.in_slots) give_slots();
  chosen.resize(static_cast<std::size_t>(s.batch * s.q_length * words_of_keys(s.kv_length)));
  for (std::int64_t i = 0; s.chosen > 0 && i < s.batch * s.q_length; ++i) {
    for (std::int64_t j = 0; j < s.kv_length; ++j) {
      if (j > 0 && (i * 31 + j * j) % s.chosen != 0) continue;
      std::int32_t& word = chosen[static_cast<std::size_t>(i * words_of_keys(s.kv_length) + j / 32)];
      word = static_cast<std::int32_t>(static_cast<std::uint32_t>(word) | 1u << (j % 32));
    }
  }
  if (s.chosen > 0) args.chosen = chosen.data();
  type == DType::f32 ? compute<float>() : compute<bfloat16>();
}

void AttentionData::give_slots() {
  for (std::int64_t b = 0; b < args.batch; ++b) {
    const auto fewer = static_cast<std::int32_t>(b * args.kv_length / 3);
    slots.push_back(static_cast<std::int32_t>(args.batch - 1 - b));
    lengths.push_back(static_cast<std::int32_t>(args.kv_length) - fewer);
    for (std::int64_t i = 0; i < args.q_length; ++i)
      q_index[static_cast<std::size_t>(b * args.q_length + i)] -= fewer;
  }
  args.slots = slots.data();
  args.lengths = lengths.data();
  args.kv_index = nullptr;
}

template <typename T>
void AttentionData::compute() {
  const auto *q_at = static_cast<const T*>(q.data()), *k_at = static_cast<const T*>(k.data()),
             *v_at = args.value_row != 0 ? k_at : static_cast<const T*>(v.data()),
             *dout_at = static_cast<const T*>(dout.data());
  auto* out_at = static_cast<T*>(out.data());
  reference::attention(args, q_at, k_at, v_at, out_at, lse.floats());
  if (args.dtype == DType::f32) return;  // no path rounds inside
  rounding = reference::attention_magnitudes(args, q_at, k_at, v_at, out_at, lse.floats(), dout_at);
  for (std::vector<double>* x : {&rounding.out, &rounding.dq, &rounding.dk, &rounding.dv}) {
    for (double& value : *x) value *= 0x1p-8 * 1.01;  // of weights that are themselves off by 3e-6
  }
}

// The bound of a result that is rounded on both sides.
// Places and segments, as inputs of a case.
Arrays mask_arrays(const AttentionData& d) {
  return {i32_array(d.q_index), i32_array(d.kv_index), i32_array(d.q_segment), i32_array(d.kv_segment),
          i32_array(d.chosen),  i32_array(d.slots),    i32_array(d.lengths)};
}

// `masks`: the place in `in` of mask_arrays().
AttentionArgs args_of(const AttentionData& d, const Arrays& in, std::size_t masks, const PoisonedArray& out,
                      const PoisonedArray& lse) {
  AttentionArgs args = reference::attention_args(d.args, nullptr, nullptr, nullptr, nullptr, nullptr);
  const AttentionSpec& s = d.args;
  args.q = in[0].view({s.batch, s.q_length, s.heads, s.qk_dim});
  args.k = in[1].view({s.batch, s.kv_length, s.kv_heads, s.qk_dim});
  args.v = s.value_row != 0 ? args.k.slice(3, 0, s.v_dim)
                            : in[2].view({s.batch, s.kv_length, s.kv_heads, s.v_dim});
  args.out = out.view({s.batch, s.q_length, s.heads, s.v_dim});
  args.lse = lse.view({s.batch, s.heads, s.q_length});
  const Shape queries{s.batch, s.q_length}, keys{s.batch, s.kv_length};
  if (s.q_index != nullptr) args.q_index = in[masks].view(queries);
  if (s.kv_index != nullptr) args.kv_index = in[masks + 1].view(keys);
  if (s.q_segment != nullptr)
    args.q_segment = in[masks + 2].view(queries), args.kv_segment = in[masks + 3].view(keys);
  if (s.chosen != nullptr)
    args.chosen = in[masks + 4].view({s.batch, s.q_length, words_of_keys(s.kv_length)});
  if (s.slots != nullptr)
    args.slots = in[masks + 5].view({s.batch}), args.lengths = in[masks + 6].view({s.batch});
  return args;
}

Arrays joined_arrays(Arrays some, const Arrays& more) {
  some.insert(some.end(), more.begin(), more.end());
  return some;
}

using SharedAttention = std::shared_ptr<const AttentionData>;

// The case of attention that also asks for every query's largest score.
Case attention_top_case(const SharedAttention& d) {
  return {d->args.dtype,
          "",
          joined_arrays({d->q, d->k, d->v}, mask_arrays(*d)),
          {{"out", PoisonedArray(d->args.dtype, d->out.size()), attention_bound(d->args.dtype, 1e-5), 0,
            d->rounding.out},
           {"lse", PoisonedArray(DType::f32, d->lse.size()), {3e-6, 3e-6}},
           {"top", PoisonedArray(DType::f32, d->lse.size()), {3e-6, 3e-6}}},
          [d](ThreadPool& pool, const Arrays& in, Arrays& out) {
            AttentionArgs args = args_of(*d, in, 3, out[0], out[1]);
            args.top = out[2].view(args.lse.shape());
            attention(pool, args);
          }};
}

Case attention_forward_case(const SharedAttention& d) {
  return {d->args.dtype,
          "",
          joined_arrays({d->q, d->k, d->v}, mask_arrays(*d)),
          {{"out", PoisonedArray(d->args.dtype, d->out.size()), attention_bound(d->args.dtype, 1e-5), 0,
            d->rounding.out},
           {"lse", PoisonedArray(DType::f32, d->lse.size()), {3e-6, 3e-6}}},
          [d](ThreadPool& pool, const Arrays& in, Arrays& out) {
            attention(pool, args_of(*d, in, 3, out[0], out[1]));
          }};
}

Case attention_backward_case(const SharedAttention& d) {
  const DType dtype = d->args.dtype;
  const Bound bound = attention_bound(dtype, 5e-5);
  return {dtype,
          "",
          joined_arrays({d->q, d->k, d->v, d->out, d->lse, d->dout}, mask_arrays(*d)),
          {{"dq", PoisonedArray(dtype, d->q.size()), bound, 0, d->rounding.dq},
           {"dk", PoisonedArray(dtype, d->k.size()), bound, 0, d->rounding.dk},
           {"dv", PoisonedArray(dtype, d->v.size()), bound, 0, d->rounding.dv}},
          [d](ThreadPool& pool, const Arrays& in, Arrays& out) {
            const AttentionArgs forward = args_of(*d, in, 6, in[3], in[4]);
            attention_backward(pool,
                               {forward, in[5].view(forward.out.shape()), out[0].view(forward.q.shape()),
                                out[1].view(forward.k.shape()), out[2].view(forward.v.shape())});
          }};
}

template <Case make(const SharedAttention&), bool in_keys = true>
std::vector<Case> attention_cases(std::uint32_t seed) {
  std::vector<Case> cases;
  for (const DType dtype : kFloatTypes) {
    for (const AttentionShape& s : kAttentionShapes) {
      seed += 4;
      if (s.in_keys && !in_keys) continue;
      cases.push_back(make(std::make_shared<AttentionData>(s, dtype, seed)));
      cases.back().what = fmt::format(
          "batch {}, {} queries of {} heads, {} keys of {} heads, widths {} and {}{}{}{}{}{}{}{}, seed {}",
          s.batch, s.q_length, s.heads, s.kv_length, s.kv_heads, s.qk_dim, s.v_dim,
          s.causal ? ", causal" : "", s.segments > 0 ? fmt::format(", {} segments", s.segments) : "",
          s.index ? ", positions given" : "",
          s.seen.limits() ? fmt::format(", window {}, chunk {}", s.seen.window, s.seen.chunk) : "",
          s.chosen > 0 ? fmt::format(", one key of {} chosen", s.chosen) : "",
          s.in_keys ? ", values in keys" : "", s.in_slots ? ", in slots" : "", seed);
    }
  }
  return cases;
}

// Cases of to_int8(), which gives the same bits everywhere.
std::vector<Case> to_int8_cases(std::uint32_t seed) {
  std::vector<Case> cases;
  for (const DType dtype : kFloatTypes) {
    for (const auto& [tokens, heads, dim] : {std::tuple{0, 1, 8}, {1, 1, 1}, {9, 2, 33}, {200, 3, 128}}) {
      const Shape shape{tokens, heads, dim};
      cases.push_back(
          {dtype,
           fmt::format("{} tokens of {} heads of {}, seed {}", tokens, heads, dim, ++seed),
           {PoisonedArray::normal(dtype, tokens * heads * dim, seed)},
           {{"values", PoisonedArray(DType::i8, tokens * heads * dim)},
            {"scales", PoisonedArray(DType::f32, tokens * heads)}},
           [shape](ThreadPool& pool, const Arrays& in, Arrays& out) {
             to_int8(pool, {in[0].view(shape), out[0].view(shape), out[1].view({shape[0], shape[1]})});
           }});
    }
  }
  return cases;
}

std::vector<Case> from_int8_cases(std::uint32_t seed) {
  std::vector<Case> cases;
  for (const DType dtype : kFloatTypes) {
    for (const auto& [tokens, heads, dim] : {std::tuple{0, 1, 8}, {1, 1, 1}, {9, 2, 33}, {200, 3, 128}}) {
      const Shape shape{tokens, heads, dim};
      cases.push_back(
          {dtype,
           fmt::format("{} tokens of {} heads of {}, seed {}", tokens, heads, dim, ++seed),
           {random_int8(tokens * heads * dim, seed), random_scales(tokens * heads, seed)},
           {{"x", PoisonedArray(dtype, tokens * heads * dim)}},
           [shape](ThreadPool& pool, const Arrays& in, Arrays& out) {
             from_int8(pool, {out[0].view(shape), in[0].view(shape), in[1].view({shape[0], shape[1]})});
           }});
    }
  }
  return cases;
}

// Two slots of five tokens, of which two rows of the batch give three and two to each; one row is padding.
std::vector<Case> append_cases(std::uint32_t seed) {
  constexpr std::int64_t kSlots = 2, kPlaces = 5, kBatch = 5, kTokens = 3;
  static const std::vector<AppendedRow> rows{{1, 3, 2}, {0, 0, 3}, {-1, 0, 0}, {1, 0, 3}, {0, 3, 2}};
  std::vector<std::int32_t> numbers;
  for (const AppendedRow& row : rows) numbers.insert(numbers.end(), {row.slot, row.at, row.tokens});
  std::vector<Case> cases;
  for (const DType dtype : kFloatTypes) {
    for (const auto& [heads, dim, int8] :
         {std::tuple{1, 8, false}, {3, 33, true}, {2, 64, false}, {1, 128, true}}) {
      const Shape from{kBatch, kTokens, heads, dim}, to{kSlots, kPlaces, heads, dim};
      const std::int64_t vectors = kSlots * kPlaces * heads;
      std::vector<Output> outputs{{"values", PoisonedArray(int8 ? DType::i8 : dtype, vectors * dim)}};
      if (int8) outputs.push_back({"scales", PoisonedArray(DType::f32, vectors)});
      cases.push_back(
          {dtype,
           fmt::format("{} heads of {}{}, seed {}", heads, dim, int8 ? " in 8 bits" : "", ++seed),
           {PoisonedArray::normal(dtype, kBatch * kTokens * heads * dim, seed), i32_array(numbers)},
           std::move(outputs),
           [from, to, int8](ThreadPool& pool, const Arrays& in, Arrays& out) {
             append_tokens(pool, {.x = in[0].view(from),
                                  .values = out[0].view(to),
                                  .scales = int8 ? out[1].view({to[0], to[1], to[2]}) : TensorView(),
                                  .rows = rows,
                                  .rows_there = in[1].view({kBatch, 3})});
           }});
    }
  }
  return cases;
}

}  // namespace

std::vector<KernelCases> attention_kernels() {
  return {{"attention", "attention", attention_cases<attention_forward_case>},
          {"attention_top", "attention", attention_cases<attention_top_case>},
          {"attention_backward", "attention_backward", attention_cases<attention_backward_case, false>},
          {"decode_attention", "decode_attention", decode_attention_cases},
          {"to_int8", "to_int8", to_int8_cases},
          {"from_int8", "from_int8", from_int8_cases},
          {"append_tokens", "append_tokens", append_cases}};
}

}  // namespace switchyard::selftest
