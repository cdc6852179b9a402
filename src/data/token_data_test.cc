// Tokens on disk: exactly the written tokens are read; rows in computed orders; mixtures of datasets.
#include <signal.h>
#include <sys/resource.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "data/mixture.h"
#include "data/packing.h"
#include "data/shuffle.h"
#include "data/test_support.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

std::vector<std::vector<std::int32_t>> inputs_of(Dataset& data, std::int64_t first, std::int64_t count) {
  const Batch batch = data.read(first, count);
  std::vector<std::vector<std::int32_t>> rows;
  const std::int64_t sequence = batch.inputs.shape()[1];
  for (std::int64_t b = 0; b < count; ++b) {
    const std::int32_t* row = batch.inputs.data<std::int32_t>() + b * sequence;
    rows.emplace_back(row, row + sequence);
  }
  return rows;
}

TEST(Permutation, OfAnySizeIsOne) {
  std::mt19937 random(5);
  std::vector<std::int64_t> sizes = {1, 2, 3, 4, 5, 15, 16, 17, 64, 65, 1000};
  for (int i = 0; i < rounds(10); ++i) sizes.push_back(1 + static_cast<std::int64_t>(random() % 5000));
  for (const std::int64_t n : sizes) {
    const Permutation order(rng_key(draw(random)), n);
    std::vector<bool> seen(static_cast<std::size_t>(n));
    for (std::int64_t i = 0; i < n; ++i) {
      const std::int64_t place = order(i);
      ASSERT_TRUE(place >= 0 && place < n && !seen[static_cast<std::size_t>(place)]) << n << " " << i;
      seen[static_cast<std::size_t>(place)] = true;
    }
  }
}

TEST(Permutation, LooksRandom) {
  constexpr std::int64_t kSize = 10007;
  const Permutation order(rng_key(1), kSize), other(rng_key(2), kSize);
  std::int64_t fixed = 0, same = 0, rising = 0;
  for (std::int64_t i = 0; i < kSize; ++i) {
    fixed += order(i) == i;
    same += order(i) == other(i);
    rising += i > 0 && order(i) > order(i - 1);
  }
  EXPECT_LT(fixed, 10);
  EXPECT_LT(same, 10);
  EXPECT_NEAR(static_cast<double>(rising), kSize / 2.0, 200);
  const Permutation huge(rng_key(3), std::int64_t{1} << 40);
  EXPECT_NE(huge(0), huge(1));
}

using Shard = TokenTest;
using Tokens = TokenTest;

TEST_F(Shard, GivesBackWhatWasWritten) {
  for (const std::int64_t vocabulary : {300, 70000}) {
    ShardWriter writer(path_, "a.tokens", vocabulary);
    const auto top = static_cast<std::int32_t>(vocabulary - 1);
    writer.add_document(std::vector<std::int32_t>{0, 1, top});
    writer.add_document(std::vector<std::int32_t>{top});
    std::vector<std::int32_t> large(300000);
    std::iota(large.begin(), large.end(), 0);
    for (std::int32_t& id : large) id %= top;
    writer.add_document(large);
    const ShardInfo info = writer.finish();
    EXPECT_EQ(info.tokens, 300004);
    EXPECT_EQ(info.documents, 3);
    EXPECT_EQ(info.bytes, static_cast<std::int64_t>(fs::file_size(path_ + "/a.tokens")));
    const auto shard = TokenShard::open(path_ + "/a.tokens");
    EXPECT_EQ(shard->hash(), info.hash);
    shard->prove();
    std::vector<std::int32_t> read;
    shard->read(2, 300004, read);
    EXPECT_EQ(read[0], top);
    EXPECT_TRUE(std::equal(large.begin(), large.end(), read.begin() + 2));
    std::vector<std::int64_t> starts;
    shard->read_starts(1, 5, 0, starts);
    EXPECT_EQ(starts, (std::vector<std::int64_t>{3, 4}));
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(path_), fs::directory_iterator()), 1);
}

