// Cases of decode attention: groups of query heads, lengths around tiles' ends, windows, chunks, sinks, int8,
// and values that are parts of keys.
#include <fmt/format.h>

#include <utility>

#include "kernels/attention/attention_cases.h"
#include "kernels/attention/decode_attention.h"
#include "kernels/attention/visible_keys.h"
#include "kernels/registry/isa.h"

namespace switchyard::selftest {
namespace {

struct DecodeShape {
  std::vector<std::int32_t> lengths;
  std::int64_t capacity, kv_heads, group, qk_dim, v_dim;
  KeyWindow seen = {};
  bool values_in_keys = false;  // values are the first numbers of keys

  std::int64_t rows() const { return static_cast<std::int64_t>(lengths.size()); }
  std::int64_t heads() const { return kv_heads * group; }
  std::int64_t vectors() const { return rows() * capacity * kv_heads; }  // of keys, and of values
  std::int64_t queries() const { return rows() * heads(); }
};

const std::vector<DecodeShape>& decode_shapes() {
  static const std::vector<DecodeShape> shapes = {
      {{}, 3, 1, 1, 8, 8},
      {{1}, 1, 1, 1, 1, 1},
      {{128, 0, 129}, 129, 2, 2, 24, 20},
      {{300, 7}, 300, 4, 2, 64, 64},
      {{150}, 150, 1, 16, 72, 64},  // one key head for all
      {{260}, 260, 3, 5, 17, 33},
      {{260, 0, 3}, 260, 2, 2, 17, 33, {130, 0}},
      {{300}, 300, 1, 3, 16, 16, {0, 128}},
      {{1, 63, 64, 65, 129, 300, 0}, 300, 1, 4, 64, 64},  // groups of 1, 4, 8, and all widths in tiles
      {{300}, 300, 2, 1, 96, 96},
      {{65, 1, 257}, 300, 1, 8, 128, 128, {100, 0}},
      {{129, 64}, 130, 2, 20, 192, 128, {0, 64}},
      {{300, 63}, 300, 1, 1, 256, 256},
      {{300, 65}, 300, 1, 20, 576, 512, {}, true},
      {{63, 300}, 300, 2, 3, 48, 32, {90, 0}, true},
      {{130, 0, 3}, 260, 2, 2, 17, 9, {}, true},
  };
  return shapes;
}

// Tiles round softmax weights: a result moves by at most 2^-8 of the sum of its terms' magnitudes, which is
// the result for the values' magnitudes. inputs[2] are the values, where they are no parts of keys,
// inputs[1]; those have values apart then, given to `run`, which is the case's for such a shape.
template <typename Run>
void add_tile_rounding(Case& c, const DecodeShape& s, const Run& run) {
  if (c.dtype != DType::bf16) return;
  Arrays in = c.inputs, magnitudes{c.outputs[0].start};
  const bool int8 = in[1].dtype() == DType::i8;
  PoisonedArray values(in[1].dtype(), s.vectors() * s.v_dim);
  for (std::int64_t i = 0; i < values.size(); ++i) {
    const std::int64_t from = s.values_in_keys ? i / s.v_dim * s.qk_dim + i % s.v_dim : i;
    const PoisonedArray& all = in[s.values_in_keys ? 1 : 2];
    if (int8)
      static_cast<std::int8_t*>(values.data())[i] =
          static_cast<std::int8_t>(std::abs(static_cast<const std::int8_t*>(all.data())[from]));
    else
      values.set(i, std::abs(all.at(from)));
  }
  if (s.values_in_keys && int8) {  // its scale is the key's first
    in[4] = PoisonedArray(DType::f32, s.vectors());
    for (std::int64_t i = 0; i < s.vectors(); ++i) in[4].set(i, in[3].at(i * 2));
  }
  in[2] = std::move(values);
  DecodeShape apart = s;
  apart.values_in_keys = false;
  const ScopedIsa cap(Isa::ref);
  ThreadPool pool(1);
  run(apart, pool, in, magnitudes);
  for (std::int64_t i = 0; i < magnitudes[0].size(); ++i)
    c.outputs[0].tile_rounding.push_back(0x1p-8 * magnitudes[0].value(i));
}

// Rows of keys: the last row of queries has the first.
std::vector<std::int32_t> rows_of_keys(std::int64_t rows) {
  std::vector<std::int32_t> of_keys;
  for (std::int64_t b = rows; b-- > 0;) of_keys.push_back(static_cast<std::int32_t>(b));
  return of_keys;
}

// The arguments that both kinds of cases have; `values`: where v is no part of k.
DecodeAttentionArgs decode_args(const DecodeShape& s, const PoisonedArray& q, const PoisonedArray& k,
                                const PoisonedArray& values, const PoisonedArray& out) {
  const TensorView keys = k.view({s.rows(), s.capacity, s.kv_heads, s.qk_dim});
  return {.q = q.view({s.rows(), s.kv_heads, s.group, s.qk_dim}),
          .k = keys,
          .v = s.values_in_keys ? keys.slice(3, 0, s.v_dim)
                                : values.view({s.rows(), s.capacity, s.kv_heads, s.v_dim}),
          .lengths = {},
          .rows = {},
          .scale = s.qk_dim > 256 ? 0.05f : 0.3f,
          .out = out.view({s.rows(), s.kv_heads, s.group, s.v_dim}),
          .window = s.seen.window,
          .chunk = s.seen.chunk};
}

void run_decode(ThreadPool& pool, const DecodeShape& s, const PoisonedArray& q, DecodeAttentionArgs args) {
  const std::vector<std::int32_t> of_keys = rows_of_keys(s.rows());
  const Tensor lengths = beside(q, TensorView::of_host(s.lengths.data(), {s.rows()})),
               key_rows = beside(q, TensorView::of_host(of_keys.data(), {s.rows()}));
  args.lengths = lengths.view();
  args.rows = key_rows.view();
  decode_attention(pool, args);
}

std::vector<Case> decode_cases(std::uint32_t seed) {
  std::vector<Case> cases;
  for (const DType dtype : kFloatTypes) {
    for (const DecodeShape& s : decode_shapes()) {
      Draw draw(seed);
      Case c{dtype, fmt::format("{} rows, {} key heads of {} queries, widths {} and {}, seed {}", s.rows(),
                                s.kv_heads, s.group, s.qk_dim, s.v_dim, seed)};
      for (const std::int64_t count :
           {s.queries() * s.qk_dim, s.vectors() * s.qk_dim, s.values_in_keys ? 0 : s.vectors() * s.v_dim})
        c.inputs.push_back(draw.normal(dtype, count));
      c.inputs.push_back(draw.normal(DType::f32, s.heads()));
      c.outputs.push_back({"out", PoisonedArray(dtype, s.queries() * s.v_dim), attention_bound(dtype, 1e-5)});
      const auto run_shape = [](const DecodeShape& of, ThreadPool& pool, const Arrays& in, Arrays& out) {
        DecodeAttentionArgs args = decode_args(of, in[0], in[1], in[2], out[0]);
        if (of.seen.limits()) args.sinks = in[3].view({of.heads()});
        run_decode(pool, of, in[0], args);
      };
      c.run = [s, run_shape](ThreadPool& pool, const Arrays& in, Arrays& out) {
        run_shape(s, pool, in, out);
      };
      add_tile_rounding(c, s, run_shape);
      cases.push_back(std::move(c));
      seed = draw.seed();
    }
  }
  return cases;
}

// Keys and values in int8; wide keys in two parts.
std::vector<Case> decode_int8_cases(std::uint32_t seed) {
  std::vector<Case> cases;
  for (const DType dtype : kFloatTypes) {
    for (const DecodeShape& s : decode_shapes()) {
      const std::int64_t first_part = s.values_in_keys                      ? s.v_dim
                                      : s.qk_dim % 16 == 0 && s.qk_dim > 16 ? s.qk_dim - 16
                                      : s.qk_dim > 17                       ? s.qk_dim - 9
                                                                            : s.qk_dim,
                         scales = first_part < s.qk_dim ? 2 : 1;
      Case c{dtype,
             fmt::format("int8: {} rows, {} key heads of {} queries, widths {} in {} parts and {}, seed {}",
                         s.rows(), s.kv_heads, s.group, s.qk_dim, scales, s.v_dim, seed),
             {PoisonedArray::normal(dtype, s.queries() * s.qk_dim, seed),
              random_int8(s.vectors() * s.qk_dim, seed + 1),
              random_int8(s.values_in_keys ? 0 : s.vectors() * s.v_dim, seed + 2),
              random_scales(s.vectors() * scales, seed + 3),
              random_scales(s.values_in_keys ? 0 : s.vectors(), seed + 4)},
             {{"out", PoisonedArray(dtype, s.queries() * s.v_dim), attention_bound(dtype, 1e-5)}}};
      const auto run_shape = [scales, first_part](const DecodeShape& of, ThreadPool& pool, const Arrays& in,
                                                  Arrays& out) {
        DecodeAttentionArgs args = decode_args(of, in[0], in[1], in[2], out[0]);
        args.k_scales = in[3].view({of.rows(), of.capacity, of.kv_heads, scales});
        args.v_scales = of.values_in_keys ? args.k_scales.slice(3, 0, 1)
                                          : in[4].view({of.rows(), of.capacity, of.kv_heads, 1});
        args.first_key_part = first_part;
        run_decode(pool, of, in[0], args);
      };
      c.run = [s, run_shape](ThreadPool& pool, const Arrays& in, Arrays& out) {
        run_shape(s, pool, in, out);
      };
      add_tile_rounding(c, s, run_shape);
      cases.push_back(std::move(c));
      seed += 5;
    }
  }
  return cases;
}

}  // namespace

std::vector<Case> decode_attention_cases(std::uint32_t seed) {
  std::vector<Case> cases = decode_cases(seed);
  for (Case& c : decode_int8_cases(seed)) cases.push_back(std::move(c));
  return cases;
}

}  // namespace switchyard::selftest
