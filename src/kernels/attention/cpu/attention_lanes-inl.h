// Tiles of attention in fp32: copies of heads, masks. Included once per instruction set, inside
// a file that uses hwy/foreach_target.h.
#include <algorithm>
#include <limits>

#include "kernels/attention/attention_problem.h"
#include "kernels/attention/cpu/attention_product-inl.h"
#include "kernels/cpu/transpose_lanes-inl.h"

#if defined(SWITCHYARD_ATTENTION_LANES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef SWITCHYARD_ATTENTION_LANES_INL_H_
#undef SWITCHYARD_ATTENTION_LANES_INL_H_
#else
#define SWITCHYARD_ATTENTION_LANES_INL_H_
#endif

#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
HWY_BEFORE_NAMESPACE();
namespace switchyard {
namespace HWY_NAMESPACE {
namespace {

constexpr std::int64_t kTile = kAttentionTile;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

std::int64_t in_units(std::int64_t x, std::int64_t unit) {
  return (x + unit - 1) / unit * unit;
}

// Floats between the rows of a left operand: whole rows of a product, and an odd number of cache lines, so
// that a column's elements do not share a few sets of the cache.
std::int64_t left_stride(std::int64_t width) {
  return in_units(width, 32) + 16;
}

// A tile of vectors of one head: element (i, d) at x[i * stride + d], i < rows, d < width.
struct HeadTile {
  const void* x;
  DType dtype;
  std::int64_t stride;
  std::int64_t rows;
  std::int64_t width;

