// Packed weights in a checkpoint, and weights that are used directly from its mapped files.
#include "checkpoint/layout.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/save_testing.h"
#include "core/error.h"

namespace switchyard {
namespace {

using namespace save_testing;

constexpr std::int64_t kExperts = 4;

std::vector<StoredTensor> packed_tensors() {
  std::vector<StoredTensor> tensors{{"embedding", DType::bf16, {64, 32}, false},
                                    {"head", DType::packed_int8, {2, 5}, false},
                                    {"layers.0.attention.query", DType::packed_int4a, {2, 3, 1}, false},
                                    {"layers.0.attention.out", DType::packed_mxfp4, {3, 1, 4}, false}};
  for (std::int64_t e = 0; e < kExperts; ++e)
    tensors.push_back({fmt::format("layers.0.moe.experts.{}.wo", e), DType::packed_int4, {3, 2}, false});
  return tensors;
}

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

class PackedCheckpoint : public FolderTest {
 protected:
  PackedCheckpoint() {
    CheckpointWriter writer(FileSystem::real(), {path(), "7"}, packed_tensors());
    for (const StoredTensor& stored : packed_tensors()) writer.write(stored.name, content_of(stored, 7));
    writer.commit(small_manifest(7));
  }
  CheckpointFolder open() const { return CheckpointFolder::open(path("7")); }
};

TEST_F(PackedCheckpoint, HoldsBlocksAsTheyAre) {
  const CheckpointFolder checkpoint = open();
  checkpoint.prove();
  for (const StoredTensor& stored : packed_tensors()) {
    SCOPED_TRACE(stored.name);
    const Tensor got = checkpoint.read(stored.name), want = content_of(stored, 7);
    ASSERT_EQ(got.dtype(), stored.dtype);
    ASSERT_EQ(got.shape(), stored.shape);
    EXPECT_EQ(std::memcmp(got.raw(), want.raw(), want.bytes()), 0);
  }
  const Tensor column = checkpoint.read("head", {{0, 3}, {2, 2}}), whole = checkpoint.read("head");
  for (std::size_t row = 0; row < 2; ++row)
    EXPECT_EQ(std::memcmp(column.raw() + row * 2 * 544, whole.raw() + (row * 5 + 3) * 544, 2 * 544), 0);
}

TEST_F(PackedCheckpoint, IsBytesInAFileOfAnyReader) {
  const auto file = SafetensorsFile::open(path("7/weights-00001.safetensors"));
  const auto& entry = file.entries().at("layers.0.moe.experts.2.wo");
  EXPECT_EQ(entry.dtype, "U8");
  EXPECT_EQ(entry.shape, (Shape{3, 2, 288}));
  EXPECT_EQ(file.entries().at("head").shape, (Shape{2, 5, 544}));
  const std::string manifest = read_bytes(path("7/manifest.json"));
  for (const char* name :
       {R"("dtype":"int4")", R"("dtype":"int8")", R"("dtype":"int4a")", R"("dtype":"mxfp4")"})
    EXPECT_NE(manifest.find(name), std::string::npos) << name;
}

TEST_F(PackedCheckpoint, ExpertsAreUsedWhereTheyLie) {
  const CheckpointFolder checkpoint = open();
  const Shape stack{kExperts, 3, 2};
  const Box two{{1, 0, 0}, {2, 3, 2}};
  const std::size_t before = memory_in_use();
  const Tensor mapped = checkpoint.map_parameter("layers.0.moe.wo", stack, two);
  ASSERT_TRUE(mapped.defined());
  EXPECT_EQ(memory_in_use(), before);  // nothing was allocated
  EXPECT_TRUE(mapped.buffer()->read_only());
  EXPECT_EQ(mapped.dtype(), DType::packed_int4);
  EXPECT_EQ(mapped.shape(), two.shape);
  EXPECT_EQ(checkpoint.verified_chunks(), 2);
  Tensor read(DType::packed_int4, two.shape);
  checkpoint.read_parameter("layers.0.moe.wo", stack, "", two, read.raw());
  EXPECT_EQ(std::memcmp(mapped.raw(), read.raw(), read.bytes()), 0);

  const Tensor rows = checkpoint.map_parameter("embedding", {64, 32}, {{8, 0}, {16, 32}});
  ASSERT_TRUE(rows.defined());
  EXPECT_EQ(std::memcmp(rows.raw(), checkpoint.read("embedding", {{8, 0}, {16, 32}}).raw(), rows.bytes()), 0);
}

TEST_F(PackedCheckpoint, WhatHasGapsIsNotUsedThere) {
  const CheckpointFolder checkpoint = open();
  const Shape stack{kExperts, 3, 2};
  EXPECT_FALSE(checkpoint.map_parameter("layers.0.moe.wo", stack, {{0, 0, 0}, {4, 3, 1}}).defined());
  EXPECT_FALSE(checkpoint.map_parameter("layers.0.moe.wo", stack, {{0, 0, 0}, {4, 1, 2}}).defined());
  EXPECT_FALSE(checkpoint.map_parameter("head", {2, 5}, {{0, 0}, {2, 4}}).defined());
  EXPECT_FALSE(checkpoint.map_parameter("embedding", {64, 32}, {{0, 16}, {64, 16}}).defined());
  EXPECT_EQ(checkpoint.verified_chunks(), 0);
}

TEST_F(PackedCheckpoint, OneWrongByteIsFound) {
  const std::string file = path("7/weights-00001.safetensors");
  std::string bytes = read_bytes(file);
  const auto opened = SafetensorsFile::open(file);
  const auto data = opened.entries().at("layers.0.moe.experts.2.wo").bytes;
  const std::string needle(reinterpret_cast<const char*>(data.data()), data.size());
  const std::size_t at = bytes.find(needle);
  ASSERT_NE(at, std::string::npos);
  bytes[at + 1000] = static_cast<char>(bytes[at + 1000] ^ 4);
  write_bytes(file, bytes);
  const CheckpointFolder checkpoint = open();
  const Shape stack{kExperts, 3, 2};
  for (int again = 0; again < 2; ++again) {
    const std::string mapped = error_of([&] {
      checkpoint.map_parameter("layers.0.moe.wo", stack, {{0, 0, 0}, {4, 3, 2}});
    });
    EXPECT_NE(mapped.find("experts.2.wo"), std::string::npos) << mapped;
    const std::string read = error_of([&] { checkpoint.read("layers.0.moe.experts.2.wo"); });
    EXPECT_NE(read.find("damaged"), std::string::npos) << read;
  }
  EXPECT_TRUE(checkpoint.map_parameter("layers.0.moe.wo", stack, {{0, 0, 0}, {2, 3, 2}}).defined());
}

TEST_F(PackedCheckpoint, ManifestsOfOtherTypesAreRefused) {
  const std::string text = read_bytes(path("7/manifest.json"));
  const auto error_with = [&](const std::string& from, const std::string& to) {
    std::string changed = text;
    changed.replace(changed.find(from), from.size(), to);
    return error_of([&] { parse_manifest(changed, "m"); });
  };
  EXPECT_EQ(error_with(R"("dtype":"int4")", R"("dtype":"mxfp4")"), "");
  const std::string unknown = error_with(R"("dtype":"int4")", R"("dtype":"int3")");
  EXPECT_NE(unknown.find("dtype int3, expected"), std::string::npos) << unknown;
  const std::string flat = error_with(R"("shape":[2,5])", R"("shape":[10])");
  EXPECT_NE(flat.find("1 dims"), std::string::npos) << flat;
}

}  // namespace
}  // namespace switchyard
