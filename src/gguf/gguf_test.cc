// GGUF: blocks against the values of llama.cpp's code, stored files against the values their writer recorded,
// and broken files.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"
#include "core/error.h"
#include "core/json_file.h"
#include "core/sha256.h"
#include "core/testing.h"
#include "gguf/blocks.h"
#include "gguf/gguf_file.h"
#include "gguf/gguf_weights.h"
#include "gguf/metadata.h"
#include "kernels/packed/packed_weights.h"
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

// Each float16 scale of each type in turn; a block of zeros and one with all other bits set are fine.
TEST(GgufBlocks, OfInfiniteScalesAreFound) {
  const std::map<std::string, std::vector<std::size_t>> scales{
      {"Q4_0", {0}},    {"Q4_1", {0, 2}},   {"Q5_0", {0}},   {"Q5_1", {0, 2}},
      {"Q8_0", {0}},    {"Q2_K", {80, 82}}, {"Q3_K", {108}}, {"Q4_K", {0, 2}},
      {"Q5_K", {0, 2}}, {"Q6_K", {208}},    {"IQ4_NL", {0}}, {"IQ4_XS", {0}},
      {"MXFP4", {}},    {"F32", {}},        {"BF16", {}},    {"F16", {}}};
  for (const auto& [name, places] : scales) {
    SCOPED_TRACE(name);
    const GgufType& type = *gguf_type(name);
    const auto size = static_cast<std::size_t>(type.bytes);
    std::vector<std::byte> blocks(3 * size, std::byte{0xff});
    const auto put = [&](std::size_t block, std::size_t at, std::uint16_t half) {
      std::memcpy(blocks.data() + block * size + at, &half, sizeof half);
    };
    for (std::size_t block = 0; block < 3; ++block) {
      for (const std::size_t at : places) put(block, at, 0xfbff);  // the least of all
    }
    EXPECT_EQ(block_of_infinite_scale(type, blocks), std::nullopt);
    for (const std::size_t at : places) {
      for (const std::uint16_t bad : std::vector<std::uint16_t>{0x7c00, 0xfc00, 0x7e01}) {
        put(1, at, bad);
        EXPECT_EQ(block_of_infinite_scale(type, blocks), 1) << at;
        put(1, at, 0xfbff);
      }
    }
  }
  EXPECT_EQ(scales.size(), 16u);
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

TEST(GgufFile, RowsOfInfiniteScalesAreNamed) {
  Written file;
  file.header(1, 0).tensor("t", {64, 2}, 8, 0).data(4 * 34);
  std::vector<std::byte> bytes = file.bytes();
  const std::uint16_t infinite = 0x7c00;
  std::memcpy(bytes.data() + bytes.size() - 34, &infinite, sizeof infinite);  // the last of four blocks
  const GgufFile read = GgufFile::parse(bytes, "m.gguf");
  read.check_scales("t", 0, 1);
  try {
    read.check_scales("t", 1, 2);
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "[gguf] m.gguf: tensor \"t\": block 3 of Q8_0 has a scale that is no finite number");
  }
}

// A value for each layer, all alike, is that value.
TEST(GgufFile, ListsOfEqualNumbersAreOneNumber) {
  Written file;
  file.header(0, 4);
  const auto list = [&](const char* key, std::uint32_t type, const auto& values) {
    file.text(key).number<std::uint32_t>(9).number(type).number<std::uint64_t>(values.size());
    for (const auto value : values) file.number(value);
  };
  list("m.heads", 4, std::vector<std::uint32_t>{2, 2});
  list("m.widths", 5, std::vector<std::int32_t>{8, 0});
  list("m.epsilon", 6, std::vector<float>{0.5f});
  list("m.none", 4, std::vector<std::uint32_t>{});
  file.data(32);
  const GgufFile read = GgufFile::parse(file.bytes(), "m.gguf");
  const GgufMetadata metadata(read, "m");
  EXPECT_EQ(metadata.integer("heads"), 2);
  EXPECT_EQ(metadata.number("epsilon"), 0.5);
  for (const char* key : {"widths", "none"}) {
    try {
      metadata.integer(key);
      ADD_FAILURE() << key;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(std::string("m.") + key + "=["), std::string::npos)
          << error.what();
    }
  }
}

