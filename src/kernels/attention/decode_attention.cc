#include "kernels/attention/decode_attention.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "core/current_memory.h"
#include "core/error.h"
#include "core/tensor.h"
#include "kernels/attention/checks.h"
#include "kernels/attention/decode_attention_problem.h"
#include "kernels/attention/visible_keys.h"
#include "kernels/registry/simd_rows.h"

namespace switchyard {
namespace {

// A sequence's pieces, which follow those of the sequences before, and its keys from the first that is seen.
struct Sequence {
  std::int64_t first_piece, first_key, keys;

  std::int64_t pieces() const { return (keys + kKeysOfPiece - 1) / kKeysOfPiece; }
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

// Fails unless v is of the shape and has no gaps, or is the beginning of the vectors of k.
void check_values(const char* name, const TensorView& v, const TensorView& k, DType dtype,
                  const Shape& shape) {
  CHECK(v.dtype() == dtype && v.shape() == shape &&
            (v.is_contiguous() ||
             (v.strides() == k.strides() && (v.is_abstract() || v.device_address() == k.device_address()))),
        "[decode_attention] {} {} of {}, expected {} of {}", name, to_string(v.shape()), name_of(v.dtype()),
        to_string(shape), name_of(dtype));
}

void check(const DecodeAttentionArgs& a) {
  CHECK(a.q.rank() == 4 && a.k.rank() == 4 && a.v.rank() == 4 && is_float(a.q.dtype()),
        "[decode_attention] q {} of {}, k {}, v {}", to_string(a.q.shape()), name_of(a.q.dtype()),
        to_string(a.k.shape()), to_string(a.v.shape()));
  if (a.k.dtype() == DType::i8) {
    const std::int64_t width = a.q.dim(3);
    CHECK(a.k_scales.rank() == 4 && a.k_scales.dim(3) >= 1 && a.k_scales.dim(3) <= 2 &&
              a.first_key_part <= width && (a.first_key_part == width) == (a.k_scales.dim(3) == 1),
          "[decode_attention] scales {} of keys of {}, the first of {}", to_string(a.k_scales.shape()), width,
          a.first_key_part);
  }
  const DecodeAttentionSpec s = decode_attention_spec(a);
  const auto check_own = [](const char* name, const TensorView& x, DType dtype, const Shape& shape) {
    check_view("decode_attention", name, x, dtype, shape);
  };
  check_own("q", a.q, s.dtype, a.q.shape());
  check_own("k", a.k, s.stored(), {a.k.dim(0), s.capacity, s.kv_heads, s.qk_dim});
  check_values("v", a.v, a.k, s.stored(), {a.k.dim(0), s.capacity, s.kv_heads, s.v_dim});
  if (s.int8) {
    check_own("k_scales", a.k_scales, DType::f32, {a.k.dim(0), s.capacity, s.kv_heads, s.key_scales});
    check_values("v_scales", a.v_scales, a.k_scales, DType::f32, {a.k.dim(0), s.capacity, s.kv_heads, 1});
  }
  check_own("out", a.out, s.dtype, {s.batch, s.kv_heads, s.group, s.v_dim});
  if (a.sinks.defined()) check_own("sinks", a.sinks, DType::f32, {s.kv_heads * s.group});
  CHECK(a.window >= 0 && a.chunk >= 0, "[decode_attention] a window of {} and chunks of {}", a.window,
        a.chunk);
  if (s.batch > 0) {
    check_own("lengths", a.lengths, DType::i32, {s.batch});
    check_own("rows", a.rows, DType::i32, {s.batch});
  }
}

// Sequence b, whose pieces begin with `first_piece`. Where lengths are not known on the host, every sequence
// is taken to be full.
Sequence sequence_of(const DecodeAttentionArgs& a, std::int64_t b, std::int64_t first_piece) {
  const std::int64_t capacity = a.k.dim(1);
  const bool known = !a.lengths.is_abstract() && !a.lengths.on_gpu();
  const std::int64_t length = known ? a.lengths.kernel_data<std::int32_t>()[b] : capacity;
  CHECK(length >= 0 && length <= capacity, "[decode_attention] sequence {} of {} keys, room for {}", b,
        length, capacity);
  if (known && length > 0) {
    const std::int64_t row = a.rows.kernel_data<std::int32_t>()[b];
    CHECK(row >= 0 && row < a.k.dim(0), "[decode_attention] row {} of {}", row, a.k.dim(0));
  }
  if (length == 0) return {first_piece, 0, 0};
  const KeyWindow seen{a.window, a.chunk};
  const auto first = std::max<std::int64_t>(0, seen.first_visible(static_cast<std::int32_t>(length - 1)));
  return {first_piece, first, length - first};
}

Work work_of(const DecodeAttentionArgs& given) {
  const DecodeAttentionSpec a = decode_attention_spec(given);
  std::int64_t keys = 0;
  for (std::int64_t b = 0; b < a.batch; ++b) keys += sequence_of(given, b, 0).keys;
  const std::int64_t heads = a.kv_heads * a.group, element = static_cast<std::int64_t>(size_of(a.dtype)),
                     stored = static_cast<std::int64_t>(size_of(a.stored())),
                     of_scales = a.int8 ? static_cast<std::int64_t>(sizeof(float)) * (a.key_scales + 1) : 0;
  const double widths = static_cast<double>(a.qk_dim + a.v_dim),
               read = a.values_in_keys() ? static_cast<double>(a.qk_dim) : widths;
  return {.dtype = a.dtype,
          .flops = 2 * static_cast<double>(keys * heads) * widths,
          .bytes = static_cast<double>(keys * a.kv_heads * stored) * read +
                   static_cast<double>(a.batch * heads * element) * widths +
                   static_cast<double>(keys * a.kv_heads * of_scales)};
}

void share_pieces(ThreadPool& pool, const DecodeAttentionArgs& given, DecodeAttentionKernel* kernel) {
  const DecodeAttentionSpec args = decode_attention_spec(given);
  std::vector<Sequence> sequences;
  std::int64_t pieces = 0;
  for (std::int64_t b = 0; b < args.batch; ++b) {
    sequences.push_back(sequence_of(given, b, pieces));
    pieces += sequences.back().pieces();
  }
  const auto element = static_cast<std::int64_t>(size_of(args.dtype)),
             stored = static_cast<std::int64_t>(size_of(args.stored()));
  const std::int32_t* const row_of_keys = given.rows.kernel_data<std::int32_t>();
  const std::byte *const q = given.q.kernel_address(), *const k = given.k.kernel_address(),
                         *const v = given.v.kernel_address();
  std::byte* const out = given.out.kernel_address();
  const float* const k_scales = given.k_scales.kernel_data<float>();
  const float* const v_scales = given.v_scales.kernel_data<float>();
  const float* const sinks = given.sinks.kernel_data<float>();
  const std::int64_t heads = args.kv_heads * args.group, width = args.sums_width();
  const UnchargedScope uncharged;  // scratch, as a thread's
  Buffer buffer(static_cast<std::size_t>(pieces * heads * width) * sizeof(float));
  auto* const sums = reinterpret_cast<float*>(buffer.data());
  pool.for_range(pieces, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const auto after = std::upper_bound(
          sequences.begin(), sequences.end(), i,
          [](std::int64_t piece, const Sequence& sequence) { return piece < sequence.first_piece; });
      const Sequence& sequence = after[-1];
      const std::int64_t b = after - sequences.begin() - 1,
                         before = (i - sequence.first_piece) * kKeysOfPiece,
                         first = sequence.first_key + before;
      const std::int64_t key = (row_of_keys[b] * args.capacity + first) * args.kv_heads;
      kernel({&args, q + b * heads * args.qk_dim * element, k + key * args.qk_dim * stored,
              v + key * args.v_row * stored, std::min(kKeysOfPiece, sequence.keys - before),
              args.int8 ? k_scales + key * args.key_scales : nullptr,
              args.int8 ? v_scales + key * args.v_scale_row : nullptr, sums + i * heads * width});
    }
  });
  pool.for_range(args.batch * heads, 8, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const Sequence& sequence = sequences[static_cast<std::size_t>(i / heads)];
      const float* const from = sums + (sequence.first_piece * heads + i % heads) * width;
      const auto join = [&](auto* to) {
        join_pieces(from, sequence.pieces(), heads * width, args.v_dim, sinks ? sinks + i % heads : nullptr,
                    to + i * args.v_dim);
      };
      args.dtype == DType::f32 ? join(reinterpret_cast<float*>(out)) : join(reinterpret_cast<bfloat16*>(out));
    }
  });
}

