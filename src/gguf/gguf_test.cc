// GGUF: blocks against the values of llama.cpp's code, stored files against what their writer says of them,
// and broken files.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/json_file.h"
#include "checkpoint/safetensors.h"
#include "core/error.h"
#include "core/sha256.h"
#include "core/testing.h"
#include "gguf/blocks.h"
#include "gguf/gguf_file.h"
#include "kernels/packed_weights.h"
#include "models/families/hub_source.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

fs::path stored() {
  return fs::path(kSourceFolder) / "tests/golden/gguf";
}

bool same_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

// Blocks of random bits, also of scales that are infinite or no numbers: then the values are alike, not the
// bits of a NaN.
TEST(GgufBlocks, HaveTheValuesThatLlamaCppGives) {
  const auto file = SafetensorsFile::open((stored() / "blocks.safetensors").string());
  int types = 0;
  for (const auto& [name, entry] : file.entries()) {
    if (!name.ends_with(".raw")) continue;
    const std::string type_name = name.substr(0, name.size() - 4);
    SCOPED_TRACE(type_name);
    const GgufType* const type = gguf_type(type_name);
    ASSERT_NE(type, nullptr);
    const Tensor expected = file.read(type_name + ".values");
    ASSERT_EQ(entry.shape[1], type->bytes);
    ASSERT_EQ(expected.dim(1), type->values);
    std::vector<float> found(static_cast<std::size_t>(expected.size()));
    dequantize(*type, entry.bytes, found);
    for (std::size_t i = 0; i < found.size(); ++i) {
      const float want = expected.data<float>()[i];
      if (std::isnan(want))
        ASSERT_TRUE(std::isnan(found[i])) << i;
      else
        ASSERT_EQ(found[i], want) << i;
    }
    ++types;
  }
  EXPECT_EQ(types, 13);
}

TEST(GgufBlocks, OfOneValueAreFloats) {
  const std::vector<std::uint16_t> halves{0x3c00, 0x8000, 0x0001, 0x7bff, 0xc500};
  std::vector<float> out(halves.size());
  dequantize(*gguf_type("F16"), std::as_bytes(std::span(halves)), out);
  EXPECT_EQ(out, (std::vector<float>{1, -0.0f, 0x1p-24f, 65504, -5}));
  const std::vector<std::uint16_t> brains{0x3f80, 0xc0a0};
  out.resize(2);
  dequantize(*gguf_type("BF16"), std::as_bytes(std::span(brains)), out);
  EXPECT_EQ(out, (std::vector<float>{1, -5}));
}

// Blocks of random bits as packed blocks, and back: the values, and the bits of all that are numbers.
TEST(GgufBlocks, HaveTheSameValuesInPackedBlocks) {
  const auto file = SafetensorsFile::open((stored() / "blocks.safetensors").string());
  int types = 0, values = 0;
  for (const auto& [name, entry] : file.entries()) {
    if (!name.ends_with(".raw")) continue;
    const GgufType& type = *gguf_type(name.substr(0, name.size() - 4));
    const std::optional<DType> packed = packed_dtype_of(type);
    if (!packed) continue;
    SCOPED_TRACE(type.name);
    ++types;
    std::vector<std::byte> block(size_of(*packed));
    for (std::int64_t i = 0; i < entry.shape[0]; ++i) {
      const auto raw =
          entry.bytes.subspan(static_cast<std::size_t>(i * type.bytes), static_cast<std::size_t>(type.bytes));
      if (type.name == "MXFP4" && raw[0] == std::byte{255}) {
        EXPECT_FALSE(packed_group_of(type, raw.data()));
        continue;
      }
      std::vector<float> expected(static_cast<std::size_t>(type.values));
      dequantize(type, raw, expected);
      for (std::int64_t g = 0; g < type.values / kGroupInputs; ++g) {
        const std::int64_t of_block = g % groups_of(*packed), output = i % kBlockOutputs;
        write_group(*packed, *packed_group_of(type, raw.data(), g), block.data(), output, of_block);
        const auto found = values_of(*packed, read_group(*packed, block.data(), output, of_block));
        for (std::size_t j = 0; j < found.size(); ++j) {
          const float want = expected[static_cast<std::size_t>(g * kGroupInputs) + j];
          if (std::isnan(want))
            ASSERT_TRUE(std::isnan(found[j])) << j;
          else
            ASSERT_EQ(std::bit_cast<std::uint32_t>(found[j]), std::bit_cast<std::uint32_t>(want))
                << i << " " << j;
          ++values;
        }
      }
    }
  }
  EXPECT_EQ(types, 10);
  EXPECT_GT(values, 15 * (7 * 32 + 3 * 256));
}

