#include "kernels/softmax.h"

#include <gtest/gtest.h>

#include "kernels/elementwise_test_data.h"
#include "kernels/ref/softmax_reference.h"

namespace switchyard {
namespace {

using kernel_test::Array;
using Function = void (*)(ThreadPool&, const float*, std::int64_t, std::int64_t, float*);
using Backward = void (*)(ThreadPool&, const float*, const float*, std::int64_t, std::int64_t, float*);
using Reference = void (*)(const double*, std::int64_t, std::int64_t, double*);

void compare(Function forward, Backward backward, Reference reference, std::int64_t rows, std::int64_t cols) {
  SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(cols));
  Array x = Array::normal(DType::f32, rows * cols, 1, 4), dy = Array::normal(DType::f32, rows * cols, 2);
  std::vector<double> x_d, expected(static_cast<std::size_t>(rows * cols));
  for (std::int64_t i = 0; i < x.size(); ++i) x_d.push_back(static_cast<double>(x.at(i)));
  reference(x_d.data(), rows, cols, expected.data());
  Array y(DType::f32, x.size()), dx(DType::f32, x.size());
  ThreadPool pool(1), wide(3);
  forward(pool, x.floats(), rows, cols, y.floats());
  for (std::int64_t i = 0; i < x.size(); ++i) {
    const double truth = expected[static_cast<std::size_t>(i)];
    EXPECT_NEAR(y.at(i), truth, 3e-6 * truth);  // rounding x - maximum alone costs |x - maximum| 2^-24
  }
  backward(pool, y.floats(), dy.floats(), rows, cols, dx.floats());
  EXPECT_TRUE(y.guards_intact() && dx.guards_intact());
  // Directional finite difference of the reference, element by element of x.
  for (std::size_t i = 0; i < x_d.size(); i += 1 + x_d.size() / 40) {
    std::vector<double> above(expected.size()), below(expected.size());
    const double kept = x_d[i];
    x_d[i] = kept + 1e-5;
    reference(x_d.data(), rows, cols, above.data());
    x_d[i] = kept - 1e-5;
    reference(x_d.data(), rows, cols, below.data());
    x_d[i] = kept;
    double slope = 0;
    for (std::size_t j = 0; j < above.size(); ++j) {
      slope += (above[j] - below[j]) / 2e-5 * static_cast<double>(dy.at(static_cast<std::int64_t>(j)));
    }
    EXPECT_NEAR(dx.at(static_cast<std::int64_t>(i)), slope, 2e-6);
  }
  Array other(DType::f32, x.size());
  forward(wide, x.floats(), rows, cols, other.floats());
  EXPECT_EQ(other, y);
  forward(pool, x.floats(), rows, cols, x.floats());
  EXPECT_EQ(x, y);
  backward(wide, y.floats(), dy.floats(), rows, cols, dy.floats());
  EXPECT_EQ(dy, dx);
}

TEST(Softmax, ForwardBackwardThreadsAndInPlace) {
  for (std::int64_t rows : {0, 1, 13}) {
    for (std::int64_t cols : {0, 1, 7, 256})
      compare(softmax_rows, softmax_rows_backward, reference::softmax_rows, rows, cols);
  }
}

TEST(Sigmoid, ForwardBackwardThreadsAndInPlace) {
  for (std::int64_t rows : {0, 1, 13}) {
    for (std::int64_t cols : {0, 1, 7, 256})
      compare(sigmoid, sigmoid_backward, reference::sigmoid, rows, cols);
  }
}

TEST(Softmax, LargeLogitsNeitherOverflowNorVanish) {
  const float x[] = {1000, 1000, -1000, 89};
  float y[4];
  ThreadPool pool(1);
  softmax_rows(pool, x, 1, 4, y);
  EXPECT_EQ(y[0], 0.5f);
  EXPECT_EQ(y[2], 0.0f);
  sigmoid(pool, x, 1, 4, y);
  EXPECT_EQ(y[0], 1.0f);
  EXPECT_EQ(y[2], 0.0f);
}

}  // namespace
}  // namespace switchyard
