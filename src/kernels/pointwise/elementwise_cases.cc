// Flat operations have the bits of the reference implementation; the activation and the gate are near it.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <random>

#include "kernels/pointwise/elementwise.h"
#include "kernels/pointwise/output_gate.h"
#include "kernels/pointwise/strided_copy.h"
#include "kernels/testing/cases.h"

namespace switchyard::selftest {

Bound activation_bound(DType dtype) {
  return {dtype == DType::f32 ? 1e-5 : 0x1p-7, 1e-6};
}

namespace {

constexpr std::int64_t kFlatSizes[] = {0, 1, 7, 16, 33, 1000, 70001};

using FlatRun = void(ThreadPool&, const Arrays&, PoisonedArray&);

// Cases of out = run(in[0], in[1]), normal numbers, of `dtype` unless `out_dtype` says otherwise.
std::vector<Case> flat_cases(
    std::uint32_t seed, FlatRun* run,
    const std::function<DType(DType)>& out_dtype = [](DType d) { return d; }) {
  std::vector<Case> cases;
  for (const DType dtype : kFloatTypes) {
    for (const std::int64_t n : kFlatSizes) {
      Draw draw(++seed * 4);
      cases.push_back({dtype,
                       fmt::format("{} elements, seed {}", n, draw.seed()),
                       {draw.normal(dtype, n), draw.normal(dtype, n)},
                       {{"out", PoisonedArray(out_dtype(dtype), n)}},
                       [run](ThreadPool& pool, const Arrays& in, Arrays& out) { run(pool, in, out[0]); }});
    }
  }
  return cases;
}

std::vector<Case> add_cases(std::uint32_t seed) {
  return flat_cases(seed, [](ThreadPool& pool, const Arrays& in, PoisonedArray& out) {
    add(pool, in[0].view(), in[1].view(), out.view());
  });
}

std::vector<Case> add_to_rows_cases(std::uint32_t seed) {
  std::vector<Case> cases;
  for (const DType dtype : kFloatTypes) {
    for (const auto& [rows, columns] :
         {std::pair<std::int64_t, std::int64_t>{0, 5}, {3, 0}, {1, 1}, {5, 33}, {7, 64}, {400, 100}}) {
      Draw draw(++seed * 4);
      const Shape shape{rows, columns};
      cases.push_back({dtype,
                       fmt::format("{} rows of {}, seed {}", rows, columns, draw.seed()),
                       {draw.normal(dtype, rows * columns), draw.normal(dtype, columns)},
                       {{"out", PoisonedArray(dtype, rows * columns)}},
                       [shape](ThreadPool& pool, const Arrays& in, Arrays& out) {
                         add_to_rows(pool, in[0].view(shape), in[1].view(), out[0].view(shape));
                       }});
    }
  }
  return cases;
}

std::vector<Case> scale_cases(std::uint32_t seed) {
  return flat_cases(seed, [](ThreadPool& pool, const Arrays& in, PoisonedArray& out) {
    scale(pool, in[0].view(), 0.3f, out.view());
  });
}

DType other_type(DType dtype) {
  return dtype == DType::f32 ? DType::bf16 : DType::f32;
}

// Of any bits: infinities, NaN, numbers below the smallest normal one. Compared as bits.
Case convert_bits_case(std::uint32_t seed) {
  constexpr std::int64_t kCount = 4000;
  std::mt19937 generator(seed);
  PoisonedArray x(DType::f32, kCount);
  for (std::int64_t i = 0; i < kCount; ++i)
    x.set(i, std::bit_cast<float>(static_cast<std::uint32_t>(generator())));
  return {DType::f32,
          fmt::format("{} elements of random bits, seed {}", kCount, seed),
          {std::move(x)},
          {{"pairs of elements", PoisonedArray(DType::i32, kCount / 2)}},
          [](ThreadPool& pool, const Arrays& in, Arrays& out) {
            convert(pool, in[0].view(), out[0].view().as(DType::bf16, 0, {kCount}));
          }};
}

std::vector<Case> convert_cases(std::uint32_t seed) {
  auto cases = flat_cases(
      seed,
      [](ThreadPool& pool, const Arrays& in, PoisonedArray& out) { convert(pool, in[0].view(), out.view()); },
      other_type);
  cases.push_back(convert_bits_case(seed));
  return cases;
}

std::vector<Case> add_into_f32_cases(std::uint32_t seed) {
  auto cases = flat_cases(
      seed,
      [](ThreadPool& pool, const Arrays& in, PoisonedArray& out) {
        add(pool, out.view(), in[0].view(), out.view());
      },
      [](DType) { return DType::f32; });
  for (Case& c : cases) c.outputs[0].start = PoisonedArray::normal(DType::f32, c.inputs[0].size(), ++seed);
  return cases;
}

std::vector<Case> sums_of_squares_cases(std::uint32_t seed) {
  auto cases = flat_cases(seed, [](ThreadPool& pool, const Arrays& in, PoisonedArray& out) {
    const SquareSumArgs args{in[0].view(), out.view()};
    sums_of_squares(pool, std::span(&args, 1));
  });
  for (Case& c : cases) c.outputs[0] = square_sums_output(1, squares_of(c.inputs[0]));
  return cases;
}

struct SwigluShape {
  std::int64_t rows, cols;
  bool weighted;
  DType dtype;
  std::int64_t size() const { return rows * cols; }
};

// make(shape, draw) gives a case without its name.
template <typename MakeCase>
std::vector<Case> swiglu_family(std::uint32_t seed, const MakeCase& make) {
  const std::pair<std::int64_t, std::int64_t> shapes[] = {{0, 5}, {3, 0}, {1, 1}, {5, 33}, {400, 100}};
  std::vector<Case> cases;
  for (const DType dtype : kFloatTypes) {
    for (const auto& [rows, cols] : shapes) {
      for (const bool weighted : {false, true}) {
        Draw draw(++seed * 8);
        const std::string what =
            fmt::format("{} rows of {}{}, seed {}", rows, cols, weighted ? ", weighted" : "", draw.seed());
        cases.push_back(make(SwigluShape{rows, cols, weighted, dtype}, draw));
        cases.back().what = what;
      }
    }
  }
  return cases;
}

std::vector<Case> swiglu_cases(std::uint32_t seed) {
  return swiglu_family(seed, [](const SwigluShape& s, Draw& draw) {
    return Case{
        s.dtype,
        "",
        {draw.normal(s.dtype, s.size(), 4), draw.normal(s.dtype, s.size()), draw.normal(DType::f32, s.rows)},
        {{"h", PoisonedArray(s.dtype, s.size()), activation_bound(s.dtype)}},
        [s](ThreadPool& pool, const Arrays& in, Arrays& out) {
          const Shape shape{s.rows, s.cols};
          swiglu(pool, {in[0].view(shape), in[1].view(shape), s.weighted ? in[2].view() : TensorView(),
                        out[0].view(shape)});
        }};
  });
}

std::vector<Case> swiglu_backward_cases(std::uint32_t seed) {
  return swiglu_family(seed, [](const SwigluShape& s, Draw& draw) {
    const Bound bound = activation_bound(s.dtype);
    const PoisonedArray gradient(s.dtype, s.size());
    Case c{s.dtype,
           "",
           {draw.normal(s.dtype, s.size(), 4), draw.normal(s.dtype, s.size()),
            draw.normal(DType::f32, s.rows), draw.normal(s.dtype, s.size())},
           {{"dgate", gradient, {bound.relative, 1e-5}}, {"dup", gradient, bound}},
           [s](ThreadPool& pool, const Arrays& in, Arrays& out) {
             const Shape shape{s.rows, s.cols};
             swiglu_backward(pool,
                             {in[0].view(shape), in[1].view(shape), s.weighted ? in[2].view() : TensorView(),
                              in[3].view(shape), out[0].view(shape), out[1].view(shape),
                              s.weighted ? out[2].view() : TensorView()});
           }};
    // A sum over the columns, in another order.
    if (s.weighted) c.outputs.push_back({"dw", PoisonedArray(DType::f32, s.rows), {1e-4, 1e-4}});
    return c;
  });
}

// Copies of a block of a padded array [a, b, c, d], its two middle dims swapped.
std::vector<Case> strided_copy_cases(std::uint32_t seed) {
  std::vector<Case> cases;
  const std::int64_t shapes[][4] = {{2, 3, 4, 5},   {1, 1, 1, 1},    {3, 1, 7, 2},
                                    {0, 2, 2, 2},   {2, 40, 30, 16}, {1, 1, 1, 100'003},
                                    {5, 1, 1, 300}, {3, 4, 5, 1},    {2, 70, 45, 1}};
  for (const DType dtype : kFloatTypes) {
    for (const auto& shape : shapes) {
      for (const std::int64_t gap : {0, 3}) {  // elements between rows of d
        const std::int64_t a = shape[0], b = shape[1], c = shape[2], d = shape[3], row = d + gap;
        const Shape from_strides{b * c * row, c * row, row, 1};
        const Shape swapped{a, c, b, d};
        cases.push_back(
            {dtype,
             fmt::format("[{}, {}, {}, {}] of rows of {}, seed {}", a, b, c, d, row, ++seed),
             {PoisonedArray::normal(dtype, a * b * c * row, seed)},
             {{"out", PoisonedArray(dtype, a * b * c * d)}},
             [=](ThreadPool& pool, const Arrays& in, Arrays& out) {
               strided_copy(pool, in[0].view().block(0, {a, b, c, d}, from_strides).permuted({0, 2, 1, 3}),
                            out[0].view(swapped));
             },
             [=](const Arrays& in, Arrays& out) {
               for (std::int64_t i = 0; i < a * b * c * d; ++i) {
                 const std::int64_t id = i % d, ib = i / d % b, ic = i / (d * b) % c, ia = i / (d * b * c);
                 out[0].set(i, in[0].at(((ia * b + ib) * c + ic) * row + id));
               }
             }});
      }
    }
  }
  return cases;
}

struct GateRows {
  std::int64_t rows, columns;
  bool one;  // gate of a row

  Shape x() const { return {rows, columns}; }
  Shape gate() const { return {rows, one ? 1 : columns}; }
};

constexpr GateRows kGateRows[] = {
    {0, 3, false}, {1, 1, true}, {5, 33, false}, {7, 33, true}, {300, 100, false}};

template <typename MakeCase>
std::vector<Case> gate_cases(std::uint32_t seed, const MakeCase& make) {
  std::vector<Case> cases;
  for (const DType dtype : kFloatTypes) {
    for (const GateRows& s : kGateRows) {
      Draw draw(++seed * 4);
      const std::uint32_t first = draw.seed();
      Arrays in;
      in.push_back(draw.normal(dtype, num_elements(s.x())));
      in.push_back(draw.normal(dtype, num_elements(s.gate()), 3));
      cases.push_back(make(s, dtype, std::move(in), draw));
      cases.back().what = fmt::format("x {}, gate {}, seed {}", to_string(s.x()), to_string(s.gate()), first);
    }
  }
  return cases;
}

std::vector<Case> sigmoid_gate_cases(std::uint32_t seed) {
  return gate_cases(seed, [](const GateRows& s, DType dtype, Arrays in, Draw&) {
    return Case{dtype,
                "",
                std::move(in),
                {{"out", PoisonedArray(dtype, num_elements(s.x())), activation_bound(dtype)}},
                [s](ThreadPool& pool, const Arrays& given, Arrays& out) {
                  output_gate(pool, {given[0].view(s.x()), given[1].view(s.gate()), out[0].view(s.x())});
                }};
  });
}

Case gate_backward_case(const GateRows& s, DType dtype, Arrays in, Draw& draw, GateCurve curve) {
  in.push_back(draw.normal(dtype, num_elements(s.x())));
  const Bound bound = activation_bound(dtype);
  return {dtype,
          "",
          std::move(in),
          {{"dx", PoisonedArray(dtype, num_elements(s.x())), bound},
           {"dgate", PoisonedArray(dtype, num_elements(s.gate())), {bound.relative, 1e-5}}},
          [s, curve](ThreadPool& pool, const Arrays& given, Arrays& out) {
            output_gate_backward(pool, {.x = given[0].view(s.x()),
                                        .gate = given[1].view(s.gate()),
                                        .dout = given[2].view(s.x()),
                                        .dx = out[0].view(s.x()),
                                        .dgate = out[1].view(s.gate()),
                                        .curve = curve});
          }};
}

std::vector<Case> sigmoid_gate_backward_cases(std::uint32_t seed) {
  return gate_cases(seed, [](const GateRows& s, DType dtype, Arrays in, Draw& draw) {
    return gate_backward_case(s, dtype, std::move(in), draw, GateCurve::sigmoid);
  });
}

double softplus(double x) {
  return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x)));
}

