#include "kernels/attention/decode_attention.h"

#include <gtest/gtest.h>

#include <limits>
#include <string>

#include "kernels/attention/int8_vectors.h"
#include "kernels/attention/reference/attention_reference.h"
#include "kernels/attention/visible_keys.h"
#include "kernels/testing/elementwise_test_data.h"

namespace switchyard {
namespace {

using kernel_test::Array;

struct Shape {
  std::vector<std::int32_t> lengths;
  std::int64_t capacity, kv_heads, group, qk_dim, v_dim;
  KeyWindow seen = {};
  bool sinks = false;

  // The first key that row b of queries sees.
  std::int64_t first_key(std::size_t b) const {
    std::int64_t first = 0;
    for (; first < lengths[b]; ++first) {  // one by one, apart from KeyWindow
      const std::int64_t last = lengths[b] - 1;
      if ((seen.window == 0 || first > last - seen.window) &&
          (seen.chunk == 0 || first / seen.chunk == last / seen.chunk))
        break;
    }
    return first;
  }
};

const Shape kShapes[] = {
    {{}, 4, 1, 1, 8, 8},
    {{1}, 1, 1, 1, 1, 1},
    {{5, 1, 9}, 9, 2, 2, 16, 16},
    {{127, 128, 129}, 130, 2, 1, 24, 20},
    {{300, 17}, 301, 4, 2, 64, 64},
    {{0, 0, 140, 0, 3, 0}, 140, 2, 2, 16, 16},  // rows without keys
    {{260}, 400, 3, 5, 17, 33},
    {{33, 150}, 150, 1, 16, 72, 64},  // MLA: one key head for all queries
    {{40}, 64, 2, 7, 40, 128},
    {{40, 0, 5, 1}, 64, 2, 2, 40, 33, {}, true},
    {{300, 129, 0, 3, 128}, 301, 2, 2, 24, 20, {128, 0}},
    {{300, 257, 2, 0, 260}, 301, 1, 3, 24, 20, {200, 0}, true},
    {{300, 256, 257, 64, 0}, 301, 2, 1, 17, 33, {0, 64}, true},
    {{300, 5}, 300, 1, 4, 16, 16, {1, 0}},
    {{290, 300}, 300, 2, 2, 16, 16, {180, 150}},
};

// The row of keys and values of row `b` of queries: another one, of as many.
std::int64_t row_of_keys(const Shape& s, std::int64_t b) {
  return static_cast<std::int64_t>(s.lengths.size()) - 1 - b;
}

float sink_of(std::int64_t head) {
  return static_cast<float>(head) - 1;
}

// Row by row, by the reference of attention in general, of the keys that are seen.
template <typename T>
Array by_attention(const Shape& s, DType dtype, const Array& q, const Array& k, const Array& v) {
  const std::int64_t heads = s.kv_heads * s.group;
  Array out(dtype, static_cast<std::int64_t>(s.lengths.size()) * heads * s.v_dim);
  std::vector<float> lse(static_cast<std::size_t>(heads));
  for (std::size_t b = 0; b < s.lengths.size(); ++b) {
    const auto row = static_cast<std::int64_t>(b);
    for (std::int64_t i = 0; i < heads * s.v_dim && s.lengths[b] == 0; ++i)
      out.set(row * heads * s.v_dim + i, 0);
    if (s.lengths[b] == 0) continue;
    const std::int64_t keys = (row_of_keys(s, row) * s.capacity + s.first_key(b)) * s.kv_heads;
    AttentionSpec args{};
    args.batch = args.q_length = 1;
    const auto first = s.first_key(b);
    args.kv_length = s.lengths[b] - first;
    args.heads = heads;
    args.kv_heads = s.kv_heads;
    args.qk_dim = s.qk_dim;
    args.v_dim = s.v_dim;
    args.scale = 0.3f;
    args.causal = false;
    reference::attention(args, static_cast<const T*>(q.data()) + row * heads * s.qk_dim,
                         static_cast<const T*>(k.data()) + keys * s.qk_dim,
                         static_cast<const T*>(v.data()) + keys * s.v_dim,
                         static_cast<T*>(out.data()) + row * heads * s.v_dim, lse.data());
    for (std::int64_t n = 0; n < heads && s.sinks; ++n) {
      const float kept = 1 / (1 + std::exp(sink_of(n) - lse[static_cast<std::size_t>(n)]));
      for (std::int64_t i = (row * heads + n) * s.v_dim; i < (row * heads + n + 1) * s.v_dim; ++i)
        out.set(i, kept * out.at(i));
    }
  }
  return out;
}

// NaN in the places of keys that do not exist or are not seen.
Array cached(const Shape& s, DType dtype, std::int64_t width, std::uint32_t seed) {
  const auto rows = static_cast<std::int64_t>(s.lengths.size());
  Array x = Array::normal(dtype, rows * s.capacity * s.kv_heads * width, seed);
  for (std::int64_t i = 0; i < x.size(); ++i) {
    const std::int64_t token = i / (s.kv_heads * width);
    const auto b = static_cast<std::size_t>(row_of_keys(s, token / s.capacity));
    if (token % s.capacity >= s.lengths[b] || token % s.capacity < s.first_key(b))
      x.set(i, std::numeric_limits<float>::quiet_NaN());
  }
  return x;
}

// With k and v of q's dtype, or in int8 and then with scales, the first of a
// key being of `first_part` numbers.
struct Stored {
  const Array &k, &v;
  const Array *k_scales = nullptr, *v_scales = nullptr;
  std::int64_t key_scales = 1, first_part = 0;
};

void expect_out(const Shape& s, const Array& q, const Stored& stored, const Array& expected) {
  const DType dtype = q.dtype();
  const auto rows = static_cast<std::int64_t>(s.lengths.size());
  std::vector<std::int32_t> of_keys;
  for (std::int64_t b = 0; b < rows; ++b) of_keys.push_back(static_cast<std::int32_t>(row_of_keys(s, b)));
  std::vector<float> sinks;
  for (std::int64_t n = 0; n < s.kv_heads * s.group; ++n) sinks.push_back(sink_of(n));
  Array first(dtype, expected.size());
  for (const int threads : {1, 3}) {
    ThreadPool pool(threads);
    Array found(dtype, expected.size());
    DecodeAttentionArgs args{.q = q.view({rows, s.kv_heads, s.group, s.qk_dim}),
                             .k = stored.k.view({rows, s.capacity, s.kv_heads, s.qk_dim}),
                             .v = stored.v.view({rows, s.capacity, s.kv_heads, s.v_dim}),
                             .lengths = TensorView::of_host(s.lengths.data(), {rows}),
                             .rows = TensorView::of_host(of_keys.data(), {rows}),
                             .scale = 0.3f,
                             .out = found.view({rows, s.kv_heads, s.group, s.v_dim}),
                             .window = s.seen.window,
                             .chunk = s.seen.chunk};
    if (s.sinks) args.sinks = TensorView::of_host(sinks.data(), {s.kv_heads * s.group});
    if (stored.k_scales != nullptr) {
      args.k_scales = stored.k_scales->view({rows, s.capacity, s.kv_heads, stored.key_scales});
      args.v_scales = stored.v_scales->view({rows, s.capacity, s.kv_heads, 1});
      args.first_key_part = stored.first_part;
    }
    decode_attention(pool, args);
    EXPECT_TRUE(kernel_test::near(found, expected, dtype == DType::bf16 ? 1.0f / 128 : 3e-6f, 1e-5f));
    if (threads == 1) first = found;
    EXPECT_EQ(found, first);  // bit for bit
  }
}

void compare(const Shape& s, DType dtype) {
  const auto rows = static_cast<std::int64_t>(s.lengths.size()), heads = s.kv_heads * s.group;
  const Array q = Array::normal(dtype, rows * heads * s.qk_dim, 1), k = cached(s, dtype, s.qk_dim, 2),
              v = cached(s, dtype, s.v_dim, 3);
  expect_out(s, q, {k, v},
             dtype == DType::f32 ? by_attention<float>(s, dtype, q, k, v)
                                 : by_attention<bfloat16>(s, dtype, q, k, v));
}

// Vectors in int8, in parts side by side with a scale each, and what they stand for in f32. Keys that do not
// exist have the scale NaN.
struct Int8Vectors {
  Array values, scales, plain;
};

Int8Vectors in_int8(const Shape& s, std::int64_t width, std::int64_t first_part, std::uint32_t seed) {
  const Array x = cached(s, DType::f32, width, seed);
  const std::int64_t tokens = static_cast<std::int64_t>(s.lengths.size()) * s.capacity,
                     parts = first_part < width ? 2 : 1;
  Int8Vectors made{Array(DType::i8, x.size()), Array(DType::f32, tokens * s.kv_heads * parts),
                   Array(DType::f32, x.size())};
  ThreadPool pool(1);
  for (std::int64_t part = 0; part < parts; ++part) {
    const std::int64_t begin = part * first_part, count = part == 0 ? first_part : width - first_part;
    const auto of_part = [&](const Array& a) {
      return a.view({tokens, s.kv_heads, width}).slice(2, begin, count);
    };
    const TensorView scales =
        made.scales.view().block(part, {tokens, s.kv_heads}, {s.kv_heads * parts, parts});
    to_int8(pool, {of_part(x), of_part(made.values), scales});
    from_int8(pool, {of_part(made.plain), of_part(made.values), scales});
  }
  return made;
}

// The same numbers in f32 give the same.
void compare_int8(const Shape& s, DType dtype, std::int64_t first_part) {
  const auto rows = static_cast<std::int64_t>(s.lengths.size()), heads = s.kv_heads * s.group;
  const Array q = Array::normal(dtype, rows * heads * s.qk_dim, 1);
  Array plain_q(DType::f32, q.size());
  for (std::int64_t i = 0; i < q.size(); ++i) plain_q.set(i, q.at(i));
  const Int8Vectors k = in_int8(s, s.qk_dim, first_part, 2), v = in_int8(s, s.v_dim, s.v_dim, 3);
  const Array plain = by_attention<float>(s, DType::f32, plain_q, k.plain, v.plain);
  Array expected(dtype, plain.size());
  for (std::int64_t i = 0; i < plain.size(); ++i) expected.set(i, plain.at(i));
  expect_out(s, q, {k.values, v.values, &k.scales, &v.scales, first_part < s.qk_dim ? 2 : 1, first_part},
             expected);
}

TEST(DecodeAttention, OverKeysAndValuesInInt8) {
  for (const Isa isa : kernel_test::every_isa()) {
    const ScopedIsa cap(isa);
    for (std::size_t i = 0; i < std::size(kShapes); ++i) {
      SCOPED_TRACE(std::string(name_of(isa)) + ", shape " + std::to_string(i));
      const Shape& s = kShapes[i];
      for (const DType dtype : {DType::f32, DType::bf16}) {
        compare_int8(s, dtype, s.qk_dim);
        for (const std::int64_t first : {s.qk_dim / 2 + 1, s.qk_dim - 3})
          if (first > 0 && first < s.qk_dim) compare_int8(s, dtype, first);
      }
    }
  }
}

TEST(DecodeAttention, EqualsAttentionOfOneQuery) {
  for (const Isa isa : kernel_test::every_isa()) {
    const ScopedIsa cap(isa);
    for (std::size_t i = 0; i < std::size(kShapes); ++i) {
      SCOPED_TRACE(std::string(name_of(isa)) + ", shape " + std::to_string(i));
      compare(kShapes[i], DType::f32);
      compare(kShapes[i], DType::bf16);
    }
  }
}

TEST(DecodeAttention, LargeScoresAndNaN) {
  for (const Isa isa : kernel_test::every_isa()) {
    const ScopedIsa cap(isa);
    SCOPED_TRACE(name_of(isa));
    constexpr std::int64_t kKeys = 200;
    Array q(DType::f32, 1), k(DType::f32, kKeys), v(DType::f32, kKeys), out(DType::f32, 1);
    q.set(0, 1000);
    for (std::int64_t j = 0; j < kKeys; ++j) {
      k.set(j, j == 150 ? 1.0f : -1.0f);
      v.set(j, static_cast<float>(j));
    }
    const std::int32_t length = kKeys, row = 0;
    const DecodeAttentionArgs args{.q = q.view({1, 1, 1, 1}),
                                   .k = k.view({1, kKeys, 1, 1}),
                                   .v = v.view({1, kKeys, 1, 1}),
                                   .lengths = TensorView::of_host(&length, {1}),
                                   .rows = TensorView::of_host(&row, {1}),
                                   .out = out.view({1, 1, 1, 1})};
    ThreadPool pool(1);
    decode_attention(pool, args);
    EXPECT_EQ(out.at(0), 150.0f);
    v.set(3, std::numeric_limits<float>::quiet_NaN());
    decode_attention(pool, args);
    EXPECT_TRUE(std::isnan(out.at(0)));
    v.set(3, 0);
    k.set(3, std::numeric_limits<float>::quiet_NaN());
    decode_attention(pool, args);
    EXPECT_TRUE(std::isnan(out.at(0)));
  }
}

}  // namespace
}  // namespace switchyard