// Every exponent of MXFP4 with every number, subnormal and infinite values too.
TEST(GgufBlocks, OfMxfp4HaveEveryValueInPackedBlocks) {
  const GgufType& type = *gguf_type("MXFP4");
  std::array<std::byte, 17> raw{};
  for (std::size_t j = 0; j < 16; ++j) raw[j + 1] = static_cast<std::byte>(j | (15 - j) << 4);
  for (int exponent = 0; exponent < 255; ++exponent) {
    raw[0] = static_cast<std::byte>(exponent);
    std::array<float, 32> expected{};
    dequantize(type, raw, expected);
    const auto found = values_of(DType::packed_mxfp4, *packed_group_of(type, raw.data()));
    EXPECT_TRUE(same_bits(found, expected)) << exponent;
  }
  raw[0] = std::byte{255};
  EXPECT_FALSE(packed_group_of(type, raw.data()));
}

std::string sha256(std::span<const float> values) {
  Sha256 hash;
  hash.add(std::as_bytes(values));
  return hash.hex();
}

TEST(GgufFile, StoredFilesHaveTheTensorsThatTheirWriterSays) {
  std::size_t files = 0, tensors = 0;
  for (const auto& found : fs::recursive_directory_iterator(stored())) {
    if (found.path().extension() != ".gguf") continue;
    SCOPED_TRACE(found.path().string());
    ++files;
    const GgufFile file = GgufFile::open(found.path().string());
    const auto all = read_json_file((found.path().parent_path() / "tensors.json").string());
    const auto& expected = all.at(found.path().stem().string());
    EXPECT_EQ(file.entries().size(), expected.size());
    for (const auto& [name, tensor] : expected.items()) {
      ASSERT_TRUE(file.entries().contains(name)) << name;
      const GgufFile::Entry& entry = file.entries().at(name);
      EXPECT_EQ(entry.type->name, tensor.at("type").get<std::string>());
      const auto dims = tensor.at("shape").get<std::vector<std::int64_t>>();
      EXPECT_EQ(entry.shape, Shape(dims.begin(), dims.end())) << name;
      const Tensor values = file.read(name);
      EXPECT_EQ(sha256(values.span<float>()), tensor.at("sha256").get<std::string>()) << name;
      const std::int64_t rows = values.size() / entry.shape.back(), half = rows / 2;
      const Tensor matrix = values.reshaped({rows, entry.shape.back()});
      EXPECT_TRUE(same_bits(file.read_rows(name, half, rows).span<float>(),
                            matrix.slice_rows(half, rows).span<float>()))
          << name;
      file.release_rows(name, 0, rows);
      ++tensors;
    }
    EXPECT_TRUE(file.metadata().at("general.architecture").is_string());
    EXPECT_GT(file.metadata().at("tokenizer.ggml.tokens").size(), 100u);
  }
  EXPECT_EQ(files, 11u);
  EXPECT_GT(tensors, 200u);
}