TEST_F(Shard, EveryFlippedBitIsFound) {
  build(3000, 0, 1 << 20);
  const std::string whole = read("tokens/train-00001.tokens");
  std::mt19937 random(3);
  for (int i = 0; i < rounds(60); ++i) {
    std::string broken = whole;
    const std::size_t bit = i < 20 ? random() % 512 : random() % (8 * whole.size());
    broken[bit / 8] = static_cast<char>(broken[bit / 8] ^ (1 << (bit % 8)));
    const std::string file = write("broken.tokens", broken);
    EXPECT_NE(message_of([&] { TokenShard::open(file)->prove(); }), "") << "bit " << bit;
  }
  for (const std::size_t size : {std::size_t{0}, std::size_t{63}, std::size_t{64}, whole.size() - 1}) {
    const std::string file = write("broken.tokens", whole.substr(0, size));
    EXPECT_NE(message_of([&] { TokenShard::open(file)->prove(); }), "") << size << " bytes";
  }
}

// Found when it is read, before anything is trained on it.
TEST_F(Shard, CorruptTokensAreNamed) {
  build(3000, 0, 1 << 20);
  std::string broken = read("tokens/train-00001.tokens");
  broken[100] = static_cast<char>(broken[100] ^ 1);
  write("tokens/train-00001.tokens", broken);
  const SplitData data = tokens({1, 16});
  const std::string message = message_of([&] { data.train->read(0, data.train->rows()); });
  EXPECT_NE(message.find("train-00001.tokens: chunk 0 is corrupt: its hash is "), std::string::npos)
      << message;
  broken[20] = 'x';
  write("tokens/train-00001.tokens", broken);
  EXPECT_NE(message_of([&] {
              tokens({1, 16});
            }).find("train-00001.tokens: the header is corrupt"),
            std::string::npos);
}

TEST_F(Shard, AFileThatCannotGrowLeavesNothing) {
  ::signal(SIGXFSZ, SIG_IGN);
  struct rlimit before {};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &before), 0);
  struct rlimit small = before;
  small.rlim_cur = 300 << 10;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &small), 0);
  const std::string message = message_of([&] {
    ShardWriter writer(path_, "a.tokens", 300);
    for (int i = 0; i < 100; ++i) writer.add_document(std::vector<std::int32_t>(10000, 7));
    writer.finish();
  });
  ::setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_NE(message.find("cannot write " + path_ + "/a.tokens"), std::string::npos) << message;
  EXPECT_TRUE(fs::is_empty(path_));
}

TEST_F(Tokens, AreThoseOfTheText) {
  build(500, 0.2, 4000);
  const auto tokenizer = make_tokenizer("byte", "");
  for (const bool shuffle : {false, true}) {
    const PackingOptions packing{2, 32, 9, shuffle};
    const SplitData kept = make_text(path_ + "/texts", *tokenizer, packing, {.eval_fraction = 0.2}, pool_);
    const SplitData mapped = tokens(packing, true);
    ASSERT_EQ(mapped.train->rows(), kept.train->rows());
    ASSERT_EQ(mapped.eval->rows(), kept.eval->rows());
    EXPECT_EQ(inputs_of(*mapped.eval, 0, mapped.eval->rows() + 2),
              inputs_of(*kept.eval, 0, kept.eval->rows() + 2));
    auto a = inputs_of(*mapped.train, 0, mapped.train->rows()),
         b = inputs_of(*kept.train, 0, kept.train->rows());
    if (shuffle) {
      EXPECT_NE(a, b);  // each has an order of its own
      std::sort(a.begin(), a.end());
      std::sort(b.begin(), b.end());
    }
    EXPECT_EQ(a, b);
  }
}

