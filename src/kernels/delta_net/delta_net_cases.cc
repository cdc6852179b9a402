// The gated delta net: its convolution, its gates, and its rule, of which the reference implementation goes
// token by token and the vector kernels chunk by chunk.
#include <fmt/format.h>

#include <cmath>

#include "kernels/delta_net/causal_conv.h"
#include "kernels/delta_net/delta_gates.h"
#include "kernels/delta_net/gated_delta.h"
#include "kernels/testing/cases.h"

namespace switchyard::selftest {
namespace {

// Segments of unlike lengths, the first of one token.
PoisonedArray segments_of(std::int64_t batch, std::int64_t length, bool several) {
  PoisonedArray segments(DType::i32, batch * length);
  auto* const ids = static_cast<std::int32_t*>(segments.data());
  for (std::int64_t i = 0; i < batch * length; ++i) {
    const std::int64_t s = i % length;
    ids[i] = !several ? 1 : s < 1 ? 1 : s < 1 + length / 3 ? 2 : s < length - 2 ? 3 : 0;
  }
  return segments;
}

struct DeltaShape {
  std::int64_t batch, length, key_heads, value_heads, key_width, value_width, chunk;
  bool several = false, unit = true;

  Shape keys() const { return {batch, length, key_heads, key_width}; }
  Shape values() const { return {batch, length, value_heads, value_width}; }
  Shape numbers() const { return {batch, length, value_heads}; }
  Shape state() const { return {batch, value_heads, key_width, value_width}; }
  std::string text() const {
    return fmt::format("q {}, v {}, chunks of {}{}{}", to_string(keys()), to_string(values()), chunk,
                       several ? ", segments" : "", unit ? "" : ", as they are");
  }
};

constexpr DeltaShape kDeltaShapes[] = {
    {1, 1, 1, 1, 1, 1, 64},
    {2, 7, 1, 2, 16, 12, 4},
    {1, 80, 2, 4, 16, 12, 64},
    {1, 33, 2, 2, 33, 20, 1},
    {2, 50, 1, 3, 8, 70, 16, true},
    {1, 130, 1, 1, 64, 64, 48, true},
    {1, 21, 1, 2, 5, 5, 64, false, false},
    {1, 40, 1, 2, 100, 24, 16},
    {2, 35, 1, 1, 150, 6, 64, true},
};

// q, k, v, g, beta, segments. Decays are between nearly none and nearly all.
Arrays delta_inputs(const DeltaShape& s, DType dtype, Draw& draw) {
  Arrays in;
  const float size = s.unit ? 1.0f : 0.3f;
  in.push_back(draw.normal(dtype, num_elements(s.keys()), size));
  in.push_back(draw.normal(dtype, num_elements(s.keys()), size));
  in.push_back(draw.normal(dtype, num_elements(s.values())));
  in.push_back(draw.normal(DType::f32, num_elements(s.numbers()), 2));
  in.push_back(draw.normal(DType::f32, num_elements(s.numbers())));
  for (std::int64_t i = 0; i < in[3].size(); ++i) {
    in[3].set(i, -std::exp(in[3].at(i) - 2));
    in[4].set(i, 1 / (1 + std::exp(-in[4].at(i))));
  }
  in.push_back(segments_of(s.batch, s.length, s.several));
  return in;
}

GatedDeltaArgs delta_args(const DeltaShape& s, const Arrays& in) {
  return {.q = in[0].view(s.keys()),
          .k = in[1].view(s.keys()),
          .v = in[2].view(s.values()),
          .g = in[3].view(s.numbers()),
          .beta = in[4].view(s.numbers()),
          .segments = s.several ? in[5].view({s.batch, s.length}) : TensorView(),
          .chunk = s.chunk,
          .unit_vectors = s.unit,
          .scale = 0.25f,
          .state = {},
          .out = {}};
}

// Sums of a chunk's tokens in another order; of the largest, as states hold what many tokens gave.
Output delta_output(const char* name, DType dtype, std::int64_t count) {
  const bool narrow = dtype == DType::bf16;
  return {name, PoisonedArray(dtype, count), {narrow ? 0x1p-7 : 2e-5, 1e-5}, narrow ? 1e-3 : 1e-5};
}

template <typename MakeCase>
std::vector<Case> delta_cases(std::uint32_t seed, const MakeCase& make) {
  std::vector<Case> cases;
  for (const DType dtype : kFloatTypes) {
    for (const DeltaShape& s : kDeltaShapes) {
      Draw draw(++seed * 8);
      const std::uint32_t first = draw.seed();
      make(cases, s, dtype, draw);
      cases.back().what = fmt::format("{}, seed {}", s.text(), first);
    }
  }
  return cases;
}

std::vector<Case> gated_delta_cases(std::uint32_t seed) {
  return delta_cases(seed, [](std::vector<Case>& cases, const DeltaShape& s, DType dtype, Draw& draw) {
    cases.push_back(Case{dtype,
                         "",
                         delta_inputs(s, dtype, draw),
                         {delta_output("out", dtype, num_elements(s.values()))},
                         [s](ThreadPool& pool, const Arrays& in, Arrays& out) {
                           GatedDeltaArgs args = delta_args(s, in);
                           args.out = out[0].view(s.values());
                           if (!s.several) args.state = out[1].view(s.state());
                           gated_delta(pool, args);
                         }});
    if (s.several) return;
    cases.back().outputs.push_back(delta_output("state", DType::f32, 0));
    cases.back().outputs.back().start = draw.normal(DType::f32, num_elements(s.state()));
  });
}

std::vector<Case> gated_delta_backward_cases(std::uint32_t seed) {
  return delta_cases(seed, [](std::vector<Case>& cases, const DeltaShape& s, DType dtype, Draw& draw) {
    const std::int64_t keys = num_elements(s.keys()), values = num_elements(s.values()),
                       numbers = num_elements(s.numbers());
    Case c{
        dtype,
        "",
        delta_inputs(s, dtype, draw),
        {delta_output("dq", dtype, keys), delta_output("dk", dtype, keys), delta_output("dv", dtype, values),
         delta_output("dg", DType::f32, numbers), delta_output("dbeta", DType::f32, numbers)},
        [s](ThreadPool& pool, const Arrays& in, Arrays& out) {
          gated_delta_backward(pool, {.forward = delta_args(s, in),
                                      .dout = in[6].view(s.values()),
                                      .dq = out[0].view(s.keys()),
                                      .dk = out[1].view(s.keys()),
                                      .dv = out[2].view(s.values()),
                                      .dg = out[3].view(s.numbers()),
                                      .dbeta = out[4].view(s.numbers())});
        }};
    c.inputs.push_back(draw.normal(dtype, values));
    cases.push_back(std::move(c));
  });
}

struct ConvShape {
  std::int64_t batch, length, channels, taps;
  bool several;

