#include "kernels/attention/cpu/attention_tiles.h"

#if defined(__x86_64__)

namespace switchyard::cpu::SWITCHYARD_TILES::attention_tiles {
namespace {

// Packs 32 dims of a strip; `out` is where these dims' two tiles begin.
SWITCHYARD_TILED void pack_dims(const HeadRows& s, std::int64_t d, StripOrder order, Word* out) {
  if (order == StripOrder::left_positions || order == StripOrder::right_positions) {
    for (std::int64_t half = 0; half < 2; ++half, out += kTileWords) {
      __m512i rows[16], turned[16];
#pragma GCC unroll 16
      for (int i = 0; i < 16; ++i) rows[i] = dims_of(s, 16 * half + i, d);
      if (order == StripOrder::left_positions) {
        store_tile(rows, out);
      } else {
        transpose_units(rows, turned);
        store_tile(turned, out);
      }
    }
    return;
  }
  __m512i first[16], second[16], turned[16];
#pragma GCC unroll 16
  for (int r = 0; r < 16; ++r) {
    const bool apart = order == StripOrder::right_dims;
    const Pairs pairs =
        interleave(dims_of(s, apart ? r : 2 * r, d), dims_of(s, apart ? r + 16 : 2 * r + 1, d));
    first[r] = pairs.first;
    second[r] = pairs.second;
  }
  if (order == StripOrder::right_dims) {
    store_tile(first, out);
    store_tile(second, out + kTileWords);
  } else {
    transpose_units(first, turned);
    store_tile(turned, out);
    transpose_units(second, turned);
    store_tile(turned, out + kTileWords);
  }
}

SWITCHYARD_TILED void store_row(__m512i row, const HeadRows& out, std::int64_t i, std::int64_t d) {
  if (i >= out.rows) return;
  Word* x = out.x + i * out.stride + d;
  if (out.width - d >= 32) {
    _mm512_storeu_si512(x, row);
  } else {
    _mm512_mask_storeu_epi16(x, (1u << (out.width - d)) - 1u, row);
  }
}

// Rounded as bfloat16(float) does, in the upper half of each lane.
SWITCHYARD_TILED_INLINE __m512i round_even(__m512 x) {
  return _mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh(x)), 16);
}

}  // namespace

void pack_strip(const HeadRows& s, StripOrder order, Word* out) {
  for (std::int64_t d = 0; d < s.width; d += 32, out += 2 * kTileWords) pack_dims(s, d, order, out);
}

void pack_strip(const HeadRows& s, StripOrder first_order, Word* first, StripOrder second_order,
                Word* second) {
  for (std::int64_t d = 0; d < s.width; d += 32) {
    pack_dims(s, d, first_order, first + d * kStrip);
    pack_dims(s, d, second_order, second + d * kStrip);
  }
}

SWITCHYARD_TILED void store_transposed(const float* x, const float* factor, const HeadRows& out) {
  for (std::int64_t d = 0; d < out.width; d += 32, x += kBlockFloats) {
    for (std::int64_t half = 0; half < 2; ++half) {
      const __m512 scale = _mm512_load_ps(factor + 16 * half);
      __m512i rows[16], turned[16];
#pragma GCC unroll 16
      for (int r = 0; r < 16; ++r) {
        const float* even = x + (r / 8 * 2 + half) * kTileFloats + r % 8 * 32;
        rows[r] = paired(round_even(_mm512_mul_ps(_mm512_load_ps(even), scale)),
                         round_even(_mm512_mul_ps(_mm512_load_ps(even + 16), scale)));
      }
      transpose_units(rows, turned);
      for (std::int64_t i = 0; i < 16; ++i) store_row(turned[i], out, 16 * half + i, d);
    }
  }
}

SWITCHYARD_TILED void store_plain(const float* x, float factor, const HeadRows& out) {
  const __m512 scale = _mm512_set1_ps(factor);
  for (std::int64_t d = 0; d < out.width; d += 32, x += kBlockFloats) {
    for (std::int64_t i = 0; i < out.rows; ++i) {
      const float* left = x + i / 16 * 2 * kTileFloats + i % 16 * 16;
      const __m512bh both = _mm512_cvtne2ps_pbh(_mm512_mul_ps(_mm512_load_ps(left + kTileFloats), scale),
                                                _mm512_mul_ps(_mm512_load_ps(left), scale));
      store_row((__m512i)both, out, i, d);
    }
  }
}

