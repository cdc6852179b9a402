#include "kernels/optimizer/weight_update.h"

#include <gtest/gtest.h>

#include <cstddef>
#include <cstring>

#include "core/tensor.h"
#include "kernels/pointwise/elementwise.h"
#include "kernels/testing/elementwise_test_data.h"
#include "kernels/testing/example_numbers.h"

namespace switchyard {
namespace {

using kernel_test::Array;
using kernel_test::every_isa;

constexpr DType kTypes[] = {DType::f32, DType::bf16};
constexpr std::int64_t kSizes[] = {0, 1, 15, 16, 31, 32, 33, 1000, 70001};

Tensor numbers_of_step(bool is_good = true) {
  const Tensor numbers(Memory(), DType::f32, {kUpdateNumbers});
  std::memcpy(numbers.raw(), &kExampleNumbers, sizeof(kExampleNumbers));
  numbers.data<float>()[offsetof(UpdateNumbers, is_good) / sizeof(float)] = is_good ? 1 : 0;
  return numbers;
}

Array squares_of(const Array& x) {
  Array result(x.dtype(), x.size());
  for (std::int64_t i = 0; i < x.size(); ++i) result.set(i, x.at(i) * x.at(i));
  return result;
}

// What an update read and wrote.
struct Arrays {
  Array weight, grad, mu, nu;
  double squares = 0;

  Arrays(DType w, DType g, DType m, DType v, std::int64_t n)
      : weight(Array::normal(w, n, 1)),
        grad(Array::normal(g, n, 2)),
        mu(Array::normal(m, n, 3, 0.1f)),
        nu(squares_of(Array::normal(v, n, 4, 0.1f))) {}