// Weights in packed blocks have the values that they have as float32, also where rows are permuted.
TEST(GgufWeights, InBlocksHaveTheSameValues) {
  std::map<DType, int> weights;
  for (const auto& found : fs::recursive_directory_iterator(stored())) {
    if (found.path().extension() != ".gguf") continue;
    const HubSource source = open_hub_source(found.path().string());
    for (const std::string& name : source.weights->names()) {
      SCOPED_TRACE(found.path().string() + " " + name);
      const std::optional<DType> packed = source.weights->packed_dtype(name);
      if (!packed) continue;
      const Tensor blocks = source.weights->take_blocks(name), expected = source.weights->read(name);
      ASSERT_EQ(blocks.dtype(), *packed);
      ASSERT_EQ(unpacked_shape(*packed, blocks.shape()), (Shape{expected.dim(1), expected.dim(0)}));
      ThreadPool pool(1);
      const Tensor values(DType::f32, unpacked_shape(*packed, blocks.shape()));
      unpack_weights(pool, {blocks.view(), values.view()});
      int differ = 0;
      for (std::int64_t o = 0; o < expected.dim(0); ++o) {
        for (std::int64_t i = 0; i < expected.dim(1); ++i) {
          const float want = expected.data<float>()[o * expected.dim(1) + i],
                      value = values.data<float>()[i * expected.dim(0) + o];
          differ += std::bit_cast<std::uint32_t>(value) != std::bit_cast<std::uint32_t>(want) ? 1 : 0;
        }
      }
      EXPECT_EQ(differ, 0);
      ++weights[*packed];
    }
  }
  for (const DType packed : {DType::packed_int8, DType::packed_int4, DType::packed_int4a, DType::packed_mxfp4,
                             DType::packed_int5a, DType::packed_q4_k, DType::packed_q5_k, DType::packed_q6_k})
    EXPECT_GT(weights[packed], 1) << name_of(packed);
}

