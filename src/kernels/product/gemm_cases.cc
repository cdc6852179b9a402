// Products of fractions that are exact in fp32 in any order: no tolerance.
#include <fmt/format.h>

#include <limits>

#include "kernels/product/gemm.h"
#include "kernels/testing/cases.h"
#include "kernels/testing/exact_operands.h"

namespace switchyard::selftest {
namespace {

struct GemmShape {
  std::int64_t batch, m, n, k;
};

// NaN between the rows of an operand, which must not be read.
void poison_padding(PoisonedArray& x, std::int64_t width, std::int64_t stride) {
  for (std::int64_t i = 0; i < x.size(); ++i) {
    if (i % stride >= width) x.set(i, std::numeric_limits<float>::quiet_NaN());
  }
}

// flags: bit 0 A transposed, bit 1 B transposed, bit 2 accumulate. padding: elements between the end of a
// row and the next.
Case gemm_case(const GemmShape& s, int flags, std::int64_t padding, DType dtype, DType c_dtype,
               std::uint32_t seed) {
  GemmArgs args;
  args.transpose_a = (flags & 1) != 0;
  args.transpose_b = (flags & 2) != 0;
  args.accumulate = (flags & 4) != 0;
  const std::int64_t a_rows = args.transpose_a ? s.k : s.m, a_columns = args.transpose_a ? s.m : s.k;
  const std::int64_t b_rows = args.transpose_b ? s.n : s.k, b_columns = args.transpose_b ? s.k : s.n;
  const std::int64_t lda = a_columns + padding, ldb = b_columns + padding, ldc = s.n + padding;
  ExactOperands draw(dtype, seed);
  PoisonedArray a = draw.left(s.batch * a_rows * lda), b = draw.right(s.batch * b_rows * ldb);
  if (padding > 0) poison_padding(a, a_columns, lda), poison_padding(b, b_columns, ldb);
  const std::int64_t c_size = s.batch * s.m * ldc;
  PoisonedArray c = args.accumulate ? draw.addend(c_dtype, c_size) : PoisonedArray(c_dtype, c_size);
  for (std::int64_t i = 0; i < c_size; ++i) {
    if (i % ldc >= s.n) c.set(i, 77.0f);  // must stay
  }
  const std::string what =
      fmt::format("batch {}, {} x {}, depth {}{}{}{}, {} between rows, into {}, seed {}", s.batch, s.m, s.n,
                  s.k, args.transpose_a ? ", A transposed" : "", args.transpose_b ? ", B transposed" : "",
                  args.accumulate ? ", accumulated" : "", padding, name_of(c_dtype), seed);
  return {dtype,
          what,
          {std::move(a), std::move(b)},
          {{"c", std::move(c)}},
          [=](ThreadPool& pool, const Arrays& in, Arrays& out) {
            const auto matrices = [&](const PoisonedArray& x, std::int64_t rows, std::int64_t columns,
                                      std::int64_t leading) {
              return x.view().block(0, {s.batch, rows, columns}, {rows * leading, leading, 1});
            };
            GemmArgs given = args;
            given.a = matrices(in[0], a_rows, a_columns, lda);
            given.b = matrices(in[1], b_rows, b_columns, ldb);
            given.c = matrices(out[0], s.m, s.n, ldc);
            gemm(pool, given);
          }};
}

std::vector<Case> gemm_cases(std::uint32_t seed) {
  std::vector<Case> cases;
  const auto add = [&](const GemmShape& shape, int flags, std::int64_t padding, DType c_dtype) {
    for (const DType dtype : kFloatTypes)
      cases.push_back(gemm_case(shape, flags, padding, dtype, c_dtype, seed += kSeedsOfCase));
  };
  // Tails, one row, few rows (a path of their own with tiles), nothing.
  const GemmShape small[] = {{1, 1, 1, 1},    {1, 33, 35, 37}, {1, 12, 32, 64}, {1, 45, 70, 300},
                             {1, 1, 129, 65}, {1, 4, 65, 129}, {1, 65, 1, 31},  {3, 9, 20, 33},
                             {1, 8, 65, 129}, {1, 5, 6, 0},    {1, 0, 6, 3},    {1, 5, 0, 3},
                             {0, 5, 6, 3}};
  for (const GemmShape& shape : small) {
    for (int flags = 0; flags < 8; ++flags) {
      for (const DType c_dtype : kFloatTypes) add(shape, flags, flags % 3, c_dtype);
    }
  }
  add({1, 530, 600, 70}, 2, 0, DType::f32);    // several blocks
  add({1, 70, 90, 2500}, 0, 1, DType::bf16);   // sections of depth (gemm_tiles.cc), each in chunks
  add({1, 136, 72, 1096}, 5, 0, DType::f32);   // parts of the depth (cuda/split_product.cu)
  add({1, 20, 136, 1096}, 0, 0, DType::bf16);  // the same of few rows (cuda/few_rows_wgmma.cu)
  add({2, 40, 72, 1096}, 2, 0, DType::f32);
  add({1, 2100, 1024, 33}, 0, 0, DType::bf16);  // more than 4 MB: stored past the caches (gemm_tiles_store.h)
  return cases;
}

// Shapes that every instruction set takes as few rows (kernels/product/few_rows.cc).
std::vector<Case> few_rows_cases(std::uint32_t seed) {
  std::vector<Case> cases;
  const auto add = [&](const GemmShape& shape, int flags, std::int64_t padding) {
    for (const DType dtype : kFloatTypes) {
      for (const DType c_dtype : kFloatTypes)
        cases.push_back(gemm_case(shape, flags, padding, dtype, c_dtype, seed += kSeedsOfCase));
    }
  };
  for (const int flags : {0, 2, 4, 6}) {  // B transposed, accumulated
    add({1, 1, 1, 1}, flags, 0);
    add({1, 2, 33, 37}, flags, 1);
    add({3, 1, 70, 129}, flags, 2);
    add({1, 2, 5, 0}, flags, 0);
  }
  add({1, 3, 70, 16000}, 0, 0);  // slices of depth,
  add({1, 2, 3000, 600}, 2, 0);  // of columns,
  add({1, 8, 4500, 40}, 0, 1);   // and columns in turns
  for (std::int64_t m = 3; m < 8; ++m) add({1, m, 4101, 9}, 0, 0);
  return cases;
}

TensorView matrix(const PoisonedArray& x, std::int64_t rows, std::int64_t columns) {
  return x.view().block(0, {rows, columns}, {columns, 1});
}

std::string sizes_text(const std::vector<std::int64_t>& sizes) {
  return fmt::format("{}", fmt::join(sizes, ", "));
}

// One left operand and a right one of so many columns each.
Case each_case(std::int64_t m, std::int64_t k, const std::vector<std::int64_t>& columns, bool transpose_a,
               DType dtype, std::uint32_t seed) {
  constexpr const char* kNames[] = {"c of the first", "second", "third", "fourth", "fifth"};
  ExactOperands draw(dtype, seed);
  Arrays in{draw.left(m * k)};
  std::vector<Output> out;
  for (const std::int64_t n : columns) {
    in.push_back(draw.right(k * n));
    out.push_back({kNames[out.size()], PoisonedArray(dtype, m * n)});
  }
  return {dtype,
          fmt::format("{} x {}{} with {} columns, seed {}", m, k, transpose_a ? " transposed" : "",
                      sizes_text(columns), seed),
          std::move(in), std::move(out), [=](ThreadPool& pool, const Arrays& from, Arrays& to) {
            std::vector<GemmEachArgs::Right> right;
            for (std::size_t i = 0; i < columns.size(); ++i)
              right.push_back({matrix(from[i + 1], k, columns[i]), matrix(to[i], m, columns[i])});
            gemm_each(pool, {.a = transpose_a ? matrix(from[0], k, m) : matrix(from[0], m, k),
                             .right = right,
                             .transpose_a = transpose_a});
          }};
}

std::vector<Case> each_cases(std::uint32_t seed) {
  std::vector<Case> cases;
  for (const DType dtype : kFloatTypes) {
    const auto add = [&](std::int64_t m, std::int64_t k, const std::vector<std::int64_t>& columns,
                         bool transpose_a = false) {
      cases.push_back(each_case(m, k, columns, transpose_a, dtype, seed += kSeedsOfCase));
    };
    add(2, 96, {64, 32, 32});     // few rows,
    add(20, 1096, {136, 0, 72});  // on tensor cores (cuda/few_rows_wgmma.cu)
    add(72, 1096, {136, 40, 8, 24, 8},
        true);                     // parts of the depth (cuda/split_product.cu); more than a launch takes
    add(150, 72, {264, 136, 40});  // tiles of the copy engine (cuda/tma_product.cu)
    add(9, 33, {7, 5});
  }
  return cases;
}

// The sum of terms of such depths, whose right operands are transposed, as the gradient of a left operand is.
Case sum_case(std::int64_t m, std::int64_t n, const std::vector<std::int64_t>& depths, DType dtype,
              std::uint32_t seed) {
  ExactOperands draw(dtype, seed);
  Arrays in;
  for (const std::int64_t k : depths) {
    in.push_back(draw.left(m * k));
    in.push_back(draw.right(k * n));
  }
  return {dtype,
          fmt::format("{} x {}, depths {}, seed {}", m, n, sizes_text(depths), seed),
          std::move(in),
          {{"c", PoisonedArray(DType::f32, m * n)}},
          [=](ThreadPool& pool, const Arrays& from, Arrays& to) {
            std::vector<GemmSumArgs::Term> terms;
            for (std::size_t i = 0; i < depths.size(); ++i)
              terms.push_back({matrix(from[2 * i], m, depths[i]), matrix(from[2 * i + 1], n, depths[i])});
            gemm_sum(pool, {.terms = terms, .c = matrix(to[0], m, n), .transpose_b = true});
          }};
}

std::vector<Case> sum_cases(std::uint32_t seed) {
  std::vector<Case> cases;
  for (const DType dtype : kFloatTypes) {
    const auto add = [&](std::int64_t m, std::int64_t n, const std::vector<std::int64_t>& depths) {
      cases.push_back(sum_case(m, n, depths, dtype, seed += kSeedsOfCase));
    };
    add(5, 40, {8, 24, 16});
    add(136, 72, {520, 264, 264, 72});  // parts of the depth
    add(150, 264, {72, 8, 136});        // tiles of the copy engine
    add(40, 33, {5, 1, 7, 3, 9, 2});    // more than a launch takes
  }
  return cases;
}

}  // namespace

std::vector<KernelCases> gemm_kernels() {
  return {{"gemm", "product", gemm_cases},
          {"gemm_few_rows", "product", few_rows_cases},
          {"gemm_each", "product", each_cases},
          {"gemm_sum", "product", sum_cases}};
}

}  // namespace switchyard::selftest
