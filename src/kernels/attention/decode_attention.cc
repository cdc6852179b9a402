#include "kernels/attention/decode_attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/current_memory.h"
#include "core/error.h"
#include "core/tensor.h"
#include "kernels/attention/decode_attention_problem.h"
#include "kernels/attention/visible_keys.h"
#include "kernels/cuda/kernels.h"
#include "kernels/registry/simd_list.h"

namespace switchyard {
namespace {

constexpr ListedRun<DecodeAttentionRun, DecodeAttentionPiece> kDecodeAttention[] = {
    SWITCHYARD_SIMD_LIST(decode_attention)};

// A row's pieces, one behind the other in all, and the key that they begin with.
struct Row {
  std::int64_t first, pieces, first_key;
};

// The sums of all pieces of a query, in their order, and then its sink, if it has one.
template <typename T>
void join_pieces(const float* sums, std::int64_t pieces, std::int64_t stride, std::int64_t width,
                 const float* sink, T* out) {
  if (pieces == 0) {
    std::fill_n(out, width, static_cast<T>(0.0f));
    return;
  }
  float largest = sink != nullptr ? std::max(sums[0], *sink) : sums[0];
  for (std::int64_t i = 1; i < pieces; ++i) largest = std::max(largest, sums[i * stride]);
  std::vector<float> factors;
  float sum = 0;
  for (std::int64_t i = 0; i < pieces; ++i) {
    factors.push_back(std::exp(sums[i * stride] - largest));
    sum += factors.back() * sums[i * stride + 1];
  }
  if (sink != nullptr) sum += std::exp(*sink - largest);
  for (std::int64_t d = 0; d < width; ++d) {
    float value = 0;
    for (std::int64_t i = 0; i < pieces; ++i)
      value += factors[static_cast<std::size_t>(i)] * sums[i * stride + 2 + d];
    out[d] = static_cast<T>(value / sum);
  }
}

DecodeAttentionSpec spec_of(const DecodeAttentionArgs& a) {
  CHECK(a.q.rank() == 4 && a.k.rank() == 4 && a.v.rank() == 4 && is_float(a.q.dtype()),
        "[decode_attention] q {} of {}, k {}, v {}", to_string(a.q.shape()), name_of(a.q.dtype()),
        to_string(a.k.shape()), to_string(a.v.shape()));
  DecodeAttentionSpec s{.batch = a.q.dim(0),
                        .capacity = a.k.dim(1),
                        .kv_heads = a.q.dim(1),
                        .group = a.q.dim(2),
                        .qk_dim = a.q.dim(3),
                        .v_dim = a.v.dim(3),
                        .scale = a.scale,
                        .dtype = a.q.dtype(),
                        .int8 = a.k.dtype() == DType::i8,
                        .first_key_part = a.q.dim(3)};
  if (s.int8) {
    CHECK(a.k_scales.rank() == 4 && a.k_scales.dim(3) >= 1 && a.k_scales.dim(3) <= 2 &&
              a.first_key_part <= s.qk_dim && (a.first_key_part == s.qk_dim) == (a.k_scales.dim(3) == 1),
          "[decode_attention] scales {} of keys of {}, the first of {}", to_string(a.k_scales.shape()),
          s.qk_dim, a.first_key_part);
    s.key_scales = a.k_scales.dim(3);
    s.first_key_part = a.first_key_part;
  }
  const auto check = [](const char* name, const TensorView& x, DType dtype, const Shape& shape) {
    CHECK(x.dtype() == dtype && x.shape() == shape && x.is_contiguous(),
          "[decode_attention] {} {} of {}, expected {} of {}", name, to_string(x.shape()), name_of(x.dtype()),
          to_string(shape), name_of(dtype));
  };
  check("q", a.q, s.dtype, a.q.shape());
  check("k", a.k, s.stored(), {a.k.dim(0), s.capacity, s.kv_heads, s.qk_dim});
  check("v", a.v, s.stored(), {a.k.dim(0), s.capacity, s.kv_heads, s.v_dim});
  if (s.int8) {
    check("k_scales", a.k_scales, DType::f32, {a.k.dim(0), s.capacity, s.kv_heads, s.key_scales});
    check("v_scales", a.v_scales, DType::f32, {a.k.dim(0), s.capacity, s.kv_heads, 1});
  }
  check("out", a.out, s.dtype, {s.batch, s.kv_heads, s.group, s.v_dim});
  if (a.sinks.defined()) check("sinks", a.sinks, DType::f32, {s.kv_heads * s.group});
  CHECK(a.window >= 0 && a.chunk >= 0, "[decode_attention] a window of {} and chunks of {}", a.window,
        a.chunk);
  if (s.batch > 0) {
    check("lengths", a.lengths, DType::i32, {s.batch});
    check("rows", a.rows, DType::i32, {s.batch});
  }
  return s;
}

// The pieces of every row, and the number of keys in all of them. Where lengths are not known, every row is
// taken to be full.
struct Pieces {
  std::vector<Row> rows;
  std::int64_t pieces = 0, keys = 0;
};

Pieces pieces_of(const DecodeAttentionArgs& a) {
  Pieces result;
  const std::int64_t capacity = a.k.dim(1);
  const bool known = !a.lengths.is_abstract();
  for (std::int64_t b = 0; b < a.q.dim(0); ++b) {
    const std::int64_t length = known ? a.lengths.kernel_data<std::int32_t>()[b] : capacity;
    CHECK(length >= 0 && length <= capacity, "[decode_attention] row {} of {} keys, room for {}", b, length,
          capacity);
    if (known && length > 0) {
      const std::int64_t row = a.rows.kernel_data<std::int32_t>()[b];
      CHECK(row >= 0 && row < a.k.dim(0), "[decode_attention] row {} of {}", row, a.k.dim(0));
    }
    const KeyWindow seen{a.window, a.chunk};
    const std::int64_t first =
        length == 0 ? 0
                    : std::max<std::int64_t>(0, seen.first_visible(static_cast<std::int32_t>(length - 1)));
    const std::int64_t keys = length - first;
    result.rows.push_back({result.pieces, (keys + kKeysOfPiece - 1) / kKeysOfPiece, first});
    result.pieces += result.rows.back().pieces;
    result.keys += keys;
  }
  return result;
}

}  // namespace

void decode_attention(ThreadPool& pool, const DecodeAttentionArgs& given) {
  const DecodeAttentionSpec args = spec_of(given);
  if (given.q.on_gpu()) return gpu::decode_attention(given);
  const std::int64_t heads = args.kv_heads * args.group;
  const Pieces all = pieces_of(given);
  const std::vector<Row>& rows = all.rows;
  const std::int64_t pieces = all.pieces, keys = all.keys;
  const auto element = static_cast<std::int64_t>(size_of(args.dtype)),
             stored = static_cast<std::int64_t>(size_of(args.stored())),
             of_scales = args.int8 ? static_cast<std::int64_t>(sizeof(float)) * (args.key_scales + 1) : 0;
  const double widths = static_cast<double>(args.qk_dim + args.v_dim);
  if (pool.skips({"decode_attention", args.dtype, 2 * static_cast<double>(keys * heads) * widths,
                  static_cast<double>(keys * args.kv_heads * stored + args.batch * heads * element) * widths +
                      static_cast<double>(keys * args.kv_heads * of_scales)}))
    return;
  const std::int32_t *const lengths = given.lengths.kernel_data<std::int32_t>(),
                            *const row_of_keys = given.rows.kernel_data<std::int32_t>();
  const std::byte *const q = given.q.kernel_address(), *const k = given.k.kernel_address(),
                         *const v = given.v.kernel_address();
  std::byte* const out = given.out.kernel_address();
  const float* const k_scales = given.k_scales.kernel_data<float>();
  const float* const v_scales = given.v_scales.kernel_data<float>();
  const float* const sinks = given.sinks.kernel_data<float>();
  const DecodeAttentionPiece any{&args, q, k, v, 1, nullptr, nullptr, nullptr};
  const std::int64_t width = any.width();
  DecodeAttentionRun* const run = choose("decode_attention", kDecodeAttention, any);
  const UnchargedScope uncharged;  // scratch, as a thread's
  Buffer buffer(static_cast<std::size_t>(pieces * heads * width) * sizeof(float));
  auto* const sums = reinterpret_cast<float*>(buffer.data());
  pool.for_range(pieces, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const auto after = std::upper_bound(
          rows.begin(), rows.end(), i, [](std::int64_t piece, const Row& row) { return piece < row.first; });
      const std::int64_t b = after - rows.begin() - 1,
                         first = after[-1].first_key + (i - after[-1].first) * kKeysOfPiece;
      const std::int64_t key = (row_of_keys[b] * args.capacity + first) * args.kv_heads;
      run({&args, q + b * heads * args.qk_dim * element, k + key * args.qk_dim * stored,
           v + key * args.v_dim * stored, std::min(kKeysOfPiece, lengths[b] - first),
           args.int8 ? k_scales + key * args.key_scales : nullptr, args.int8 ? v_scales + key : nullptr,
           sums + i * heads * width});
    }
  });
  pool.for_range(args.batch * heads, 8, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const Row row = rows[static_cast<std::size_t>(i / heads)];
      const float* const from = sums + (row.first * heads + i % heads) * width;
      const auto join = [&](auto* to) {
        join_pieces(from, row.pieces, heads * width, args.v_dim, sinks ? sinks + i % heads : nullptr,
                    to + i * args.v_dim);
      };
      args.dtype == DType::f32 ? join(reinterpret_cast<float*>(out)) : join(reinterpret_cast<bfloat16*>(out));
    }
  });
}

}  // namespace switchyard
