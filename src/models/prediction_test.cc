// Tests the inputs and targets of prediction layers.
#include "models/prediction.h"

#include <gtest/gtest.h>

namespace switchyard {
namespace {

using Row = std::vector<std::int32_t>;

Tensor of_rows(const Row& values) {
  return Tensor::of<std::int32_t>({2, std::ssize(values) / 2}, std::span(values));
}
Row values_of(const Tensor& x) {
  const auto values = x.span<std::int32_t>();
  return {values.begin(), values.end()};
}

// A row of one document and padding, and one of two documents.
const Batch kBatch{of_rows({1, 2, 3, 4, 0, 5, 6, 7, 8, 9}), of_rows({2, 3, 4, 0, 0, 6, 7, 0, 9, 0}),
                   of_rows({0, 1, 2, 3, 0, 0, 1, 2, 0, 1}), of_rows({1, 1, 1, 1, 0, 1, 1, 1, 2, 2}),
                   of_rows({1, 1, 1, 0, 0, 1, 1, 0, 2, 0})};

TEST(Prediction, TokensComeFromFurtherOnInTheSameDocument) {
  const std::vector<Batch> further = further_batches(kBatch, 3);
  ASSERT_EQ(further.size(), 3u);
  EXPECT_EQ(values_of(further[0].inputs), (Row{2, 3, 4, 0, 0, 6, 7, 0, 9, 0}));
  EXPECT_EQ(values_of(further[0].targets), (Row{3, 4, 0, 0, 0, 7, 0, 0, 0, 0}));
  EXPECT_EQ(values_of(further[0].targets_segmentation), (Row{1, 1, 0, 0, 0, 1, 0, 0, 0, 0}));
  EXPECT_EQ(values_of(further[1].inputs), (Row{3, 4, 0, 0, 0, 7, 0, 0, 0, 0}));
  EXPECT_EQ(values_of(further[1].targets), (Row{4, 0, 0, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(values_of(further[2].inputs), (Row{4, 0, 0, 0, 0, 0, 0, 0, 0, 0}));
  for (const Batch& batch : further) {
    EXPECT_EQ(values_of(batch.inputs_position), values_of(kBatch.inputs_position));
    EXPECT_EQ(values_of(batch.inputs_segmentation), values_of(kBatch.inputs_segmentation));
  }
  EXPECT_EQ(values_of(kBatch.inputs), (Row{1, 2, 3, 4, 0, 5, 6, 7, 8, 9})) << "the batch itself stays";
}

TEST(Prediction, TargetsOfAllLayersAreCountedTogether) {
  EXPECT_EQ(count_further_targets(kBatch, 0), 0);
  EXPECT_EQ(count_further_targets(kBatch, 1), 3);
  EXPECT_EQ(count_further_targets(kBatch, 2), 4);
  EXPECT_EQ(count_further_targets(kBatch, 3), 4);
}

}  // namespace
}  // namespace switchyard
