// Flat operations have the scalar twin's bits; the activation is near it.
#include "kernels/elementwise.h"

#include <fmt/format.h>

#include <bit>
#include <cstring>
#include <random>

#include "selftest/kernel.h"

namespace switchyard::selftest {

Bound activation_bound(DType dtype) {
  return {dtype == DType::f32 ? 1e-5 : 0x1p-7, 1e-6};
}

namespace {

constexpr std::int64_t kFlatSizes[] = {0, 1, 7, 16, 33, 1000, 70001};

using FlatRun = void(ThreadPool&, DType, const Arrays&, PoisonedArray&, std::int64_t);

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
                       [run, dtype, n](ThreadPool& pool, const Arrays& in, Arrays& out) {
                         run(pool, dtype, in, out[0], n);
                       }});
    }
  }
  return cases;
}

std::vector<Case> add_cases(std::uint32_t seed) {
  return flat_cases(seed,
                    [](ThreadPool& pool, DType dtype, const Arrays& in, PoisonedArray& out, std::int64_t n) {
                      add(pool, dtype, in[0].data(), in[1].data(), out.data(), n);
                    });
}

std::vector<Case> multiply_cases(std::uint32_t seed) {
  return flat_cases(seed,
                    [](ThreadPool& pool, DType dtype, const Arrays& in, PoisonedArray& out, std::int64_t n) {
                      multiply(pool, dtype, in[0].data(), in[1].data(), out.data(), n);
                    });
}

std::vector<Case> scale_cases(std::uint32_t seed) {
  return flat_cases(seed, [](ThreadPool& pool, DType dtype, const Arrays& in, PoisonedArray& out,
                             std::int64_t n) { scale(pool, dtype, in[0].data(), 0.3f, out.data(), n); });
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
            convert(pool, DType::f32, in[0].data(), DType::bf16, out[0].data(), kCount);
          }};
}

std::vector<Case> convert_cases(std::uint32_t seed) {
  auto cases = flat_cases(
      seed,
      [](ThreadPool& pool, DType dtype, const Arrays& in, PoisonedArray& out, std::int64_t n) {
        convert(pool, dtype, in[0].data(), other_type(dtype), out.data(), n);
      },
      other_type);
  cases.push_back(convert_bits_case(seed));
  return cases;
}

std::vector<Case> add_into_f32_cases(std::uint32_t seed) {
  auto cases = flat_cases(
      seed,
      [](ThreadPool& pool, DType dtype, const Arrays& in, PoisonedArray& out, std::int64_t n) {
        add_into_f32(pool, out.floats(), dtype, in[0].data(), n);
      },
      [](DType) { return DType::f32; });
  for (Case& c : cases) c.outputs[0].start = PoisonedArray::normal(DType::f32, c.inputs[0].size(), ++seed);
  return cases;
}

std::vector<Case> sum_of_squares_cases(std::uint32_t seed) {
  auto cases = flat_cases(
      seed, [](ThreadPool& pool, DType dtype, const Arrays& in, PoisonedArray& out, std::int64_t n) {
        const double sum = sum_of_squares(pool, dtype, in[0].data(), n);
        std::memcpy(out.data(), &sum, sizeof(sum));
      });
  for (Case& c : cases) c.outputs[0] = {"halves of the sum", PoisonedArray(DType::i32, 2)};
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
          swiglu(pool, s.dtype, in[0].data(), in[1].data(), s.weighted ? in[2].floats() : nullptr, s.rows,
                 s.cols, out[0].data());
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
             swiglu_backward(pool, s.dtype, in[0].data(), in[1].data(), s.weighted ? in[2].floats() : nullptr,
                             in[3].data(), s.rows, s.cols, out[0].data(), out[1].data(),
                             s.weighted ? out[2].floats() : nullptr);
           }};
    // A sum over the columns, in another order.
    if (s.weighted) c.outputs.push_back({"dw", PoisonedArray(DType::f32, s.rows), {1e-4, 1e-4}});
    return c;
  });
}

std::vector<Case> transpose_blocks_cases(std::uint32_t seed) {
  std::vector<Case> cases;
  const std::int64_t shapes[][4] = {{2, 3, 4, 5}, {1, 1, 1, 1}, {3, 1, 7, 2}, {0, 2, 2, 2}, {2, 40, 30, 16}};
  for (const DType dtype : kFloatTypes) {
    for (const auto& [a, b, c, d] : shapes) {
      const std::int64_t n = a * b * c * d, bytes = static_cast<std::int64_t>(size_of(dtype));
      cases.push_back({dtype,
                       fmt::format("[{}, {}, {}, {}], seed {}", a, b, c, d, ++seed),
                       {PoisonedArray::normal(dtype, n, seed)},
                       {{"out", PoisonedArray(dtype, n)}},
                       [=, a = a, b = b, c = c, d = d](ThreadPool& pool, const Arrays& in, Arrays& out) {
                         transpose_blocks(pool, bytes, in[0].data(), a, b, c, d, out[0].data());
                       },
                       [=, b = b, c = c, d = d](const Arrays& in, Arrays& out) {
                         for (std::int64_t i = 0; i < n; ++i) {
                           const std::int64_t id = i % d, ic = i / d % c, ib = i / (d * c) % b,
                                              ia = i / (d * c * b);
                           out[0].set(((ia * c + ic) * b + ib) * d + id, in[0].at(i));
                         }
                       }});
    }
  }
  return cases;
}

}  // namespace

std::vector<Kernel> elementwise_kernels() {
  return {{"add", "add", add_cases},
          {"add_into_f32", "add_into_f32", add_into_f32_cases},
          {"multiply", "multiply", multiply_cases},
          {"scale", "scale", scale_cases},
          {"convert", "convert", convert_cases},
          {"sum_of_squares", "sum_of_squares", sum_of_squares_cases},
          {"swiglu", "swiglu", swiglu_cases},
          {"swiglu_backward", "swiglu_backward", swiglu_backward_cases},
          {"transpose_blocks", nullptr, transpose_blocks_cases}};
}

}  // namespace switchyard::selftest