// Files of parts: which of them are read together, and what is said of the others.
TEST(GgufFile, PartsAreReadTogether) {
  const fs::path folder = fs::temp_directory_path() / fmt::format("gguf_parts_{}", ::getpid());
  fs::create_directories(folder);
  const auto write = [&](const std::string& name, std::uint16_t number, std::uint16_t count,
                         std::uint32_t tensors, const std::string& tensor) {
    Written file;
    file.header(1, 3).text("split.no").number<std::uint32_t>(2).number(number);
    file.text("split.count").number<std::uint32_t>(2).number(count);
    file.text("split.tensors.count").number<std::uint32_t>(5).number(static_cast<std::int32_t>(tensors));
    file.tensor(tensor, {4, 2}, 0, 0).data(32);
    std::ofstream(folder / name, std::ios::binary)
        .write(reinterpret_cast<const char*>(file.bytes().data()), std::ssize(file.bytes()));
  };
  const std::string first = folder / "m-00001-of-00003.gguf", second = folder / "m-00002-of-00003.gguf",
                    third = folder / "m-00003-of-00003.gguf";
  const auto refused = [&](const std::string& path, const std::string& words) {
    try {
      GgufFile::open(path);
      ADD_FAILURE() << words;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::usage);
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  };
  write("m-00001-of-00003.gguf", 0, 3, 3, "a");
  write("m-00002-of-00003.gguf", 1, 3, 3, "b");
  refused(first, "part 3 is missing, expected at " + third);
  write("m-00003-of-00003.gguf", 2, 3, 3, "c");
  const GgufFile all = GgufFile::open(first);
  EXPECT_EQ(all.paths(), (std::vector{first, second, third}));
  EXPECT_EQ(all.entries().size(), 3u);
  EXPECT_EQ(all.entries().at("c").part, 2u);
  EXPECT_EQ(all.read("c").size(), 8);
  all.release_rows("b", 0, 2);
  EXPECT_EQ(all.read("b").size(), 8);
  refused(second, "part 2 of 3 of a model: expected the first, " + first);
  write("other.gguf", 0, 3, 3, "a");
  refused(folder / "other.gguf", "-00001-of-00003.gguf");
  write("m-00003-of-00003.gguf", 1, 3, 3, "c");
  refused(first, "part 2 of 3 by split.no");
  write("m-00003-of-00003.gguf", 2, 3, 3, "b");
  refused(first, "\"b\" is in another part");
  write("m-00003-of-00003.gguf", 2, 3, 3, "c");
  write("m-00001-of-00003.gguf", 0, 3, 4, "a");
  refused(first, "split.tensors.count=4: expected 3");
  fs::remove_all(folder);
}

TEST(GgufFile, PointersOfGitLfsAreNamed) {
  const fs::path path = fs::temp_directory_path() / fmt::format("pointer_{}.gguf", ::getpid());
  std::ofstream(path) << "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n";
  EXPECT_TRUE(GgufFile::is_gguf(path));
  try {
    GgufFile::open(path);
    ADD_FAILURE() << "opened";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("a Git LFS pointer of 63 bytes"), std::string::npos)
        << error.what();
  }
  fs::remove(path);
}

