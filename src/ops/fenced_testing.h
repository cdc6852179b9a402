// For tests: compares the results of an op on memory that only kernels, copies and collectives can reach
// (core/device.h) with its results on memory of the host.
#pragma once

#include <cstring>
#include <vector>

#include "ops/gradient_testing.h"

namespace switchyard::autograd_test {

// Per rank: the output, and the gradients of the inputs that have one.
using RankResults = std::vector<std::vector<Tensor>>;

inline RankResults results_in(Device& device, const Mesh& mesh, const TestFunction& function,
                              const std::vector<TestInput>& inputs) {
  RankResults results(static_cast<std::size_t>(mesh.size()));
  on_mesh(mesh, [&](Context& c) {
    c.memory = Memory(device, nullptr);
    std::vector<Array> arrays;
    for (const TestInput& input : inputs) {
      const Sharding sharding = input.shardings.empty() ? replicated(input.value.rank()) : input.shardings[0];
      arrays.push_back(make_leaf(to_device(c.memory, block_of(mesh, c.rank, input.value, sharding)),
                                 input.value.shape(), sharding, is_float(input.value.dtype())));
    }
    const Array y = function(c, arrays);
    EXPECT_EQ(&y.tensor().memory().device(), &device);
    std::vector<Tensor>& mine = results[static_cast<std::size_t>(c.rank)];
    mine.push_back(to_host(y.tensor()));
    if (!y.value()->requires_grad) return;
    const Tensor seed =
        to_device(c.memory, block_of(mesh, c.rank, random_tensor(y.shape(), 601), dual(mesh, y.sharding())));
    backward(c, std::span(&y, 1), std::span(&seed, 1));
    for (const Array& x : arrays) {
      if (x.grad().defined()) {
        EXPECT_EQ(&x.grad().memory().device(), &device);
        mine.push_back(to_host(x.grad()));
      }
    }
  });
  return results;
}

// Expects the same bits, and the given number of gradients.
inline void expect_same_bits(const Mesh& mesh, const TestFunction& function,
                             const std::vector<TestInput>& inputs, std::size_t gradients) {
  const RankResults host = results_in(Device::cpu(), mesh, function, inputs),
                    fenced = results_in(Device::fenced(), mesh, function, inputs);
  for (std::size_t rank = 0; rank < host.size(); ++rank) {
    ASSERT_EQ(host[rank].size(), 1 + gradients);
    ASSERT_EQ(fenced[rank].size(), 1 + gradients);
    for (std::size_t i = 0; i < host[rank].size(); ++i) {
      const Tensor &expected = host[rank][i], &found = fenced[rank][i];
      ASSERT_EQ(found.shape(), expected.shape());
      EXPECT_EQ(std::memcmp(found.raw(), expected.raw(), expected.bytes()), 0)
          << "rank " << rank << ", result " << i << " on " << mesh.to_string();
    }
  }
}

}  // namespace switchyard::autograd_test