  Shape x() const { return {batch, length, channels}; }
  Shape w() const { return {channels, taps}; }
  Shape tail() const { return {batch, taps - 1, channels}; }
};

constexpr ConvShape kConvShapes[] = {{1, 1, 1, 4, false},
                                     {2, 3, 33, 4, false},
                                     {1, 40, 130, 4, true},
                                     {2, 9, 64, 2, true},
                                     {1, 20, 17, 8, false}};

template <typename MakeCase>
std::vector<Case> conv_cases(std::uint32_t seed, const MakeCase& make) {
  std::vector<Case> cases;
  for (const DType dtype : kFloatTypes) {
    for (const ConvShape& s : kConvShapes) {
      Draw draw(++seed * 8);
      const std::uint32_t first = draw.seed();
      Arrays in;
      in.push_back(draw.normal(dtype, num_elements(s.x())));
      in.push_back(draw.normal(DType::f32, num_elements(s.w())));
      in.push_back(segments_of(s.batch, s.length, s.several));
      cases.push_back(make(s, dtype, std::move(in), draw));
      cases.back().what = fmt::format("x {}, {} taps{}, seed {}", to_string(s.x()), s.taps,
                                      s.several ? ", segments" : "", first);
    }
  }
  return cases;
}

std::vector<Case> causal_conv_cases(std::uint32_t seed) {
  return conv_cases(seed, [](const ConvShape& s, DType dtype, Arrays in, Draw& draw) {
    Case c{dtype,
           "",
           std::move(in),
           {{"y", PoisonedArray(dtype, num_elements(s.x())), activation_bound(dtype)}},
           [s](ThreadPool& pool, const Arrays& given, Arrays& out) {
             causal_conv(pool, {.x = given[0].view(s.x()),
                                .w = given[1].view(s.w()),
                                .segments = s.several ? given[2].view({s.batch, s.length}) : TensorView(),
                                .tail = s.several ? TensorView() : out[1].view(s.tail()),
                                .y = out[0].view(s.x())});
           }};
    if (!s.several) c.outputs.push_back({"tail", draw.normal(dtype, num_elements(s.tail()))});
    return c;
  });
}

std::vector<Case> causal_conv_backward_cases(std::uint32_t seed) {
  return conv_cases(seed, [](const ConvShape& s, DType dtype, Arrays in, Draw& draw) {
    in.push_back(draw.normal(dtype, num_elements(s.x())));
    const Bound bound = activation_bound(dtype);
    return Case{dtype,
                "",
                std::move(in),
                {{"dx", PoisonedArray(dtype, num_elements(s.x())), {bound.relative, 2e-4}},
                 {"dw", PoisonedArray(DType::f32, num_elements(s.w())), {1e-4, 2e-4}}},
                [s](ThreadPool& pool, const Arrays& given, Arrays& out) {
                  causal_conv_backward(
                      pool, {.x = given[0].view(s.x()),
                             .w = given[1].view(s.w()),
                             .segments = s.several ? given[2].view({s.batch, s.length}) : TensorView(),
                             .dy = given[3].view(s.x()),
                             .dx = out[0].view(s.x()),
                             .dw = out[1].view(s.w())});
                }};
  });
}

double number_at(const PoisonedArray& x, std::int64_t i) {
  return static_cast<double>(x.at(i));
}
double logistic_of(double x) {
  return 1 / (1 + std::exp(-x));
}

// a, b, rate, bias.
Arrays gate_numbers(std::int64_t rows, std::int64_t heads, DType dtype, Draw& draw) {
  Arrays in;
  in.push_back(draw.normal(dtype, rows * heads, 3));
  in.push_back(draw.normal(dtype, rows * heads, 2));
  in.push_back(draw.normal(DType::f32, heads));
  in.push_back(draw.normal(DType::f32, heads));
  return in;
}

constexpr std::pair<std::int64_t, std::int64_t> kGateNumbers[] = {{1, 1}, {0, 4}, {200, 4}, {65, 33}};

std::vector<Case> delta_gates_cases(std::uint32_t seed) {
  std::vector<Case> cases;
  for (const DType dtype : kFloatTypes) {
    for (const auto& [rows, heads] : kGateNumbers) {
      Draw draw(++seed * 8);
      const std::string what = fmt::format("{} rows of {} heads, seed {}", rows, heads, draw.seed());
      const Shape shape{rows, heads};
      cases.push_back(
          {dtype,
           what,
           gate_numbers(rows, heads, dtype, draw),
           {{"g", PoisonedArray(DType::f32, rows * heads), {2e-6, 1e-7}},
            {"beta", PoisonedArray(DType::f32, rows * heads), {2e-6, 1e-7}}},
           [shape](ThreadPool& pool, const Arrays& in, Arrays& out) {
             delta_gates(pool, {.a = in[0].view(shape),
                                .b = in[1].view(shape),
                                .rate = in[2].view(),
                                .bias = in[3].view(),
                                .g = out[0].view(shape),
                                .beta = out[1].view(shape)});
           },
           [shape](const Arrays& in, Arrays& out) {
             for (std::int64_t i = 0; i < num_elements(shape); ++i) {
               const std::int64_t h = i % shape[1];
               const double x = number_at(in[0], i) + number_at(in[3], h);
               out[0].set(i, static_cast<float>(-std::exp(number_at(in[2], h)) * std::log1p(std::exp(x))));
               out[1].set(i, static_cast<float>(logistic_of(number_at(in[1], i))));
             }
           }});
    }
  }
  return cases;
}

std::vector<Case> delta_gates_backward_cases(std::uint32_t seed) {
  std::vector<Case> cases;
  for (const DType dtype : kFloatTypes) {
    for (const auto& [rows, heads] : kGateNumbers) {
      Draw draw(++seed * 8);
      const std::string what = fmt::format("{} rows of {} heads, seed {}", rows, heads, draw.seed());
      const Shape shape{rows, heads};
      const std::int64_t count = rows * heads;
      Arrays inputs = gate_numbers(rows, heads, dtype, draw);
      for (int i = 0; i < 4; ++i) inputs.push_back(draw.normal(DType::f32, count));  // dg, dbeta, g, beta
      for (std::int64_t i = 0; i < count; ++i) {
        const double x = number_at(inputs[0], i) + number_at(inputs[3], i % heads);
        inputs[6].set(
            i, static_cast<float>(-std::exp(number_at(inputs[2], i % heads)) * std::log1p(std::exp(x))));
        inputs[7].set(i, static_cast<float>(logistic_of(number_at(inputs[1], i))));
      }
      const Bound bound{dtype == DType::bf16 ? 0x1p-7 : 1e-5, 1e-6}, sums{1e-5, 1e-3};
      cases.push_back({dtype,
                       what,
                       std::move(inputs),
                       {{"da", PoisonedArray(dtype, count), bound},
                        {"db", PoisonedArray(dtype, count), bound},
                        {"drate", PoisonedArray(DType::f32, heads), sums},
                        {"dbias", PoisonedArray(DType::f32, heads), sums}},
                       [shape](ThreadPool& pool, const Arrays& in, Arrays& out) {
                         delta_gates_backward(pool, {.forward = {.a = in[0].view(shape),
                                                                 .b = in[1].view(shape),
                                                                 .rate = in[2].view(),
                                                                 .bias = in[3].view(),
                                                                 .g = in[6].view(shape),
                                                                 .beta = in[7].view(shape)},
                                                     .dg = in[4].view(shape),
                                                     .dbeta = in[5].view(shape),
                                                     .da = out[0].view(shape),
                                                     .db = out[1].view(shape),
                                                     .drate = out[2].view(),
                                                     .dbias = out[3].view()});
                       },
                       [shape](const Arrays& in, Arrays& out) {
                         std::vector<double> drate(static_cast<std::size_t>(shape[1])), dbias(drate);
                         for (std::int64_t i = 0; i < num_elements(shape); ++i) {
                           const std::int64_t h = i % shape[1];
                           const double x = number_at(in[0], i) + number_at(in[3], h),
                                        beta = number_at(in[7], i),
                                        da = -number_at(in[4], i) * std::exp(number_at(in[2], h)) *
                                             logistic_of(x);
                           out[0].set(i, static_cast<float>(da));
                           out[1].set(i, static_cast<float>(number_at(in[5], i) * beta * (1 - beta)));
                           drate[static_cast<std::size_t>(h)] += number_at(in[4], i) * number_at(in[6], i);
                           dbias[static_cast<std::size_t>(h)] += da;
                         }
                         for (std::int64_t h = 0; h < shape[1]; ++h) {
                           out[2].set(h, static_cast<float>(drate[static_cast<std::size_t>(h)]));
                           out[3].set(h, static_cast<float>(dbias[static_cast<std::size_t>(h)]));
                         }
                       }});
    }
  }
  return cases;
}

}  // namespace

std::vector<KernelCases> delta_net_kernels() {
  return {{"gated_delta", "gated_delta", gated_delta_cases},
          {"gated_delta_backward", "gated_delta_backward", gated_delta_backward_cases},
          {"causal_conv", "causal_conv", causal_conv_cases},
          {"causal_conv_backward", "causal_conv_backward", causal_conv_backward_cases},
          {"delta_gates", "delta_gates", delta_gates_cases},
          {"delta_gates_backward", "delta_gates_backward", delta_gates_backward_cases}};
}

}  // namespace switchyard::selftest