  void adam(ThreadPool& pool, const Tensor& numbers = numbers_of_step()) {
    const AdamArrays all{weight.view(), grad.view(), mu.view(), nu.view(), squares_view()};
    adam_update(pool, numbers.view(), std::span(&all, 1));
  }
  void descent(ThreadPool& pool, const Tensor& numbers = numbers_of_step()) {
    const DescentArrays all{weight.view(), grad.view(), squares_view()};
    descent_update(pool, numbers.view(), std::span(&all, 1));
  }
  // The direction, in float32, is left in nu.
  void momentum(ThreadPool& pool, const Tensor& numbers = numbers_of_step()) {
    momentum_update(pool, numbers.view(), {grad.view(), mu.view(), nu.view()});
    direction_update(pool, numbers.view(), {.scale = 2, .decay = 0.3},
                     {nu.view(), weight.view(), squares_view()});
  }
  TensorView squares_view() const { return TensorView::of_host(&squares, {1}); }
  bool operator==(const Arrays& o) const {
    return weight == o.weight && grad == o.grad && mu == o.mu && nu == o.nu;
  }
};

template <typename Update>
void expect_the_same_bits(const Arrays& start, const Update& update, const std::string& what) {
  ThreadPool one(1), three(3);
  Arrays expected = start;
  {
    const ScopedIsa cap(Isa::ref);
    update(expected, one);
  }
  ASSERT_TRUE(expected.weight.guards_intact() && expected.mu.guards_intact() && expected.nu.guards_intact());
  ASSERT_TRUE(expected.grad == start.grad) << what;
  ASSERT_EQ(expected.squares, sum_of_squares(one, expected.weight.view())) << what;
  for (const Isa isa : every_isa()) {
    const ScopedIsa cap(isa);
    for (ThreadPool* pool : {&one, &three}) {
      Arrays found = start;
      update(found, *pool);
      ASSERT_TRUE(found == expected) << what << " " << name_of(isa);
      ASSERT_EQ(found.squares, expected.squares) << what << " " << name_of(isa);
    }
  }
}

TEST(WeightUpdate, AdamHasTheSameBitsOnEveryIsaAndThreadCountForAllTypes) {
  for (int types = 0; types < 16; ++types) {
    const auto type = [&](int bit) { return kTypes[types >> bit & 1]; };
    for (const std::int64_t n : kSizes) {
      expect_the_same_bits(
          Arrays(type(0), type(1), type(2), type(3), n), [](Arrays& a, ThreadPool& pool) { a.adam(pool); },
          fmt::format("types {} n {}", types, n));
    }
  }
}

TEST(WeightUpdate, DescentAndMomentumHaveTheSameBitsToo) {
  for (int types = 0; types < 8; ++types) {
    const auto type = [&](int bit) { return kTypes[types >> bit & 1]; };
    for (const std::int64_t n : kSizes) {
      const Arrays start(type(0), type(1), type(2), DType::f32, n);
      const std::string what = fmt::format("types {} n {}", types, n);
      expect_the_same_bits(
          start, [](Arrays& a, ThreadPool& pool) { a.descent(pool); }, what);
      expect_the_same_bits(
          start, [](Arrays& a, ThreadPool& pool) { a.momentum(pool); }, what);
    }
  }
}

TEST(WeightUpdate, ABadStepChangesNothing) {
  ThreadPool pool(2);
  const Tensor numbers = numbers_of_step(false);
  Arrays start(DType::bf16, DType::f32, DType::f32, DType::f32, 1000);
  start.squares = 5;
  Arrays found = start;
  found.adam(pool, numbers);
  found.descent(pool, numbers);
  EXPECT_TRUE(found == start);
  found.momentum(pool, numbers);
  EXPECT_TRUE(found.weight == start.weight && found.mu == start.mu);
  for (std::int64_t i = 0; i < 1000; ++i) EXPECT_EQ(found.nu.at(i), 0);  // the direction
  EXPECT_EQ(found.squares, 5);
}

// NaN and infinity, the largest numbers, and the smallest.
TEST(WeightUpdate, AwkwardNumbersRoundAlike) {
  const float awkward[] = {NAN, INFINITY, -INFINITY, 3.3e38f, -3.4e38f, 1e-40f, -0.0f, 1e-38f};
  for (const DType dtype : kTypes) {
    Arrays start(dtype, dtype, dtype, dtype, 300);
    std::int64_t place = 0;
    for (const float value : awkward) {
      for (Array* array : {&start.weight, &start.grad, &start.mu}) array->set(place += 7, value);
    }
    ThreadPool pool(1);
    Arrays expected = start;
    {
      const ScopedIsa cap(Isa::ref);
      expected.adam(pool);
    }
    for (const Isa isa : every_isa()) {
      const ScopedIsa cap(isa);
      Arrays found = start;
      found.adam(pool);
      EXPECT_TRUE(std::isnan(found.squares));
      for (const auto& [a, b] : {std::pair(&found.weight, &expected.weight),
                                 {&found.mu, &expected.mu},
                                 {&found.nu, &expected.nu}}) {
        for (std::int64_t i = 0; i < 300; ++i)
          ASSERT_TRUE(a->at(i) == b->at(i) || (std::isnan(a->at(i)) && std::isnan(b->at(i))))
              << name_of(isa) << " " << i << ": " << a->at(i) << ", not " << b->at(i);
      }
    }
  }
}

TEST(WeightUpdate, AnAbstractPoolCountsAndTouchesNothing) {
  struct Counter : WorkCounter {
    void count(const Work& work) override { bytes += work.bytes; }
    double bytes = 0;
  } counter;
  ThreadPool pool(counter, WorkspaceOf::none);
  const auto abstract = [](DType dtype) { return Memory(Device::abstract(), nullptr).empty(dtype, {1000}); };
  const Tensor narrow = abstract(DType::bf16), grad = abstract(DType::f32);
  const AdamArrays all{narrow.view(), grad.view(), narrow.view(), narrow.view(),
                       abstract(DType::f64).view().rows(0, 1)};
  adam_update(pool, abstract(DType::f32).view().rows(0, kUpdateNumbers), std::span(&all, 1));
  EXPECT_EQ(counter.bytes, 16000);
}

}  // namespace
}  // namespace switchyard
