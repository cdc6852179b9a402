// Helpers for the tests of checkpoints: a folder per test, and small tensors with known content.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/save.h"

namespace switchyard::save_testing {

inline std::string read_bytes(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}
inline void write_bytes(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
}

class FolderTest : public ::testing::Test {
 protected:
  FolderTest() {
    std::string name = (std::filesystem::path(::testing::TempDir()) / "switchyard_save.XXXXXX").string();
    EXPECT_NE(::mkdtemp(name.data()), nullptr) << name;
    folder_ = name;
  }
  ~FolderTest() override { std::filesystem::remove_all(folder_); }
  std::string path(const std::string& name = "") const { return (folder_ / name).string(); }

 private:
  std::filesystem::path folder_;
};

// Bytes that depend only on tensor and step.
inline Tensor content_of(const StoredTensor& stored, std::int64_t step) {
  Tensor tensor(stored.dtype, stored.shape);
  std::mt19937 random(
      static_cast<unsigned>(std::hash<std::string>()(stored.name) + static_cast<unsigned>(step)));
  for (std::size_t i = 0; i < tensor.bytes(); ++i) tensor.raw()[i] = static_cast<std::byte>(random());
  return tensor;
}

inline std::vector<StoredTensor> small_tensors() {
  return {{"embedding", DType::bf16, {7, 6}, false},
          {"layers.0.norm", DType::f32, {5}, false},
          {"layers.0.experts.0.wo", DType::bf16, {3, 4}, false},
          {"layers.0.experts.1.wo", DType::bf16, {3, 4}, false},
          {"head", DType::bf16, {60, 97}, false},  // several blocks of a disk
          {"embedding.mu", DType::f32, {7, 6}, true},
          {"embedding.nu", DType::f32, {7, 6}, true}};
}

inline Manifest small_manifest(std::int64_t step) {
  Manifest manifest;
  manifest.step = step;
  manifest.version = "test";
  manifest.model = "mixtral";
  manifest.data = {{"rows", 4 * step}};
  return manifest;
}

// Saves all small tensors of a step, in files of at most `file_bytes`.
inline void save_small(FileSystem& files, const std::string& parent, std::int64_t step, std::int64_t keep,
                       std::int64_t file_bytes = 200) {
  const CheckpointLayout layout(small_tensors(), file_bytes);
  const SavePlace place{parent, std::to_string(step)};
  create_files(files, place, layout);
  PieceWriter writer(files, place, layout);
  for (std::size_t i = 0; i < layout.tensors().size(); ++i) {
    const Tensor tensor = content_of(layout.tensors()[i], step);
    std::vector<Piece> pieces;
    std::int64_t at = 0;
    const std::int64_t most = std::max<std::int64_t>(16, tensor.size() / 4);
    for (const Box& box : boxes_of_range(whole_box(tensor.shape()), 0, tensor.size(), most)) {
      pieces.push_back({box, tensor.raw() + static_cast<std::size_t>(at) * size_of(tensor.dtype())});
      at += num_elements(box.shape);
    }
    writer.write(i, pieces);
  }
  writer.finish();
  const std::vector<ExtraFile> extras{{"tokenizer/tokenizer.json", "{\"model\":1}"}};
  commit(files, place, layout, small_manifest(step), writer.chunks(), extras);
  prune(files, parent, keep);
}

// Throws Error when the checkpoint is not complete, and reports content that save_small did not write.
inline void expect_small(const CheckpointFolder& checkpoint) {
  checkpoint.prove();
  for (const StoredTensor& stored : small_tensors()) {
    const Tensor want = content_of(stored, checkpoint.manifest().step), got = checkpoint.read(stored.name);
    ASSERT_EQ(got.dtype(), want.dtype());
    ASSERT_EQ(got.shape(), want.shape());
    EXPECT_EQ(std::memcmp(got.raw(), want.raw(), want.bytes()), 0) << stored.name;
  }
}

}  // namespace switchyard::save_testing
