#include "checkpoint/save.h"

#include <sys/stat.h>

#include <atomic>
#include <cstdlib>
#include <set>
#include <thread>

#include "checkpoint/safetensors.h"
#include "checkpoint/save_testing.h"
#include "core/json_file.h"

namespace switchyard::save_testing {
namespace {

namespace fs = std::filesystem;

using Save = FolderTest;
using Damage = FolderTest;
using Manifests = FolderTest;

std::string error_of(const std::function<void()>& work) {
  try {
    work();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST_F(Save, EveryBoxReadsBack) {
  save_small(FileSystem::real(), path(), 3, 0);
  const CheckpointFolder checkpoint = CheckpointFolder::open(path("3"));
  EXPECT_EQ(checkpoint.manifest().step, 3);
  EXPECT_GE(checkpoint.manifest().files.size(), 3u);  // cut where they are full
  expect_small(checkpoint);
  const Tensor whole = content_of(small_tensors()[0], 3);
  for (std::int64_t row = 0; row < 7; ++row) {
    for (std::int64_t column = 0; column < 6; ++column) {
      const Box box{{row, column}, {7 - row, 6 - column}};
      const Tensor part = checkpoint.read("embedding", box);
      for_runs(whole.shape(), box, [&](std::int64_t at, std::int64_t from, std::int64_t count) {
        EXPECT_EQ(
            std::memcmp(part.raw() + 2 * from, whole.raw() + 2 * at, static_cast<std::size_t>(2 * count)), 0);
      });
    }
  }
}

TEST_F(Save, FilesAreSafetensors) {
  save_small(FileSystem::real(), path(), 1, 0, 1 << 20);
  const SafetensorsFile weights = SafetensorsFile::open(path("1/weights-00001.safetensors"));
  EXPECT_EQ(weights.entries().size(), 5u);
  const Tensor want = content_of(small_tensors()[1], 1), got = weights.read("layers.0.norm");
  EXPECT_EQ(std::memcmp(got.raw(), want.raw(), want.bytes()), 0);
  EXPECT_EQ(SafetensorsFile::open(path("1/optimizer-00001.safetensors")).entries().size(), 2u);
}

TEST_F(Save, WriterOfOneProcess) {
  std::vector<StoredTensor> stored{{"a", DType::f32, {2000, 1000}, false},
                                   {"empty", DType::f32, {0, 3}, false}};
  CheckpointWriter writer(FileSystem::real(), {path(), "out"}, stored);
  for (const StoredTensor& tensor : stored) writer.write(tensor.name, content_of(tensor, 0));
  writer.commit(small_manifest(0));
  const CheckpointFolder checkpoint = CheckpointFolder::open(path("out"));
  EXPECT_EQ(checkpoint.tensor("a").chunks.size(), 2u);  // of 4 MiB at most
  const Tensor want = content_of(stored[0], 0), got = checkpoint.read("a");
  EXPECT_EQ(std::memcmp(got.raw(), want.raw(), want.bytes()), 0);
  EXPECT_EQ(checkpoint.read("empty").size(), 0);
  { CheckpointWriter unfinished(FileSystem::real(), {path(), "other"}, stored); }
  EXPECT_EQ(std::distance(fs::directory_iterator(path()), fs::directory_iterator()), 1);
}

TEST_F(Save, PiecesOfManyShapesAreWrittenOnce) {
  // Four ranks write columns of one tensor: runs are short and interleaved, writes must not be.
  class Counter : public FileSystem {
   public:
    std::int64_t calls = 0, bytes = 0;
    std::int64_t write_at(int file, const void* from, std::size_t size, std::int64_t offset) override {
      ++calls;
      bytes += static_cast<std::int64_t>(size);
      return FileSystem::write_at(file, from, size, offset);
    }
  } files;
  const StoredTensor stored{"a", DType::f32, {512, 64}, false};
  const CheckpointLayout layout({stored});
  const SavePlace place{path(), "1"};
  const Tensor whole = content_of(stored, 1);
  create_files(files, place, layout);
  PieceWriter writer(files, place, layout);
  std::vector<std::vector<std::byte>> blocks;
  std::vector<Piece> pieces;
  for (std::int64_t rank = 0; rank < 4; ++rank) {
    const Box box{{0, 16 * rank}, {512, 16}};
    auto& block = blocks.emplace_back(512 * 16 * 4);
    for_runs(stored.shape, box, [&](std::int64_t at, std::int64_t from, std::int64_t count) {
      std::memcpy(block.data() + 4 * from, whole.raw() + 4 * at, static_cast<std::size_t>(4 * count));
    });
    pieces.push_back({box, block.data()});
  }
  files.calls = files.bytes = 0;
  writer.write(0, pieces);
  writer.finish();
  EXPECT_EQ(files.calls, 1);
  EXPECT_EQ(files.bytes, 512 * 64 * 4);
  commit(files, place, layout, small_manifest(1), writer.chunks(), {});
  const Tensor got = CheckpointFolder::open(path("1")).read("a");
  EXPECT_EQ(std::memcmp(got.raw(), whole.raw(), whole.bytes()), 0);
}

// Ranks that read columns of the same chunks compare each chunk once, whichever comes first.
TEST_F(Save, AChunkIsComparedOnce) {
  const StoredTensor stored{"a", DType::i32, {64, 96}, false};
  const CheckpointLayout layout({stored});
  const SavePlace place{path(), "1"};
  const Tensor whole = content_of(stored, 1);
  create_files(FileSystem::real(), place, layout);
  PieceWriter writer(FileSystem::real(), place, layout);
  std::vector<Piece> pieces;
  for (std::int64_t row = 0; row < 64; row += 4)
    pieces.push_back({{{row, 0}, {4, 96}}, whole.raw() + row * 96 * 4});
  writer.write(0, pieces);
  writer.finish();
  commit(FileSystem::real(), place, layout, small_manifest(1), writer.chunks(), {});

  for (const std::int64_t ranks : {1, 2, 4, 8}) {
    const CheckpointFolder checkpoint = CheckpointFolder::open(path("1"));
    EXPECT_EQ(checkpoint.verified_chunks(), 0);
    std::vector<std::thread> threads;
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      threads.emplace_back([&, rank, copy = checkpoint] {
        const std::int64_t width = 96 / ranks;
        const Tensor got = copy.read("a", {{1, rank * width}, {63, width}});
        for (std::int64_t i = 0; i < got.size(); ++i) {
          const std::int64_t at = (1 + i / width) * 96 + rank * width + i % width;
          ASSERT_EQ(got.data<std::int32_t>()[i], whole.data<std::int32_t>()[at]) << rank << " " << i;
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(checkpoint.verified_chunks(), 16) << ranks;
  }
}

TEST_F(Save, ADamagedChunkIsNeverTakenForACompared) {
  save_small(FileSystem::real(), path(), 5, 0);
  std::string file = read_bytes(path("5/weights-00001.safetensors"));
  const CheckpointFolder checkpoint = CheckpointFolder::open(path("5"));
  const std::int64_t before = checkpoint.verified_chunks();
  file.back() = static_cast<char>(file.back() ^ 1);
  write_bytes(path("5/weights-00001.safetensors"), file);
  std::atomic<int> refused = 0, read = 0;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&] {
      for (const StoredTensor& stored : small_tensors()) {
        try {
          checkpoint.read(stored.name);
          ++read;
        } catch (const Error&) {
          ++refused;
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(refused, 4);
  EXPECT_EQ(read, 4 * (static_cast<int>(small_tensors().size()) - 1));
  EXPECT_GT(checkpoint.verified_chunks(), before);
}

TEST_F(Save, KeepsTheNewest) {
  for (const std::int64_t step : {1, 2, 10, 11}) save_small(FileSystem::real(), path(), step, 2);
  const auto found = find_checkpoints(path());
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[0].step, 11);
  EXPECT_EQ(found[1].step, 10);
  EXPECT_EQ(std::distance(fs::directory_iterator(path()), fs::directory_iterator()), 2);
  save_small(FileSystem::real(), path(), 11, 2);  // again, over itself
  expect_small(CheckpointFolder::open(path("11")));
}

// Copies that users keep beside the steps are none, and are never removed; of a link only the link goes.
TEST_F(Save, OnlyStepsAreSteps) {
  save_small(FileSystem::real(), path(), 1, 0);
  const std::vector<std::string> copies{"01", "+1", "1.bak", "1 (copy)", "1~", "1e0", "-1"};
  for (const std::string& name : copies) fs::copy(path("1"), path(name), fs::copy_options::recursive);
  EXPECT_EQ(find_checkpoints(path()).size(), 1u);
  fs::rename(path("1"), path("archive"));
  fs::create_directory_symlink(path("archive"), path("1"));
  for (const std::int64_t step : {2, 3}) save_small(FileSystem::real(), path(), step, 1);
  EXPECT_FALSE(fs::exists(fs::symlink_status(path("1"))));
  EXPECT_FALSE(fs::exists(path("2")));
  EXPECT_TRUE(fs::exists(path("archive/complete")));
  for (const std::string& name : copies) EXPECT_TRUE(fs::exists(path(name) + "/complete")) << name;
}

TEST_F(Save, TheNewestThatOpensIsFound) {
  fs::create_directory(path("checkpoints"));
  for (const std::int64_t step : {1, 2}) save_small(FileSystem::real(), path("checkpoints"), step, 0);
  std::vector<std::string> skipped;
  EXPECT_EQ(open_checkpoint(path(), &skipped).manifest().step, 2);
  EXPECT_EQ(open_checkpoint(path("checkpoints/1"), &skipped).manifest().step, 1);
  EXPECT_TRUE(skipped.empty());
  write_bytes(path("checkpoints/2/manifest.json"), "{}");
  EXPECT_EQ(open_checkpoint(path(), &skipped).manifest().step, 1);
  ASSERT_EQ(skipped.size(), 1u);
  EXPECT_NE(skipped[0].find("2/manifest.json: hash"), std::string::npos) << skipped[0];
  fs::remove(path("checkpoints/2/complete"));
  skipped.clear();
  EXPECT_EQ(open_checkpoint(path(), &skipped).manifest().step, 1);
  EXPECT_TRUE(skipped.empty());  // not written to the end is nothing to tell of
  fs::remove(path("checkpoints/1/weights-00001.safetensors"));
  EXPECT_THROW(open_checkpoint(path(), &skipped), Error);
}

// Every flip changes what is read or is found; nothing is read wrong.
TEST_F(Damage, BitFlipsAreFound) {
  save_small(FileSystem::real(), path(), 5, 0);
  std::vector<std::string> files;
  for (const auto& entry : fs::recursive_directory_iterator(path("5")))
    if (entry.is_regular_file()) files.push_back(entry.path().string());
  std::mt19937 random(3);
  const int rounds = std::getenv("SWITCHYARD_SOAK") != nullptr ? 5000 : 250;
  int found = 0;
  for (int round = 0; round < rounds; ++round) {
    const std::string& file = files[random() % files.size()];
    const std::string good = read_bytes(file);
    ASSERT_FALSE(good.empty()) << file;
    std::string bad = good;
    bad[random() % bad.size()] ^= static_cast<char>(1u << random() % 8);
    write_bytes(file, bad);
    const std::string error = error_of([&] { expect_small(CheckpointFolder::open(path("5"))); });
    found += error.empty() ? 0 : 1;
    if (!error.empty()) {
      EXPECT_TRUE(error.starts_with("[")) << error;
      EXPECT_EQ(error.find('\n'), std::string::npos) << error;
    }
    write_bytes(file, good);
  }
  EXPECT_GE(found, rounds - rounds / 100);  // the marker's line end is the one bit that is harmless
  expect_small(CheckpointFolder::open(path("5")));
}

TEST_F(Damage, ReadingABoxLooksAtItsChunksOnly) {
  save_small(FileSystem::real(), path(), 1, 0, 1 << 20);
  const std::string file = path("1/weights-00001.safetensors");
  std::string bytes = read_bytes(file);
  const Tensor first = content_of(small_tensors()[0], 1);
  const std::size_t at = bytes.find(std::string(reinterpret_cast<const char*>(first.raw()), 8));
  ASSERT_NE(at, std::string::npos);
  bytes[at] ^= 1;
  write_bytes(file, bytes);
  const CheckpointFolder checkpoint = CheckpointFolder::open(path("1"));
  EXPECT_EQ(checkpoint.read("embedding", {{4, 0}, {3, 6}}).size(), 18);
  const std::string error = error_of([&] { checkpoint.read("embedding", {{0, 5}, {2, 1}}); });
  EXPECT_NE(error.find("tensor \"embedding\" [0:2,0:6]"), std::string::npos) << error;
}

TEST_F(Manifests, MalformedOnesAreRefused) {
  save_small(FileSystem::real(), path(), 1, 0, 1 << 20);
  const nlohmann::json good = nlohmann::json::parse(read_bytes(path("1/manifest.json")));
  const auto refused = [&](const std::string& pointer, const nlohmann::json& value, const std::string& word) {
    nlohmann::json bad = good;
    bad[nlohmann::json::json_pointer(pointer)] = value;
    const std::string error = error_of([&] { parse_manifest(bad.dump(), "m"); });
    EXPECT_TRUE(error.starts_with("[checkpoint] m: ")) << pointer << " " << error;
    EXPECT_NE(error.find(word), std::string::npos) << error;
  };
  EXPECT_EQ(error_of([&] { parse_manifest(good.dump(), "m"); }), "");
  refused("/format", 2, "format 2");
  refused("/step", -1, "step");
  refused("/step", "1", "step");
  refused("/config", 1, "config");
  refused("/files", nullptr, "files");
  refused("/files/0/name", "../x", "not allowed");
  refused("/files/0/name", "/etc/passwd", "not allowed");
  refused("/files/0/header_xxh3", "12", "header_xxh3");
  refused("/files/1/name", "weights-00001.safetensors", "listed twice");
  refused("/tensors/0/name", "embedding.mu", "listed twice");
  refused("/tensors/0/dtype", "F99", "F99");
  refused("/tensors/0/file", "none", "not listed");
  refused("/tensors/0/shape", {7, 7}, "cover");
  refused("/tensors/0/shape", {1 << 30, 1 << 30, 1 << 30}, "overflows");
  refused("/tensors/0/chunks/0/start", {1, 0}, "cover");
  refused("/tensors/0/chunks/0/start", {9, 0}, "outside");
  refused("/tensors/0/chunks/0/start", {0}, "outside");
  refused("/tensors/0/chunks", nlohmann::json::array(), "cover");
  EXPECT_NE(error_of([] { parse_manifest("[]", "m"); }), "");
  EXPECT_NE(error_of([] { parse_manifest("{\"format\":1", "m"); }), "");
}

TEST(StoredParameter, ExpertsAreStoredOneByOne) {
  const StoredParameter stack = stored_parameter("layers.3.moe.wi_0", {18, 4, 6});
  EXPECT_TRUE(stack.is_stack);
  EXPECT_EQ(stack.names.size(), 18u);
  EXPECT_EQ(stack.names[17], "layers.3.moe.experts.17.wi_0");
  EXPECT_EQ(stack.shape, (Shape{4, 6}));
  for (const char* name : {"layers.3.moe.shared.wi_0", "layers.3.moe.gate", "layers.0.mlp.wi_0", "embedding"})
    EXPECT_EQ(stored_parameter(name, {4, 6}).names, std::vector<std::string>{name});
}

}  // namespace
}  // namespace switchyard::save_testing