TEST_F(Tokens, EveryRowOnceAnEpochHoweverItIsCut) {
  std::mt19937 random(11);
  for (int round = 0; round < rounds(4); ++round) {
    build(20 + static_cast<int>(random() % 100), 0, 1 + static_cast<std::int64_t>(random() % 3000),
          round + 1u);
    const std::int64_t sequence = 1 + static_cast<std::int64_t>(random() % 40);
    const SplitData data = tokens({1, sequence, draw(random)});
    const std::int64_t rows = data.train->rows();
    const SplitData in_order = tokens({1, sequence, 0, false});
    const auto all = inputs_of(*in_order.train, 0, rows);
    const std::multiset<std::vector<std::int32_t>> expected(all.begin(), all.end());
    // Batches of changing size, as after resumes on other meshes; epochs end inside of them.
    std::vector<std::vector<std::int32_t>> seen;
    while (static_cast<std::int64_t>(seen.size()) < 3 * rows) {
      const auto first = static_cast<std::int64_t>(seen.size());
      const std::int64_t count =
          std::min<std::int64_t>(1 + static_cast<std::int64_t>(random() % 9), 3 * rows - first);
      for (auto& row : inputs_of(*data.train, first, count)) seen.push_back(std::move(row));
    }
    for (std::int64_t epoch = 0; epoch < 3; ++epoch) {
      const auto begin = seen.begin() + epoch * rows;
      EXPECT_EQ(std::multiset(begin, begin + rows), expected) << rows << " rows, epoch " << epoch;
    }
    EXPECT_EQ(seen, inputs_of(*data.train, 0, 3 * rows));
  }
}

TEST_F(Tokens, NamesWhatIsWrong) {
  build(100, 0, 1000);
  EXPECT_NE(message_of([&] { tokens({1, 8}, true); }).find("nothing is held out"), std::string::npos);
  EXPECT_NE(message_of([&] {
              tokens({1000, 100});
            }).find("training tokens, expected at least"),
            std::string::npos);
  fs::remove(path_ + "/tokens/train-00002.tokens");
  EXPECT_NE(message_of([&] {
              tokens({1, 8});
            }).find("train-00002.tokens: cannot be opened"),
            std::string::npos);
  fs::copy_file(path_ + "/tokens/train-00001.tokens", path_ + "/tokens/train-00002.tokens");
  EXPECT_NE(message_of([&] {
              tokens({1, 8});
            }).find("train-00002.tokens: not the shard of dataset.json"),
            std::string::npos);
  write("tokens/dataset.json", R"({"format":1})");
  EXPECT_NE(message_of([&] { tokens({1, 8}); }).find("dataset.json: broken"), std::string::npos);
  write("texts/lines.jsonl", "{\"text\":\"a\"}\n\n{\"text\":1}\n");
  fs::remove_all(path_ + "/tokens");
  BuildOptions strict = options(0, 9);
  strict.text.skip_records = false;
  EXPECT_NE(message_of([&] { build_token_folder(strict, pool_); }).find("lines.jsonl:3"), std::string::npos);
}

TEST_F(Tokens, TheirFingerprintIsThatOfTheDocuments) {
  build(40, 0.2, 300);
  const auto of_tokens = [&] { return tokens({1, 8}).train->fingerprint(); };
  const auto of_text = [&] {
    return make_text(path_ + "/texts", *make_tokenizer("byte", ""), {1, 8}, {}, pool_).train->fingerprint();
  };
  const std::uint64_t shards = of_tokens(), text = of_text();
  EXPECT_EQ(of_tokens(), shards);
  EXPECT_EQ(of_text(), text);
  build(40, 0.2, 300, 2);  // as many documents, others
  EXPECT_NE(of_tokens(), shards);
  EXPECT_NE(of_text(), text);
  EXPECT_NE(text, 0u);
}

// Only a text that has an id which the model lacks is refused, with its place.
TEST_F(Tokens, OutsideTheModelAreNamed) {
  build(40, 0, 300);
  const auto tokenizer = make_tokenizer("byte", "");
  const auto tokenized = [&](std::int64_t vocabulary) {
    return message_of([&] {
      make_tokenized(path_ + "/tokens", {1, 8}, false, {vocabulary, tokenizer.get()});
    });
  };
  EXPECT_EQ(tokenized(257), "");
  EXPECT_NE(tokenized(256).find("train-00001.tokens: document 1: token 256 is outside vocab_size=256"),
            std::string::npos)
      << tokenized(256);
  const auto text = [&](const std::string& file, std::int64_t vocabulary) {
    TextOptions options{.add_eos = false};
    options.vocabulary = vocabulary;
    return message_of([&] { make_text(file, *tokenizer, {1, 2}, options, pool_); });
  };
  const std::string plain = write("plain.txt", "one\ntwo\nth{ee\n"),
                    lines = write("more.jsonl", "{\"text\":\"abc\"}\n\n{\"text\":\"a\\n{\"}\n");
  EXPECT_EQ(text(plain, 124), "");
  EXPECT_NE(text(plain, 123).find("plain.txt:3: token 123 (\"{\") is outside vocab_size=123"),
            std::string::npos)
      << text(plain, 123);
  EXPECT_NE(text(lines, 123).find("more.jsonl:3: token 123"), std::string::npos) << text(lines, 123);
}

