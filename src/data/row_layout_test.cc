// The assignment of tokens to rows: for all layouts of documents, and for data that ends.
#include "data/row_layout.h"

#include <algorithm>
#include <map>

#include "data/epochs.h"
#include "data/packing.h"
#include "data/test_support.h"

namespace switchyard {
namespace {

std::vector<std::int32_t> values_of(const Tensor& t) {
  return {t.data<std::int32_t>(), t.data<std::int32_t>() + t.size()};
}

// Documents of these lengths; no token stands twice, and none is 0.
std::shared_ptr<const StoredTokens> documents_of(const std::vector<std::int64_t>& lengths) {
  auto stream = std::make_shared<StoredTokens>();
  std::int32_t next = 1;
  for (const std::int64_t length : lengths) {
    std::vector<std::int32_t> tokens;
    for (std::int64_t i = 0; i < length; ++i) tokens.push_back(next++);
    stream->add_document(tokens);
  }
  return stream;
}

std::vector<std::int64_t> random_lengths(std::mt19937& random, std::int64_t longest) {
  std::vector<std::int64_t> lengths(1 + random() % 400);
  for (auto& length : lengths) length = 1 + static_cast<std::int64_t>(random()) % longest;
  return lengths;
}

TEST(RowLayout, OneDocumentARow) {
  const auto stream = documents_of({2, 7, 1, 4});  // 1 2 | 3 .. 9 | 10 | 11 12 13 14
  PackingOptions packing{.sequence = 4, .shuffle = false, .pack = false};
  const auto cut = make_training_rows(stream, packing, ShuffleKind::computed, "here");
  ASSERT_EQ(cut->rows(), 4);
  Batch batch = cut->read(0, 4);
  EXPECT_EQ(values_of(batch.inputs),
            (std::vector<std::int32_t>{1, 2, 0, 0, 3, 4, 5, 6, 10, 0, 0, 0, 11, 12, 13, 14}));
  EXPECT_EQ(values_of(batch.targets),
            (std::vector<std::int32_t>{2, 0, 0, 0, 4, 5, 6, 7, 0, 0, 0, 0, 12, 13, 14, 0}));
  EXPECT_EQ(values_of(batch.inputs_segmentation),
            (std::vector<std::int32_t>{1, 1, 0, 0, 1, 1, 1, 1, 1, 0, 0, 0, 1, 1, 1, 1}));
  EXPECT_EQ(values_of(batch.targets_segmentation),
            (std::vector<std::int32_t>{1, 0, 0, 0, 1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 0}));
  EXPECT_EQ(values_of(batch.inputs_position),
            (std::vector<std::int32_t>{0, 1, 0, 0, 0, 1, 2, 3, 0, 0, 0, 0, 0, 1, 2, 3}));
  packing.truncate = false;
  const auto split = make_held_out_rows(stream, packing);
  ASSERT_EQ(split->rows(), 5);
  batch = split->read(1, 2);
  EXPECT_EQ(values_of(batch.inputs), (std::vector<std::int32_t>{3, 4, 5, 6, 7, 8, 9, 0}));
  EXPECT_EQ(values_of(batch.targets), (std::vector<std::int32_t>{4, 5, 6, 7, 8, 9, 0, 0}));
  EXPECT_EQ(values_of(split->read(5, 1).inputs), (std::vector<std::int32_t>{0, 0, 0, 0}));
}

TEST(RowLayout, AtMostSoManyDocuments) {
  const auto stream = documents_of({2, 1, 3, 5});  // 1 2 | 3 | 4 5 6 | 7 8 9 10 11
  const PackingOptions packing{.sequence = 4, .shuffle = false, .most_documents = 2};
  const auto data = make_training_rows(stream, packing, ShuffleKind::computed, "here");
  ASSERT_EQ(data->rows(), 3);  // 1 2 | 3; 4 5 6 | 7; 8 9 10 11
  const Batch batch = data->read(0, 3);
  EXPECT_EQ(values_of(batch.inputs), (std::vector<std::int32_t>{1, 2, 3, 0, 4, 5, 6, 7, 8, 9, 10, 11}));
  EXPECT_EQ(values_of(batch.targets), (std::vector<std::int32_t>{2, 0, 0, 0, 5, 6, 0, 8, 9, 10, 11, 0}));
  EXPECT_EQ(values_of(batch.inputs_segmentation),
            (std::vector<std::int32_t>{1, 1, 2, 0, 1, 1, 1, 2, 1, 1, 1, 1}));
}

// How often each target is one, over all rows. No row has more documents than it may.
std::map<std::int32_t, int> targets_of(Dataset& data, std::int64_t first, std::int64_t rows,
                                       std::int32_t most) {
  std::map<std::int32_t, int> seen;
  const Batch batch = data.read(first, rows);
  const auto inputs = values_of(batch.inputs), targets = values_of(batch.targets),
             segments = values_of(batch.targets_segmentation),
             documents = values_of(batch.inputs_segmentation);
  for (std::size_t i = 0; i < targets.size(); ++i) {
    EXPECT_EQ(targets[i] != 0, segments[i] != 0);
    EXPECT_LE(documents[i], most);
    if (targets[i] == 0) continue;
    EXPECT_EQ(targets[i], inputs[i] + 1);
    EXPECT_EQ(segments[i], documents[i]);
    ++seen[targets[i]];
  }
  return seen;
}

// Every token but the first of a document is a target once an epoch, however rows are laid out and shuffled.
TEST(RowLayout, LosesNothing) {
  std::mt19937 random(8);
  for (int round = 0; round < rounds(30); ++round) {
    const auto lengths = random_lengths(random, 1 + round % 3 * 40);
    const auto stream = documents_of(lengths);
    std::map<std::int32_t, int> expected;
    std::int32_t next = 1;
    for (const std::int64_t length : lengths) {
      for (std::int64_t i = 0; i < length; ++i, ++next) {
        if (i > 0) expected[next] = 1;
      }
    }
    PackingOptions packing{.sequence = 1 + static_cast<std::int64_t>(random() % 50),
                           .seed = static_cast<std::uint32_t>(random())};
    const auto most = static_cast<std::int32_t>(1 + random() % 6);
    for (const bool pack : {true, false}) {
      packing.pack = pack;
      packing.truncate = false;
      packing.most_documents = pack ? most : -1;
      const auto train = make_training_rows(stream, packing, ShuffleKind::computed, "here");
      const auto held_out = make_held_out_rows(stream, packing);
      const std::int32_t limit = pack ? most : 1;
      EXPECT_EQ(targets_of(*train, 0, train->rows(), limit), expected);
      EXPECT_EQ(targets_of(*train, train->rows(), train->rows(), limit), expected);
      EXPECT_EQ(targets_of(*held_out, 0, held_out->rows() + 3, limit), expected);
    }
  }
}

// What a row holds follows from its number alone.
TEST(RowLayout, ARowDoesNotDependOnThoseBefore) {
  std::mt19937 random(9);
  for (const auto& [pack, truncate, most] :
       {std::tuple(false, true, -1), std::tuple(false, false, -1), std::tuple(true, true, 3)}) {
    const auto stream = documents_of(random_lengths(random, 60));
    const PackingOptions packing{
        .sequence = 16, .seed = 5, .pack = pack, .truncate = truncate, .most_documents = most};
    const auto data = make_training_rows(stream, packing, ShuffleKind::drawn, "here");
    const auto whole = values_of(data->read(0, 2 * data->rows()).inputs);
    for (int i = 0; i < 200; ++i) {
      const auto row = static_cast<std::int64_t>(random()) % (2 * data->rows());
      const auto one = values_of(data->read(row, 1).inputs);
      ASSERT_TRUE(std::equal(one.begin(), one.end(), whole.begin() + row * 16)) << row;
    }
  }
}

TEST(Ending, TheLastBatchIsPadded) {
  const auto stream = documents_of({3, 3, 3, 3, 3});
  const PackingOptions packing{.sequence = 2, .shuffle = false, .pack = false};
  auto data = make_training_rows(stream, packing, ShuffleKind::computed, "here");
  const Batch wrapped = data->read(4, 3);
  data = make_ending(std::move(data), 6);
  EXPECT_EQ(data->rows(), 6);
  const Batch last = data->read(4, 3), beyond = data->read(6, 2);
  auto expected = values_of(wrapped.targets);
  std::fill(expected.begin() + 4, expected.end(), 0);
  EXPECT_EQ(values_of(last.targets), expected);
  EXPECT_EQ(values_of(last.targets_segmentation), (std::vector<std::int32_t>{1, 1, 1, 1, 0, 0}));
  EXPECT_EQ(values_of(beyond.inputs_segmentation), std::vector<std::int32_t>(4, 0));
}

}  // namespace
}  // namespace switchyard
