#include "kernels/pointwise/rank_sum.h"

#include <gtest/gtest.h>

#include "kernels/testing/elementwise_test_data.h"

namespace switchyard {
namespace {

using kernel_test::Array;
using kernel_test::every_isa;

struct Types {
  DType in, out;
};
constexpr Types kTypes[] = {{DType::f32, DType::f32}, {DType::bf16, DType::bf16}, {DType::bf16, DType::f32}};

TEST(RankSum, AddsInOrderInFloat32AndRoundsOnceOnEveryIsa) {
  for (const Types types : kTypes) {
    for (const int ranks : {1, 2, 3, 8}) {
      for (const std::int64_t n : {0, 1, 15, 16, 31, 32, 33, 1000}) {
        std::vector<Array> arrays;
        std::vector<const void*> inputs;
        for (int r = 0; r < ranks; ++r)
          arrays.push_back(Array::normal(types.in, n, 10u + static_cast<unsigned>(r)));
        for (const Array& array : arrays) inputs.push_back(array.data());
        Array expected(types.out, n);
        for (std::int64_t i = 0; i < n; ++i) {
          float sum = arrays[0].at(i);
          for (int r = 1; r < ranks; ++r) sum += arrays[static_cast<std::size_t>(r)].at(i);
          expected.set(i, sum);
        }
        for (const Isa isa : every_isa()) {
          const ScopedIsa cap(isa);
          Array found(types.out, n);
          rank_sum(types.in, inputs, types.out, found.data(), n);
          EXPECT_TRUE(found == expected) << name_of(isa) << " " << ranks << " ranks, " << n;
        }
      }
    }
  }
}

}  // namespace
}  // namespace switchyard