Masks::Masks(const AttentionSpec& args)
    : args_(args),
      q_strips_(strips_of(args.q_length)),
      kv_strips_(strips_of(args.kv_length)),
      q_(side(args.batch, args.q_length, args.q_index, args.q_segment, true, args.seen)),
      kv_(side(args.batch, args.kv_length, args.kv_index, args.kv_segment, args.causal, {})) {}

// Keys without an order all stand before every query.
Masks::Side Masks::side(std::int64_t batch, std::int64_t length, const std::int32_t* index,
                        const std::int32_t* segment, bool ordered, const KeyWindow& seen) {
  Side result;
  const std::int64_t whole = strips_of(length) * kStrip;
  for (std::int64_t b = 0; b < batch; ++b) {
    for (std::int64_t i = 0; i < whole; ++i) {
      const std::int64_t from = b * length + std::min(i, length - 1);
      const std::int32_t at = index ? index[from] : static_cast<std::int32_t>(std::min(i, length - 1));
      result.index.push_back(ordered ? at : std::numeric_limits<std::int32_t>::min());
      result.segment.push_back(segment ? segment[from] : 0);
      result.visible.push_back(seen.first_visible(at));
    }
  }
  result.ranges = tile_ranges(batch, whole, result.index.data(), result.segment.data(), kStrip, seen);
  return result;
}

TileMask Masks::of(std::int64_t batch, std::int64_t q_strip, std::int64_t kv_strip) const {
  const TileMask mask = mask_of(q_.ranges[static_cast<std::size_t>(batch * q_strips_ + q_strip)],
                                kv_.ranges[static_cast<std::size_t>(batch * kv_strips_ + kv_strip)], true);
  const bool partial = (kv_strip + 1) * kStrip > args_.kv_length;
  return mask == TileMask::all && partial ? TileMask::some : mask;
}

SWITCHYARD_TILED void Masks::apply(std::int64_t batch, std::int64_t q_strip, std::int64_t kv_strip,
                                   float* scores) const {
  const auto q_at = static_cast<std::size_t>((batch * q_strips_ + q_strip) * kStrip);
  const auto kv_at = static_cast<std::size_t>((batch * kv_strips_ + kv_strip) * kStrip);
  const std::int64_t keys = std::min(kStrip, args_.kv_length - kv_strip * kStrip);
  const __m512 none = _mm512_set1_ps(-kInfinity);
  for (std::int64_t half = 0; half < 2; ++half) {
    const __m512i index = _mm512_loadu_si512(q_.index.data() + q_at + 16 * half);
    const __m512i segment = _mm512_loadu_si512(q_.segment.data() + q_at + 16 * half);
    const __m512i visible = _mm512_loadu_si512(q_.visible.data() + q_at + 16 * half);
    for (std::int64_t j = 0; j < kStrip; ++j) {
      float* row = scores + (j / 16 * 2 + half) * kTileFloats + j % 16 * 16;
      const auto key = kv_at + static_cast<std::size_t>(j);
      const __m512i place = _mm512_set1_epi32(kv_.index[key]);
      const __mmask16 before = _mm512_cmple_epi32_mask(place, index);
      const __mmask16 inside = _mm512_mask_cmpge_epi32_mask(before, place, visible);
      const __mmask16 allowed =
          _mm512_mask_cmpeq_epi32_mask(inside, _mm512_set1_epi32(kv_.segment[key]), segment);
      const auto keep = j < keys ? allowed : static_cast<__mmask16>(0);
      _mm512_store_ps(row, _mm512_mask_blend_ps(keep, none, _mm512_load_ps(row)));
    }
  }
}

}  // namespace switchyard::cpu::SWITCHYARD_TILES::attention_tiles
#endif  // x86-64