// The keys of rotations become the fields of a config.json, or are refused.
TEST(GgufFile, RotationsAreReadOrRefused) {
  const std::string stored_file =
      (fs::path(kSourceFolder) / "tests/golden/gguf_small/rope_freqs.gguf").string();
  const auto rope = [](const GgufFile& file) { return hub_config_of(file).at("rope_parameters"); };
  EXPECT_EQ(rope(GgufFile::open(stored_file)).at("frequency_divisors"),
            (nlohmann::json{1.0, 1.0, 1.0, 1.0, 2.0, 4.0, 8.0, 8.0}));
  struct Extra {
    std::string key;
    std::uint32_t type;
    double value;
    std::string text;
  };
  const auto with = [&](const std::vector<Extra>& extras, const std::string& architecture = "qwen2") {
    Written file;
    file.header(1, 7 + extras.size());
    const auto integer = [&](const std::string& key, std::uint32_t value) {
      file.text(architecture + "." + key).number<std::uint32_t>(4).number(value);
    };
    file.text("general.architecture").number<std::uint32_t>(8).text(architecture);
    integer("attention.head_count", 2), integer("embedding_length", 16), integer("block_count", 1);
    integer("context_length", 64), integer("feed_forward_length", 16);
    file.text(architecture + ".attention.layer_norm_rms_epsilon").number<std::uint32_t>(6).number(1e-5f);
    for (const Extra& extra : extras) {
      file.text(architecture + "." + extra.key).number(extra.type);
      if (extra.type == 8)
        file.text(extra.text);
      else if (extra.type == 4)
        file.number(static_cast<std::uint32_t>(extra.value));
      else
        file.number(static_cast<float>(extra.value));
    }
    file.tensor("token_embd.weight", {16, 3}, 0, 0).data(4 * 48);
    return GgufFile::parse(file.bytes(), "m.gguf");
  };
  const nlohmann::json thirds{3.0, 3.0, 3.0, 3.0};
  const Extra factor{"rope.scaling.factor", 6, 3, ""}, old_factor{"rope.scale_linear", 6, 3, ""},
      linear{"rope.scaling.type", 8, 0, "linear"}, none{"rope.scaling.type", 8, 0, "none"};
  EXPECT_FALSE(rope(with({})).contains("frequency_divisors"));
  EXPECT_EQ(rope(with({factor})).at("frequency_divisors"), thirds);
  EXPECT_EQ(rope(with({old_factor})).at("frequency_divisors"), thirds);
  EXPECT_EQ(rope(with({linear, factor})).at("frequency_divisors"), thirds);
  EXPECT_FALSE(rope(with({none, factor})).contains("frequency_divisors"));
  EXPECT_FALSE(rope(with({{"rope.dimension_count", 4, 8, ""}})).contains("frequency_divisors"));
  const auto refused = [&](const std::vector<Extra>& extras, const std::string& words) {
    try {
      hub_config_of(with(extras));
      ADD_FAILURE() << words;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
    }
  };
  refused({{"rope.dimension_count", 4, 4, ""}}, "qwen2.rope.dimension_count=4: expected 8");
  refused({{"rope.scaling.type", 8, 0, "longrope"}},
          "rope.scaling.type=\"longrope\": expected none, linear or yarn");
  refused({{"rope.scaling.attn_factor", 6, 2, ""}}, "rope.scaling.attn_factor");
  refused({{"rope.scaling.factor", 6, -1, ""}}, "rope.scaling.factor=-1.0: expected more than 0");
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
  expect([](Written& f) { f.header(1, 0).tensor("t", {4}, 4, 0).data(64); },
         "has type 4, expected one of F32, F16");
  expect([](Written& f) { f.header(1, 0).tensor("t", {256}, 16, 0).data(64); }, "has type 16 (IQ2_XXS)");
  expect([](Written& f) { f.header(0, 0, 0x03000000); }, "big-endian (its version is 3");
  expect([](Written& f) { f.header(1, 0).tensor("t", {4}, 0, 32).data(64); }, "begins at 32, expected 0");
  expect([](Written& f) { f.header(2, 0).tensor("t", {4}, 0, 0).tensor("u", {4}, 0, 16).data(64); },
         "begins at 16, expected 32");
  expect([](Written& f) { f.header(2, 0).tensor("t", {4}, 0, 0).tensor("t", {4}, 0, 32).data(64); }, "twice");
  expect([](Written& f) { f.header(1, 0).tensor("", {4}, 0, 0).data(64); }, "without a name");
  expect([](Written& f) { f.header(1, 0).tensor("t", {1 << 20}, 0, 0).data(64); }, "truncated");
}

}  // namespace
}  // namespace switchyard