// The references of the softplus gate are in double: its kernels have one text for all CPUs.
std::vector<Case> softplus_gate_cases(std::uint32_t seed) {
  return gate_cases(seed, [](const GateRows& s, DType dtype, Arrays in, Draw&) {
    return Case{dtype,
                "",
                std::move(in),
                {{"out", PoisonedArray(dtype, num_elements(s.x())), activation_bound(dtype)}},
                [s](ThreadPool& pool, const Arrays& given, Arrays& out) {
                  output_gate(pool, {given[0].view(s.x()), given[1].view(s.gate()), out[0].view(s.x()),
                                     GateCurve::softplus});
                },
                [s](const Arrays& given, Arrays& out) {
                  for (std::int64_t i = 0; i < s.rows * s.columns; ++i)
                    out[0].set(i, static_cast<float>(static_cast<double>(given[0].at(i)) *
                                                     softplus(given[1].at(s.one ? i / s.columns : i))));
                }};
  });
}

std::vector<Case> softplus_gate_backward_cases(std::uint32_t seed) {
  return gate_cases(seed, [](const GateRows& s, DType dtype, Arrays in, Draw& draw) {
    Case made = gate_backward_case(s, dtype, std::move(in), draw, GateCurve::softplus);
    made.reference = [s](const Arrays& given, Arrays& out) {
      for (std::int64_t row = 0; row < s.rows; ++row) {
        double sum = 0;
        for (std::int64_t i = row * s.columns; i < (row + 1) * s.columns; ++i) {
          const double gate = given[1].at(s.one ? row : i), dout = given[2].at(i);
          const double slope = dout * static_cast<double>(given[0].at(i)) / (1 + std::exp(-gate));
          out[0].set(i, static_cast<float>(dout * softplus(gate)));
          if (!s.one) out[1].set(i, static_cast<float>(slope));
          sum += slope;
        }
        if (s.one) out[1].set(row, static_cast<float>(sum));
      }
    };
    return made;
  });
}

}  // namespace

std::vector<KernelCases> elementwise_kernels() {
  return {{"add", "add", add_cases},
          {"add into float32", "add", add_into_f32_cases},
          {"add_to_rows", "add_to_rows", add_to_rows_cases},
          {"scale", "scale", scale_cases},
          {"convert", "convert", convert_cases},
          {"sums_of_squares", "sum_of_squares", sums_of_squares_cases},
          {"swiglu", "swiglu", swiglu_cases},
          {"swiglu_backward", "swiglu_backward", swiglu_backward_cases},
          {"sigmoid_gate", "sigmoid_gate", sigmoid_gate_cases},
          {"sigmoid_gate_backward", "sigmoid_gate_backward", sigmoid_gate_backward_cases},
          {"softplus_gate", "softplus_gate", softplus_gate_cases},
          {"softplus_gate_backward", "softplus_gate_backward", softplus_gate_backward_cases},
          {"strided_copy", "strided_copy", strided_copy_cases}};
}

}  // namespace switchyard::selftest