template <DecodeAttentionKernel* kernel>
void on_pieces(ThreadPool& pool, const DecodeAttentionArgs& args) {
  share_pieces(pool, args, kernel);
}

constexpr Implementation<DecodeAttentionArgs> kDecodes[] = {
    {"cuda_split", Gpu::any, gpu::split_decode_attention, gpu::split_decode_refuses, &proofs::split_decode},
    {"cuda", Gpu::any, gpu::decode_attention},
    SWITCHYARD_SIMD_ROWS(on_pieces, decode_attention)};
constexpr Kernel<DecodeAttentionArgs> kDecodeAttention{"decode_attention", work_of, &DecodeAttentionArgs::q,
                                                       kDecodes};

}  // namespace

DecodeAttentionSpec decode_attention_spec(const DecodeAttentionArgs& a) {
  const bool int8 = a.k.dtype() == DType::i8;
  const auto row_of = [](const TensorView& x) { return x.is_contiguous() ? x.dim(3) : x.stride(2); };
  return {.batch = a.q.dim(0),
          .capacity = a.k.dim(1),
          .kv_heads = a.q.dim(1),
          .group = a.q.dim(2),
          .qk_dim = a.q.dim(3),
          .v_dim = a.v.dim(3),
          .scale = a.scale,
          .dtype = a.q.dtype(),
          .int8 = int8,
          .key_scales = int8 ? a.k_scales.dim(3) : 0,
          .first_key_part = int8 ? a.first_key_part : a.q.dim(3),
          .v_row = row_of(a.v),
          .v_scale_row = int8 ? row_of(a.v_scales) : 0};
}

void decode_attention(ThreadPool& pool, const DecodeAttentionArgs& args) {
  check(args);
  run(pool, kDecodeAttention, args);
}

}  // namespace switchyard