  // Calls body with the address of element (0, 0).
  template <typename Body>
  void typed(const Body& body) const {
    dtype == DType::f32 ? body(static_cast<const float*>(x)) : body(static_cast<const bfloat16*>(x));
  }
};

// The tile from position `begin` of a tensor [B, length, heads, width].
HeadTile head_tile(const void* x, DType dtype, std::int64_t batch, std::int64_t begin, std::int64_t length,
                   std::int64_t head, std::int64_t heads, std::int64_t width) {
  const std::int64_t at = ((batch * length + begin) * heads + head) * width;
  return {static_cast<const std::byte*>(x) + at * static_cast<std::int64_t>(size_of(dtype)), dtype,
          heads * width, std::min(kTile, length - begin), width};
}

// The tile of queries from position `begin`, of tensors with q's and with v's width.
HeadTile query_tile(const AttentionSpec& a, const void* x, std::int64_t width, std::int64_t batch,
                    std::int64_t head, std::int64_t begin) {
  return head_tile(x, a.dtype, batch, begin, a.q_length, head, a.heads, width);
}

HeadTile key_tile(const AttentionSpec& a, const void* x, std::int64_t width, std::int64_t batch,
                  std::int64_t kv_head, std::int64_t begin) {
  return head_tile(x, a.dtype, batch, begin, a.kv_length, kv_head, a.kv_heads, width);
}

// out[i * stride + d] = x(i, d), zeros up to kTile rows of `stride`.
void load_rows(const HeadTile& s, std::int64_t stride, float* out) {
  s.typed([&](const auto* x) {
    for (std::int64_t i = 0; i < s.rows; ++i, x += s.stride, out += stride) {
      std::int64_t d = 0;
      for (; d + kStep <= s.width; d += kStep) lanes::store(lanes::load(x + d), out + d);
      for (; d < s.width; ++d) out[d] = static_cast<float>(x[d]);
      std::fill(out + d, out + stride, 0.0f);
    }
  });
  std::fill(out, out + (kTile - s.rows) * stride, 0.0f);
}

// Panels over d: out[d / kPanel][i < kTile][d % kPanel] = scale * x(i, d), zeros past the end.
void load_row_panels(const HeadTile& s, float scale, float* out) {
  const std::int64_t width = in_units(s.width, kPanel);
  std::fill(out, out + (s.rows == kTile && s.width == width ? 0 : kTile * width), 0.0f);
  const V factor = hn::Set(D(), scale);
  s.typed([&](const auto* x) {
    for (std::int64_t i = 0; i < s.rows; ++i, x += s.stride) {
      for (std::int64_t panel = 0; panel < s.width; panel += kPanel) {
        float* const to = out + panel * kTile + i * kPanel;
        const std::int64_t count = std::min(kPanel, s.width - panel);
        std::int64_t d = 0;
        for (; d + kStep <= count; d += kStep)
          lanes::store(hn::Mul(factor, lanes::load(x + panel + d)), to + d);
        for (; d < count; ++d) to[d] = scale * static_cast<float>(x[panel + d]);
      }
    }
  });
}

// Panels over i: out[i / kPanel][d < width][i % kPanel] = scale * x(i, d), zeros past the end.
void load_column_panels(const HeadTile& s, float scale, float* out) {
  std::fill(out, out + (s.rows == kTile ? 0 : kTile * s.width), 0.0f);
  s.typed([&](const auto* x) {
    std::int64_t i = 0;
    const auto at = [&](std::int64_t row) { return out + row / kPanel * kPanel * s.width + row % kPanel; };
    for (; i + 4 <= s.rows; i += 4) lanes::transpose_four(x + i * s.stride, s.stride, s.width, at(i), kPanel);
    for (; i < s.rows; ++i) {
      for (std::int64_t d = 0; d < s.width; ++d) at(i)[d * kPanel] = static_cast<float>(x[i * s.stride + d]);
    }
  });
  const V factor = hn::Set(D(), scale);
  for (std::int64_t i = 0; i < kTile * s.width && scale != 1; i += kStep)
    lanes::store(hn::Mul(factor, lanes::load(out + i)), out + i);
}

template <typename T>
void store_row(const float* x, std::int64_t width, T* out) {
  std::int64_t d = 0;
  for (; d + kStep <= width; d += kStep) lanes::store(lanes::load(x + d), out + d);
  for (; d < width; ++d) out[d] = T(x[d]);
}

// x[i * stride + d] for the rows of the tile.
void store_rows(const float* x, std::int64_t stride, const HeadTile& s) {
  s.typed([&]<typename T>(const T* to) {
    T* out = const_cast<T*>(to);
    for (std::int64_t i = 0; i < s.rows; ++i, x += stride, out += s.stride) store_row(x, s.width, out);
  });
}

// Column i of panels [i / kPanel][d < rows][i % kPanel], `rows` a multiple of 4, times factor[i], becomes row
// i of the tile. `row_space` has room for kPanel * rows floats.
void store_columns(float* x, std::int64_t rows, const float* factor, const HeadTile& s, float* row_space) {
  s.typed([&]<typename T>(const T* to) {
    T* out = const_cast<T*>(to);
    for (std::int64_t panel = 0; panel < s.rows; panel += kPanel, factor += kPanel, x += kPanel * rows) {
      const V left = lanes::load(factor), right = lanes::load(factor + kStep);
      for (std::int64_t d = 0; d < rows; ++d) {
        float* const at = x + d * kPanel;
        lanes::store(hn::Mul(lanes::load(at), left), at);
        lanes::store(hn::Mul(lanes::load(at + kStep), right), at + kStep);
      }
      for (std::int64_t d = 0; d < rows; d += 4)
        lanes::transpose_four(x + d * kPanel, kPanel, kPanel, row_space + d, rows);
      for (std::int64_t i = 0; i < std::min(kPanel, s.rows - panel); ++i, out += s.stride)
        store_row(row_space + i * rows, s.width, out);
    }
  });
}

// Sets the scores [key][query] of keys that a panel of queries did not choose to -infinity.
void apply_choice(const AttentionSpec& a, std::int64_t batch, std::int64_t query, std::int64_t key,
                  std::int64_t keys, Panel<float> scores) {
  for (std::int64_t i = 0; i < std::min(kPanel, a.q_length - query); ++i) {
    const std::int32_t* const words = a.chosen_by(batch, query + i);
    for (std::int64_t j = 0; j < keys; ++j) {
      const std::int64_t t = key + j;
      if ((static_cast<std::uint32_t>(words[t / 32]) >> (t % 32) & 1u) == 0)
        scores.x[j * scores.stride + i] = -kInfinity;
    }
  }
}

// Sets the scores [key][query] of a panel of queries that do not exist to -infinity.
void apply_mask(const AttentionSpec& a, std::int64_t batch, std::int64_t query, std::int64_t key,
                std::int64_t keys, Panel<float> scores) {
  constexpr std::int32_t kLast = std::numeric_limits<std::int32_t>::max();
  const hn::RebindToSigned<D> whole;
  HWY_ALIGN std::int32_t index[kPanel] = {}, segment[kPanel] = {}, visible[kPanel] = {};
  for (std::int64_t i = 0; i < std::min(kPanel, a.q_length - query); ++i) {
    const std::int64_t at = batch * a.q_length + query + i;
    const auto place = static_cast<std::int32_t>(query + i);
    index[i] = !a.causal ? kLast : a.q_index ? a.q_index[at] : place;
    segment[i] = a.q_segment ? a.q_segment[at] : 0;
    visible[i] = a.seen.first_visible(index[i]);
  }
  for (std::int64_t j = 0; j < keys; ++j) {
    const std::int64_t at = batch * a.kv_length + key + j;
    const auto key_index = hn::Set(whole, a.kv_index ? a.kv_index[at] : static_cast<std::int32_t>(key + j));
    const auto key_segment = hn::Set(whole, a.q_segment ? a.kv_segment[at] : 0);
    for (std::int64_t i = 0; i < kPanel; i += kStep) {
      float* const score = scores.x + j * scores.stride + i;
      const auto outside = hn::Or(hn::Lt(hn::Load(whole, index + i), key_index),
                                  hn::Lt(key_index, hn::Load(whole, visible + i)));
      const auto allowed = hn::AndNot(outside, hn::Eq(hn::Load(whole, segment + i), key_segment));
      lanes::store(hn::IfThenElse(hn::RebindMask(D(), allowed), lanes::load(score), hn::Set(D(), -kInfinity)),
                   score);
    }
  }
  if (a.chosen != nullptr) apply_choice(a, batch, query, key, keys, scores);
}

// Consecutive fp32 arrays in one block of memory, each from a cache line on.
class Arrays {
 public:
  explicit Arrays(float* at) : next_(at) {}
  float* take(std::int64_t floats) {
    float* const result = next_;
    next_ += in_units(floats, 16);
    return result;
  }

 private:
  float* next_;
};

}  // namespace
}  // namespace HWY_NAMESPACE
}  // namespace switchyard
HWY_AFTER_NAMESPACE();
#endif  // AVX2 or AVX-512

#endif  // per-target include guard
