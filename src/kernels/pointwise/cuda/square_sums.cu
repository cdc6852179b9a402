#include "kernels/cuda/flat_lists.h"
#include "kernels/pointwise/elementwise_problem.h"

namespace switchyard::gpu {
namespace {

struct Squares {
  GPU_FUNCTION double operator()(const ListItem& item, std::int64_t i, int count) const {
    float numbers[kQuad];
    item.arrays[0].load(i, count, numbers);
    return squares_of(numbers, count);
  }
};

}  // namespace

void sums_of_squares(const std::span<const SquareSumArgs>& args) {
  run_list(args, args[0].x, Squares{}, [](const SquareSumArgs& a) {
    return ListItem{
        .arrays = {Elements::of(a.x)}, .size = a.x.size(), .squares = a.sum.device_data<double>()};
  });
}

}  // namespace switchyard::gpu
