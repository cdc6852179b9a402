#include "kernels/decode_attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/current_memory.h"
#include "core/error.h"
#include "core/tensor.h"
#include "kernels/decode_attention_problem.h"
#include "kernels/simd_list.h"

namespace switchyard {
namespace {

constexpr Implementation<DecodeAttentionRun, DecodeAttentionPiece> kDecodeAttention[] = {
    SWITCHYARD_SIMD_LIST(decode_attention)};

// A row's pieces, one behind the other in all.
struct Row {
  std::int64_t first, pieces;
};

// The sums of all pieces of a query, in their order.
template <typename T>
void join_pieces(const float* sums, std::int64_t pieces, std::int64_t stride, std::int64_t width, T* out) {
  if (pieces == 0) {
    std::fill_n(out, width, static_cast<T>(0.0f));
    return;
  }
  float largest = sums[0];
  for (std::int64_t i = 1; i < pieces; ++i) largest = std::max(largest, sums[i * stride]);
  std::vector<float> factors;
  float sum = 0;
  for (std::int64_t i = 0; i < pieces; ++i) {
    factors.push_back(std::exp(sums[i * stride] - largest));
    sum += factors.back() * sums[i * stride + 1];
  }
  for (std::int64_t d = 0; d < width; ++d) {
    float value = 0;
    for (std::int64_t i = 0; i < pieces; ++i)
      value += factors[static_cast<std::size_t>(i)] * sums[i * stride + 2 + d];
    out[d] = static_cast<T>(value / sum);
  }
}

}  // namespace

void decode_attention(ThreadPool& pool, const DecodeAttentionArgs& args, const void* q, const void* k,
                      const void* v, void* out) {
  CHECK(is_float(args.dtype), "attention of {}", name_of(args.dtype));
  const std::int64_t heads = args.kv_heads * args.group;
  std::vector<Row> rows;
  std::int64_t pieces = 0, keys = 0;
  for (std::int64_t b = 0; b < args.batch; ++b) {
    const std::int64_t length = args.lengths[b];
    CHECK(length >= 0 && length <= args.capacity, "row {} of {} keys, room for {}", b, length, args.capacity);
    rows.push_back({pieces, (length + kKeysOfPiece - 1) / kKeysOfPiece});
    pieces += rows.back().pieces;
    keys += length;
  }
  const auto element = static_cast<std::int64_t>(size_of(args.dtype));
  const double widths = static_cast<double>(args.qk_dim + args.v_dim);
  if (pool.skips({"decode_attention", args.dtype, 2 * static_cast<double>(keys * heads) * widths,
                  static_cast<double>((keys * args.kv_heads + args.batch * heads) * element) * widths}))
    return;
  const DecodeAttentionPiece any{&args, q, k, v, 1, nullptr};
  const std::int64_t width = any.width();
  DecodeAttentionRun* const run = choose("decode_attention", kDecodeAttention, any);
  const UnchargedScope uncharged;  // scratch, as a thread's
  Buffer buffer(static_cast<std::size_t>(pieces * heads * width) * sizeof(float));
  auto* const sums = reinterpret_cast<float*>(buffer.data());
  const auto at = [&](const void* x, std::int64_t elements) {
    return static_cast<const std::byte*>(x) + elements * element;
  };
  pool.for_range(pieces, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const auto after = std::upper_bound(
          rows.begin(), rows.end(), i, [](std::int64_t piece, const Row& row) { return piece < row.first; });
      const std::int64_t b = after - rows.begin() - 1, first = (i - after[-1].first) * kKeysOfPiece;
      const std::int64_t key = (args.rows[b] * args.capacity + first) * args.kv_heads;
      run({&args, at(q, b * heads * args.qk_dim), at(k, key * args.qk_dim), at(v, key * args.v_dim),
           std::min(kKeysOfPiece, args.lengths[b] - first), sums + i * heads * width});
    }
  });
  pool.for_range(args.batch * heads, 8, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const Row row = rows[static_cast<std::size_t>(i / heads)];
      const float* const from = sums + (row.first * heads + i % heads) * width;
      const auto join = [&](auto* to) {
        join_pieces(from, row.pieces, heads * width, args.v_dim, to + i * args.v_dim);
      };
      args.dtype == DType::f32 ? join(static_cast<float*>(out)) : join(static_cast<bfloat16*>(out));
    }
  });
}

}  // namespace switchyard
