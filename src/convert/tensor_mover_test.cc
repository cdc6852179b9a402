#include "convert/tensor_mover.h"

#include <gtest/gtest.h>
#include <xxhash.h>

#include <atomic>
#include <numeric>

#include "core/error.h"
#include "models/families/hub_tensors.h"

namespace switchyard {
namespace {

Tensor counting(const Shape& shape) {
  Tensor t(DType::f32, shape);
  std::iota(t.data<float>(), t.data<float>() + t.size(), -1000.0f);
  return t;
}

// Reads rows of a tensor in memory.
TensorMover::ReadRows rows_of(const Tensor& whole) {
  return [whole](std::int64_t begin, std::int64_t end) { return whole.slice_rows(begin, end).clone(); };
}

std::vector<std::byte> bytes_of(const Tensor& t) {
  return {t.raw(), t.raw() + t.bytes()};
}

// Both ways, by any number of threads, as the whole tensor is turned at once.
TEST(TensorMover, AsTheWholeAtOnce) {
  const std::map<std::string, Shape> parameters = {{"embedding", {700, 600}},
                                                   {"final_norm", {5}},
                                                   {"head", {300, 7001}},
                                                   {"layers.0.attention.query", {130, 6, 24}},
                                                   {"layers.0.attention.out", {9, 24, 130}},
                                                   {"layers.0.mlp.wo", {1111, 2049}}};
  for (const int threads : {1, 4}) {
    TensorMover mover(threads);
    for (const auto& [name, shape] : parameters) {
      SCOPED_TRACE(name);
      const HubTensors hub = hub_tensors(kLlama, name, shape);
      const Tensor ours = counting(shape), theirs = to_hub(hub, ours)[0];
      const std::int64_t their_rows = hub.transposed ? hub.shape[0] : 0,
                         our_rows = hub.transposed ? hub.shape[1] : 0;
      for (const DType dtype : {DType::f32, DType::bf16}) {
        const Tensor there =
            mover.move({shape, hub.shape, dtype, 1, hub.transposed, our_rows}, rows_of(ours));
        EXPECT_EQ(bytes_of(there), bytes_of(theirs.cast(dtype)));
        const Tensor back =
            mover.move({hub.shape, shape, dtype, 1, hub.transposed, their_rows}, rows_of(theirs));
        EXPECT_EQ(bytes_of(back), bytes_of(ours.cast(dtype)));
      }
      const Tensor twice =
          mover.move({shape, hub.shape, DType::f32, 2, hub.transposed, our_rows}, rows_of(ours));
      for (std::int64_t i = 0; i < twice.size(); ++i)
        ASSERT_EQ(twice.data<float>()[i], 2 * theirs.data<float>()[i]);
    }
  }
}

TEST(TensorMover, WhatFailsIsThrownOn) {
  TensorMover mover(3);
  std::atomic<int> calls = 0;
  const auto fail = [&](std::int64_t, std::int64_t) -> Tensor {
    ++calls;
    fail_runtime("[test] no rows");
  };
  EXPECT_THROW(mover.move({{100'000, 64}, {100'000, 64}}, fail), Error);
  EXPECT_GT(calls, 0);
  EXPECT_EQ(mover.move({{0, 64}, {0, 64}}, fail).size(), 0);
}

TEST(TensorMover, ChunksCoverTheTensorInOrder) {
  TensorMover mover(2);
  const StoredTensor stored{"a", DType::f32, {3000, 1000}, false};
  const Tensor whole = counting(stored.shape);
  std::size_t at = 0;
  for (const Chunk& chunk : mover.chunks_of(stored, whole.raw())) {
    const std::size_t bytes = static_cast<std::size_t>(num_elements(chunk.box.shape)) * 4;
    EXPECT_EQ(chunk.xxh3, XXH3_64bits(whole.raw() + at, bytes));
    at += bytes;
  }
  EXPECT_EQ(at, whole.bytes());
}

}  // namespace
}  // namespace switchyard