// A file as a writer of it would make it.
class Written {
 public:
  Written& raw(const void* data, std::size_t size) {
    const auto* const begin = static_cast<const std::byte*>(data);
    bytes_.insert(bytes_.end(), begin, begin + size);
    return *this;
  }
  template <typename T>
  Written& number(T value) {
    return raw(&value, sizeof value);
  }
  Written& text(const std::string& value) {
    return number(static_cast<std::uint64_t>(value.size())).raw(value.data(), value.size());
  }
  Written& header(std::uint64_t tensors, std::uint64_t entries, std::uint32_t version = 3) {
    return raw("GGUF", 4).number(version).number(tensors).number(entries);
  }
  Written& tensor(const std::string& name, const std::vector<std::uint64_t>& sizes, std::uint32_t type,
                  std::uint64_t offset) {
    text(name).number(static_cast<std::uint32_t>(sizes.size()));
    for (const std::uint64_t size : sizes) number(size);
    return number(type).number(offset);
  }
  Written& data(std::size_t size, std::size_t alignment = 32) {
    bytes_.resize((bytes_.size() + alignment - 1) / alignment * alignment);
    bytes_.resize(bytes_.size() + size, std::byte{1});
    return *this;
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

std::string refusal(std::span<const std::byte> bytes) {
  try {
    GgufFile::parse(bytes, "m.gguf");
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::usage);
    const std::string text = error.what();
    EXPECT_EQ(text.find('\n'), std::string::npos) << text;
    EXPECT_TRUE(text.starts_with("[gguf] m.gguf: ")) << text;
    return text;
  }
  return "accepted";
}

TEST(GgufFile, ReadsEveryKindOfMetadata) {
  Written file;
  file.header(1, 5);
  file.text("general.alignment").number<std::uint32_t>(4).number<std::uint32_t>(64);
  file.text("i").number<std::uint32_t>(11).number<std::int64_t>(-7);
  file.text("f").number<std::uint32_t>(6).number(0.5f);
  file.text("b").number<std::uint32_t>(7).number<std::uint8_t>(1);
  file.text("names")
      .number<std::uint32_t>(9)
      .number<std::uint32_t>(8)
      .number<std::uint64_t>(2)
      .text("x")
      .text("");
  file.tensor("t", {32, 2}, 2, 0).data(36, 64);
  const GgufFile read = GgufFile::parse(file.bytes(), "m.gguf");
  EXPECT_EQ(read.metadata().at("i"), -7);
  EXPECT_EQ(read.metadata().at("f"), 0.5);
  EXPECT_EQ(read.metadata().at("b"), true);
  EXPECT_EQ(read.metadata().at("names"), (nlohmann::json{"x", ""}));
  EXPECT_EQ(read.entries().at("t").shape, (Shape{2, 32}));
}

TEST(GgufFile, EveryTruncationIsRefused) {
  Written file;
  file.header(2, 1).text("list").number<std::uint32_t>(9).number<std::uint32_t>(8).number<std::uint64_t>(1);
  file.text("word").tensor("a", {32}, 2, 0).tensor("b", {4}, 0, 32).data(32 + 16);
  ASSERT_EQ(refusal(file.bytes()), "accepted");
  for (std::size_t size = 0; size < file.bytes().size(); ++size)
    EXPECT_NE(refusal(std::span(file.bytes()).first(size)), "accepted") << size;
}

TEST(GgufFile, BrokenFilesAreRefusedInALine) {
  const auto expect = [](const std::function<void(Written&)>& write, const std::string& rule) {
    Written file;
    write(file);
    const std::string text = refusal(file.bytes());
    EXPECT_NE(text.find(rule), std::string::npos) << text << ", expected: " << rule;
  };
  constexpr std::uint64_t kHuge = 1ull << 62;
  expect([](Written& f) { f.header(0, 0, 4); }, "version 4");
  expect([](Written& f) { f.raw("GGML", 4).number<std::uint64_t>(0); }, "begins with GGUF");
  expect([](Written& f) { f.header(kHuge, 0); }, "truncated or broken");
  expect([](Written& f) { f.header(0, kHuge); }, "truncated or broken");
  expect([](Written& f) { f.header(0, 1).number(kHuge).data(64); }, "expected at most 65535");
  expect([](Written& f) { f.header(0, 1).text("").data(64); }, "without a key");
  expect([](Written& f) { f.header(0, 1).text("k").number<std::uint32_t>(13).data(64); }, "unknown type 13");
  expect(
      [](Written& f) { f.header(0, 1).text("k").number<std::uint32_t>(7).number<std::uint8_t>(2).data(64); },
      "expected 0 or 1");
  expect(
      [](Written& f) {
        f.header(0, 1)
            .text("k")
            .number<std::uint32_t>(9)
            .number<std::uint32_t>(9)
            .number<std::uint64_t>(1)
            .data(64);
      },
      "list of lists");
  expect(
      [](Written& f) {
        f.header(0, 1).text("k").number<std::uint32_t>(9).number<std::uint32_t>(0).number(kHuge).data(64);
      },
      "truncated or broken");
  expect(
      [](Written& f) {
        f.header(0, 2);
        for (int i = 0; i < 2; ++i) f.text("k").number<std::uint32_t>(0).number<std::uint8_t>(2);
        f.data(64);
      },
      "twice");
  for (const std::uint32_t alignment : {0u, 4u, 33u, 1u << 30}) {
    expect(
        [&](Written& f) {
          f.header(0, 1).text("general.alignment").number<std::uint32_t>(4).number(alignment).data(64);
        },
        "power of two");
  }
  expect([](Written& f) { f.header(1, 0).tensor("t", {1, 1, 1, 1, 1}, 0, 0).data(64); }, "5 dims");
  expect([](Written& f) { f.header(1, 0).tensor("t", {}, 0, 0).data(64); }, "0 dims");
  expect([](Written& f) { f.header(1, 0).tensor("t", {32, 0}, 0, 0).data(64); }, "a dim of 0");
  expect([](Written& f) { f.header(1, 0).tensor("t", {kHuge, 8}, 0, 0).data(64); }, "overflow");
  expect([](Written& f) { f.header(1, 0).tensor("t", {33, 32}, 2, 0).data(64); }, "multiple of 32 for Q4_0");
  expect([](Written& f) { f.header(1, 0).tensor("t", {4}, 4, 0).data(64); }, "has type 4");
  expect([](Written& f) { f.header(1, 0).tensor("t", {4}, 0, 32).data(64); }, "begins at 32, expected 0");
  expect([](Written& f) { f.header(2, 0).tensor("t", {4}, 0, 0).tensor("u", {4}, 0, 16).data(64); },
         "begins at 16, expected 32");
  expect([](Written& f) { f.header(2, 0).tensor("t", {4}, 0, 0).tensor("t", {4}, 0, 32).data(64); }, "twice");
  expect([](Written& f) { f.header(1, 0).tensor("", {4}, 0, 0).data(64); }, "without a name");
  expect([](Written& f) { f.header(1, 0).tensor("t", {1 << 20}, 0, 0).data(64); }, "truncated");
}

}  // namespace
}  // namespace switchyard