// Row r of part p is r and p.
class Numbers : public Dataset {
 public:
  Numbers(std::int32_t part, std::int64_t rows) : part_(part), rows_(rows) {}
  Batch read(std::int64_t first_row, std::int64_t rows) override {
    Batch batch = empty_batch(rows, 2);
    for (std::int64_t b = 0; b < rows; ++b) {
      batch.inputs.data<std::int32_t>()[2 * b] = part_;
      batch.inputs.data<std::int32_t>()[2 * b + 1] = static_cast<std::int32_t>(first_row + b);
    }
    return batch;
  }
  std::int64_t rows() const override { return rows_; }
  std::string description() const override { return "numbers"; }

 private:
  std::int32_t part_;
  std::int64_t rows_;
};

std::unique_ptr<Dataset> mixture_of(const std::vector<double>& weights) {
  std::vector<std::unique_ptr<Dataset>> parts;
  for (std::size_t i = 0; i < weights.size(); ++i)
    parts.push_back(std::make_unique<Numbers>(static_cast<std::int32_t>(i), 100));
  return make_mixture(std::move(parts), weights);
}

TEST(Mixture, EachPartInItsShareAndInItsOrder) {
  std::mt19937 random(2);
  std::vector<std::vector<double>> cases = {{1}, {0.7, 0.3}, {1, 1, 1}, {1e-9, 5}, {3, 0.2, 40, 1}};
  for (int i = 0; i < rounds(3); ++i) {
    cases.emplace_back();
    for (std::uint32_t n = 1 + draw(random) % 6; n > 0; --n)
      cases.back().push_back(1e-3 + draw(random) % 1000);
  }
  for (const auto& weights : cases) {
    const auto mixture = mixture_of(weights);
    const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
    std::vector<std::int64_t> next(weights.size(), 0);
    constexpr std::int64_t kRows = 2 * 65536 + 777;
    for (std::int64_t at = 0; at < kRows;) {
      const std::int64_t count =
          std::min<std::int64_t>(1 + static_cast<std::int64_t>(random() % 5000), kRows - at);
      for (const auto& row : inputs_of(*mixture, at, count))
        ASSERT_EQ(row[1], next[static_cast<std::size_t>(row[0])]++) << "part " << row[0];
      at += count;
      for (std::size_t i = 0; i < weights.size(); ++i) {
        const double exact = weights[i] / total * static_cast<double>(at);
        ASSERT_NEAR(static_cast<double>(next[i]), exact, 4 + static_cast<double>(at) * 2 / 65536)
            << "part " << i;
      }
    }
  }
}

TEST(Mixture, HeldOutPartsFollowEachOther) {
  class Few : public Numbers {
   public:
    using Numbers::Numbers;
    Batch read(std::int64_t first_row, std::int64_t count) override {
      Batch batch = Numbers::read(first_row, count);
      for (std::int64_t b = 0; b < count; ++b) {
        if (first_row + b >= rows()) std::fill_n(batch.inputs.data<std::int32_t>() + 2 * b, 2, 0);
      }
      return batch;
    }
  };
  std::vector<std::unique_ptr<Dataset>> parts;
  parts.push_back(std::make_unique<Few>(1, 3));
  parts.push_back(std::make_unique<Few>(2, 2));
  const auto all = make_concatenation(std::move(parts));
  EXPECT_EQ(all->rows(), 5);
  EXPECT_EQ(inputs_of(*all, 1, 6),
            (std::vector<std::vector<std::int32_t>>{{1, 1}, {1, 2}, {2, 0}, {2, 1}, {0, 0}, {0, 0}}));
}

}  // namespace
}  // namespace switchyard
