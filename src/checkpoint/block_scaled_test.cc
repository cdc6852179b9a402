// 8-bit weights with scales, and the transpose, against plain loops.
#include "checkpoint/block_scaled.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>

#include "checkpoint/transpose.h"
#include "core/error.h"
#include "core/half.h"
#include "kernels/packed/packed_weights.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

struct Stored {
  std::string name, dtype;
  Shape shape;
  std::string bytes;
};

class ScaledFolder : public ::testing::Test {
 protected:
  ScaledFolder() {
    std::string pattern = (fs::temp_directory_path() / "switchyard_scaled_XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~ScaledFolder() override { fs::remove_all(path_); }

  // A file of these tensors, whatever their types.
  WeightFolder folder(const std::vector<Stored>& tensors) {
    nlohmann::ordered_json header;
    std::string data;
    for (const Stored& t : tensors) {
      header[t.name] = {{"dtype", t.dtype},
                        {"shape", t.shape},
                        {"data_offsets", {data.size(), data.size() + t.bytes.size()}}};
      data += t.bytes;
    }
    const std::string text = header.dump();
    std::string length(8, '\0');
    for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<char>(text.size() >> (8 * i));
    std::ofstream(path_ + "/model.safetensors", std::ios::binary) << length << text << data;
    return WeightFolder::open(path_);
  }

  static std::string scales_of(const std::vector<float>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
  }

  std::string path_;
};

// E4M3 as its definition reads.
double e4m3(unsigned bits) {
  const unsigned exponent = (bits >> 3) & 15, mantissa = bits & 7;
  const double sign = (bits & 128) != 0 ? -1 : 1;
  if (exponent == 15 && mantissa == 7) return std::nan("");
  return exponent == 0 ? sign * mantissa / 512.0
                       : sign * (1 + mantissa / 8.0) * std::pow(2.0, static_cast<int>(exponent) - 7);
}

TEST_F(ScaledFolder, EveryWeightTimesItsBlocksScale) {
  const std::int64_t rows = 130, columns = 259;  // 2 x 3 blocks, none of them but the first whole
  std::string bytes;
  for (std::int64_t i = 0; i < rows * columns; ++i) bytes += static_cast<char>((i * 31 + i / 251) & 255);
  const std::vector<float> scales{1, 0.5f, 3e-4f, 2, 1e-3f, 7};
  const WeightFolder weights = folder({{"odd", "U8", {1}, "x"},  // what follows is not aligned
                                       {"w", "F8_E4M3", {rows, columns}, bytes},
                                       {"w_scale_inv", "F32", {2, 3}, scales_of(scales)}});
  EXPECT_EQ(weights.names(), (std::vector<std::string>{"odd", "w"}));
  EXPECT_EQ(weights.dtype("w"), "BF16");
  EXPECT_TRUE(weights.is_quantized("w"));
  EXPECT_FALSE(weights.is_quantized("odd"));
  const Tensor whole = weights.read("w"), part = weights.take_rows("w", 127, 130),
               exact = weights.take_values("w", 0, rows), exact_part = weights.take_values("w", 127, 130);
  ASSERT_EQ(exact.dtype(), DType::f32);
  ASSERT_EQ(exact.shape(), whole.shape());
  EXPECT_EQ(std::memcmp(exact_part.raw(), exact.raw() + 127 * columns * 4, exact_part.bytes()), 0);
  ASSERT_EQ(whole.shape(), (Shape{rows, columns}));
  ASSERT_EQ(part.shape(), (Shape{3, columns}));
  EXPECT_EQ(std::memcmp(part.raw(), whole.raw() + 127 * columns * 2, part.bytes()), 0);
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) {
      const float got = static_cast<float>(whole.data<bfloat16>()[r * columns + c]);
      const auto value = static_cast<float>(
          e4m3(static_cast<unsigned char>(bytes[static_cast<std::size_t>(r * columns + c)])));
      const float scale = scales[static_cast<std::size_t>(r / 128 * 3 + c / 128)];
      const auto want = static_cast<float>(bfloat16(value * scale));
      const float product = exact.data<float>()[r * columns + c];
      ASSERT_TRUE(product == value * scale || (std::isnan(product) && std::isnan(value))) << r << " " << c;
      ASSERT_TRUE(got == want || (std::isnan(got) && std::isnan(want)))
          << r << " " << c << ": " << got << " " << want;
    }
  }
}

// Whole blocks stay as they are; their values are the float32 products.
TEST_F(ScaledFolder, WholeBlocksKeepTheirBits) {
  const std::int64_t rows = 144, columns = 256;  // a row of blocks of scales ends in part of one
  std::string bytes;
  for (std::int64_t i = 0; i < rows * columns; ++i) {
    const auto bits = (i * 31 + i / 251) & 255;
    bytes += static_cast<char>((bits & 127) == 127 ? bits - 1 : bits);
  }
  const std::vector<float> scales{1.1f, 0.5f, 3e-4f, -2};
  const Stored whole{"w", "F8_E4M3", {rows, columns}, bytes},
      of_whole{"w_scale_inv", "F32", {2, 2}, scales_of(scales)};
  const WeightFolder weights = folder({{"odd", "U8", {1}, "x"},
                                       whole,
                                       of_whole,
                                       {"part", "F8_E4M3", {16, 120}, std::string(16 * 120, '\1')},
                                       {"part_scale_inv", "F32", {1, 1}, scales_of({1})}});
  EXPECT_EQ(weights.packed_dtype("part"), std::nullopt);
  EXPECT_EQ(weights.packed_dtype("odd"), std::nullopt);
  ASSERT_EQ(weights.packed_dtype("w"), DType::packed_fp8);
  const Tensor blocks = weights.take_blocks("w"), values(DType::f32, {columns, rows});
  ASSERT_EQ(blocks.shape(), (Shape{columns / 128, rows / 16}));
  ThreadPool pool(1);
  unpack_weights(pool, {blocks.view(), values.view()});
  int differ = 0;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c) {
      const auto value = static_cast<float>(
          e4m3(static_cast<unsigned char>(bytes[static_cast<std::size_t>(r * columns + c)])));
      const float scale = scales[static_cast<std::size_t>(r / 128 * 2 + c / 128)];
      differ += values.data<float>()[c * rows + r] != value * scale ? 1 : 0;
    }
  }
  EXPECT_EQ(differ, 0);
  std::string with_nan = bytes;
  with_nan[100] = '\xff';
  const WeightFolder broken = folder({{"w", "F8_E4M3", {rows, columns}, with_nan}, of_whole});
  EXPECT_THROW(broken.take_blocks("w"), Error);
}

// Scales of every type that files have, of values that all of them hold.
TEST_F(ScaledFolder, ScalesMayBeHalves) {
  const std::int64_t rows = 144, columns = 256;
  std::string bytes;
  for (std::int64_t i = 0; i < rows * columns; ++i) bytes += static_cast<char>(i * 31 % 127);
  const std::vector<float> scales{1.25f, 0.5f, 0x1p-9f, -2};
  std::string halves, brains;
  for (const float scale : scales) {
    const std::uint16_t half = float_to_half(scale),
                        brain = static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(scale) >> 16);
    halves.append(reinterpret_cast<const char*>(&half), 2);
    brains.append(reinterpret_cast<const char*>(&brain), 2);
  }
  const Stored weight{"w", "F8_E4M3", {rows, columns}, bytes};
  std::vector<Tensor> values, blocks;
  for (const Stored& scale :
       {Stored{"w_scale_inv", "F32", {2, 2}, scales_of(scales)}, Stored{"w_scale_inv", "F16", {2, 2}, halves},
        Stored{"w_scale_inv", "BF16", {2, 2}, brains}}) {
    const WeightFolder weights = folder({{"odd", "U8", {1}, "x"}, weight, scale});
    values.push_back(weights.take_values("w", 5, rows));
    blocks.push_back(weights.take_blocks("w"));
  }
  for (std::size_t i = 1; i < 3; ++i) {
    EXPECT_EQ(std::memcmp(values[i].raw(), values[0].raw(), values[0].bytes()), 0) << i;
    EXPECT_EQ(std::memcmp(blocks[i].raw(), blocks[0].raw(), blocks[0].bytes()), 0) << i;
  }
}

// Exponents of powers of two, in a type of their own or as bytes. 0 is the smallest, 255 is no number.
TEST_F(ScaledFolder, ScalesMayBeExponents) {
  const std::int64_t rows = 144, columns = 256;
  const std::string bytes(rows * columns, '\x3c');  // 1.5
  const std::string exponents{'\x7f', '\x81', '\x00', '\x70'};
  const float values[] = {1.5f, 6, 1.5f * 0x1p-127f, 1.5f * 0x1p-15f};
  const Stored weight{"w", "F8_E4M3", {rows, columns}, bytes};
  for (const char* type : {"F8_E8M0", "U8"}) {
    const WeightFolder weights = folder({weight, {"w_scale_inv", type, {2, 2}, exponents}});
    const Tensor all = weights.take_values("w", 0, rows);
    for (std::int64_t r : {0, 143}) {
      for (std::int64_t c : {0, 255})
        EXPECT_EQ(all.data<float>()[r * columns + c], values[r / 128 * 2 + c / 128]) << r << " " << c;
    }
    EXPECT_EQ(weights.packed_dtype("w"), DType::packed_fp8);
    const WeightFolder broken =
        folder({weight, {"w_scale_inv", type, {2, 2}, std::string{'\x7f', '\x7f', '\xff', '\x7f'}}});
    try {
      broken.take_values("w", 0, rows);
      ADD_FAILURE();
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("the scale of block [1,0] is no finite number"),
                std::string::npos);
    }
  }
}

std::string words_of(const std::function<void()>& action) {
  try {
    action();
    return "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::usage);
    return error.what();
  }
}

TEST_F(ScaledFolder, InfiniteScalesAreNamed) {
  const std::vector<float> scales{1, 1, 1, INFINITY};
  const WeightFolder weights = folder({{"w", "F8_E4M3", {144, 256}, std::string(144 * 256, '\1')},
                                       {"w_scale_inv", "F32", {2, 2}, scales_of(scales)}});
  const std::string words = "\"w_scale_inv\": the scale of block [1,1] is no finite number";
  EXPECT_NE(words_of([&] { weights.read("w"); }).find(words), std::string::npos);
  EXPECT_NE(words_of([&] { weights.take_values("w", 128, 144); }).find(words), std::string::npos);
  EXPECT_NE(words_of([&] { weights.take_blocks("w"); }).find(words), std::string::npos);
  EXPECT_EQ(words_of([&] { weights.take_values("w", 0, 128); }), "accepted");
}

TEST_F(ScaledFolder, Mxfp4ExponentsOf255AreNamed) {
  std::string scales(2 * 16 * 1, '\x7f');
  scales[20] = '\xff';
  const WeightFolder weights = folder({{"e_blocks", "U8", {2, 16, 1, 16}, std::string(2 * 16 * 16, '\x12')},
                                       {"e_scales", "U8", {2, 16, 1}, scales}});
  const std::string words = "\"e\": the scale of block 20 has the exponent 255";
  EXPECT_NE(words_of([&] { weights.read("e"); }).find(words), std::string::npos);
  EXPECT_NE(words_of([&] { weights.take_rows("e", 1, 2); }).find(words), std::string::npos);
  EXPECT_NE(words_of([&] { weights.take_stack_blocks("e", {1, 0, 1, 16}); }).find(words), std::string::npos);
  EXPECT_EQ(words_of([&] { weights.take_rows("e", 0, 1); }), "accepted");
}

// 4-bit weights of GPTQ: [out, in] of groups of 64 inputs.
class GptqFolder : public ScaledFolder {
 protected:
  static constexpr std::int64_t kOut = 32, kIn = 128, kGroup = 64;

  template <typename T>
  static std::string bytes_of(const std::vector<T>& values) {
    return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
  }
  static int number(std::int64_t out, std::int64_t in) {
    return static_cast<int>((out * 7 + in * 5 + in / 9) % 16);
  }
  static float scale(std::int64_t out, std::int64_t in) {
    return 0.25f + static_cast<float>(out) / 64 + static_cast<float>(in / kGroup) / 8;
  }

  std::vector<Stored> tensors(std::uint32_t zeros = 0x77777777u, int moved_input = 0) const {
    std::vector<std::uint32_t> words(static_cast<std::size_t>(kIn / 8 * kOut));
    std::vector<std::uint16_t> scales(static_cast<std::size_t>(kIn / kGroup * kOut));
    std::vector<std::int32_t> groups;
    for (std::int64_t in = 0; in < kIn; ++in) {
      for (std::int64_t out = 0; out < kOut; ++out) {
        words[static_cast<std::size_t>(in / 8 * kOut + out)] |= static_cast<std::uint32_t>(number(out, in))
                                                                << 4 * (in % 8);
        scales[static_cast<std::size_t>(in / kGroup * kOut + out)] = float_to_half(scale(out, in));
      }
      groups.push_back(static_cast<std::int32_t>((in + moved_input) / kGroup));
    }
    const std::vector<std::uint32_t> qzeros(static_cast<std::size_t>(kIn / kGroup * kOut / 8), zeros);
    return {{"m.qweight", "I32", {kIn / 8, kOut}, bytes_of(words)},
            {"m.scales", "F16", {kIn / kGroup, kOut}, bytes_of(scales)},
            {"m.qzeros", "I32", {kIn / kGroup, kOut / 8}, bytes_of(qzeros)},
            {"m.g_idx", "I32", {kIn}, bytes_of(groups)}};
  }
  std::string problem(const std::vector<Stored>& stored) {
    try {
      folder(stored);
      return {};
    } catch (const Error& error) {
      return error.what();
    }
  }
};

TEST_F(GptqFolder, WeightsAreScaleTimesNumber) {
  const WeightFolder weights = folder(tensors());
  EXPECT_EQ(weights.names(), std::vector<std::string>{"m.weight"});
  EXPECT_EQ(weights.shape("m.weight"), (Shape{kOut, kIn}));
  EXPECT_EQ(weights.dtype("m.weight"), "F32");
  ASSERT_EQ(weights.packed_dtype("m.weight"), DType::packed_int4);
  const Tensor rows = weights.read("m.weight"), some = weights.take_rows("m.weight", 5, 9),
               blocks = weights.take_blocks("m.weight"), values(DType::f32, {kIn, kOut});
  ThreadPool pool(1);
  unpack_weights(pool, {blocks.view(), values.view()});
  int differ = 0;
  for (std::int64_t out = 0; out < kOut; ++out) {
    for (std::int64_t in = 0; in < kIn; ++in) {
      const float want = scale(out, in) * static_cast<float>(number(out, in) - 8);
      differ += rows.data<float>()[out * kIn + in] != want ? 1 : 0;
      differ += values.data<float>()[in * kOut + out] != want ? 1 : 0;
      if (out >= 5 && out < 9) differ += some.data<float>()[(out - 5) * kIn + in] != want ? 1 : 0;
    }
  }
  EXPECT_EQ(differ, 0);
}

TEST_F(GptqFolder, WhatIsNotReadIsNamed) {
  EXPECT_EQ(problem(tensors()), "");
  EXPECT_NE(problem(tensors(0x77767777u)).find("asymmetric"), std::string::npos);
  EXPECT_NE(problem(tensors(0x88888888u)).find("asymmetric"), std::string::npos);
  EXPECT_NE(problem(tensors(0x77777777u, 1)).find("g_idx has group 2 of input 127"), std::string::npos);
  auto without = tensors();
  without.pop_back();
  EXPECT_EQ(problem(without), "") << "groups in order need no g_idx";
  without.pop_back();
  EXPECT_NE(problem(without).find("m.qzeros"), std::string::npos);
  std::ofstream(path_ + "/config.json") << R"({"quantization_config": {"checkpoint_format": "gptq_v2"}})";
  EXPECT_EQ(problem(tensors(0x88888888u)), "");
}

TEST_F(GptqFolder, InfiniteScalesAreNamed) {
  auto stored = tensors();
  const std::uint16_t infinite = 0x7c00;
  std::memcpy(stored[1].bytes.data() + 2 * (kOut + 7), &infinite, sizeof infinite);
  const WeightFolder weights = folder(stored);
  const std::string words = "\"m.weight\": the scale of group 1 of output 7 is no finite number";
  EXPECT_NE(words_of([&] { weights.read("m.weight"); }).find(words), std::string::npos);
  EXPECT_NE(words_of([&] { weights.take_values("m.weight", 7, 8); }).find(words), std::string::npos);
  EXPECT_NE(words_of([&] { weights.take_blocks("m.weight"); }).find(words), std::string::npos);
  EXPECT_EQ(words_of([&] { weights.take_values("m.weight", 8, 9); }), "accepted");
}

// As GPTQModel writes them. Blocks have float16 scales, so there are some only where these hold all of them.
TEST_F(GptqFolder, ScalesMayBeOfBfloat16) {
  const auto with_scales = [&](float factor) {
    std::vector<Stored> stored = tensors();
    std::vector<std::uint16_t> brains;
    for (std::int64_t i = 0; i < kIn / kGroup * kOut; ++i) {
      const float scale = factor * (1 + static_cast<float>(i % 64) / 64);
      brains.push_back(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(scale) >> 16));
    }
    stored[1] = {"m.scales", "BF16", {kIn / kGroup, kOut}, bytes_of(brains)};
    return stored;
  };
  for (const float factor : {0.25f, 0x1p-20f}) {
    const WeightFolder weights = folder(with_scales(factor));
    const Tensor rows = weights.read("m.weight");
    int differ = 0;
    for (std::int64_t out = 0; out < kOut; ++out) {
      for (std::int64_t in = 0; in < kIn; ++in) {
        const float scale = factor * (1 + static_cast<float>((in / kGroup * kOut + out) % 64) / 64);
        differ +=
            rows.data<float>()[out * kIn + in] != scale * static_cast<float>(number(out, in) - 8) ? 1 : 0;
      }
    }
    EXPECT_EQ(differ, 0) << factor;
    EXPECT_EQ(weights.packed_dtype("m.weight"),
              factor == 0.25f ? std::optional(DType::packed_int4) : std::nullopt);
    if (factor != 0.25f) continue;
    const Tensor blocks = weights.take_blocks("m.weight"), values(DType::f32, {kIn, kOut});
    ThreadPool pool(1);
    unpack_weights(pool, {blocks.view(), values.view()});
    for (std::int64_t out = 0; out < kOut; ++out) {
      for (std::int64_t in = 0; in < kIn; ++in)
        differ += values.data<float>()[in * kOut + out] != rows.data<float>()[out * kIn + in] ? 1 : 0;
    }
    EXPECT_EQ(differ, 0);
  }
}

// Of another method's tensors with GPTQ's names nothing is said in GPTQ's words.
TEST_F(GptqFolder, OtherMethodsAreLeftAsTheyAre) {
  std::ofstream(path_ + "/config.json") << R"({"quantization_config": {"quant_method": "awq"}})";
  auto stored = tensors();
  stored[1].shape = {kOut, kIn / kGroup};
  EXPECT_EQ(problem(stored), "");
  EXPECT_TRUE(folder(stored).contains("m.qweight"));
}

// desc_act: which group an input is of, g_idx says. The numbers are those of the formula; blocks of 32 inputs
// have one scale an output, so there are none but where 32 neighbours are of one group.
TEST_F(GptqFolder, InputsMayBeOfAnyGroup) {
  std::vector<std::int32_t> groups;
  for (std::int64_t in = 0; in < kIn; ++in) groups.push_back(static_cast<std::int32_t>(in / kGroup));
  std::shuffle(groups.begin(), groups.end(), std::mt19937(1));
  auto stored = tensors();
  stored.back().bytes = bytes_of(groups);
  const WeightFolder weights = folder(stored);
  EXPECT_EQ(weights.packed_dtype("m.weight"), std::nullopt);
  const Tensor all = weights.read("m.weight"), some = weights.take_values("m.weight", 5, 9);
  int differ = 0;
  for (std::int64_t out = 0; out < kOut; ++out) {
    for (std::int64_t in = 0; in < kIn; ++in) {
      const std::int64_t group = groups[static_cast<std::size_t>(in)];
      const float want = scale(out, group * kGroup) * static_cast<float>(number(out, in) - 8);
      differ += all.data<float>()[out * kIn + in] != want ? 1 : 0;
      if (out >= 5 && out < 9) differ += some.data<float>()[(out - 5) * kIn + in] != want ? 1 : 0;
    }
  }
  EXPECT_EQ(differ, 0);

  // Groups that have changed places as wholes.
  std::vector<std::int32_t> swapped;
  for (std::int64_t in = 0; in < kIn; ++in) swapped.push_back(static_cast<std::int32_t>(1 - in / kGroup));
  stored.back().bytes = bytes_of(swapped);
  const WeightFolder whole = folder(stored);
  ASSERT_EQ(whole.packed_dtype("m.weight"), DType::packed_int4);
  const Tensor rows = whole.read("m.weight"), blocks = whole.take_blocks("m.weight"),
               values(DType::f32, {kIn, kOut});
  ThreadPool pool(1);
  unpack_weights(pool, {blocks.view(), values.view()});
  for (std::int64_t out = 0; out < kOut; ++out) {
    for (std::int64_t in = 0; in < kIn; ++in)
      differ += values.data<float>()[in * kOut + out] != rows.data<float>()[out * kIn + in] ? 1 : 0;
  }
  EXPECT_EQ(differ, 0);
}

// The layout of compressed-tensors: as GPTQ's turned, without zeros, scales of any group size.
class CompressedFolder : public GptqFolder {
 protected:
  static float group_scale(std::int64_t out, std::int64_t group) {
    return 0.25f + static_cast<float>(out) / 64 + static_cast<float>(group) / 4;
  }
  std::vector<Stored> compressed(std::int64_t group) const {
    std::vector<std::uint32_t> words(static_cast<std::size_t>(kOut * kIn / 8));
    std::vector<std::uint16_t> scales;
    for (std::int64_t out = 0; out < kOut; ++out) {
      for (std::int64_t in = 0; in < kIn; ++in)
        words[static_cast<std::size_t>((out * kIn + in) / 8)] |= static_cast<std::uint32_t>(number(out, in))
                                                                 << 4 * (in % 8);
      for (std::int64_t g = 0; g < kIn / group; ++g)
        scales.push_back(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(group_scale(out, g)) >> 16));
    }
    const std::vector<std::int64_t> shape{kOut, kIn};
    return {{"m.weight_packed", "I32", {kOut, kIn / 8}, bytes_of(words)},
            {"m.weight_scale", "BF16", {kOut, kIn / group}, bytes_of(scales)},
            {"m.weight_shape", "I64", {2}, bytes_of(shape)}};
  }
};

TEST_F(CompressedFolder, WeightsAreScaleTimesNumber) {
  for (const std::int64_t group : {std::int64_t{32}, std::int64_t{64}, kIn}) {
    const WeightFolder weights = folder(compressed(group));
    EXPECT_EQ(weights.names(), std::vector<std::string>{"m.weight"});
    EXPECT_EQ(weights.shape("m.weight"), (Shape{kOut, kIn}));
    EXPECT_TRUE(weights.is_quantized("m.weight"));
    ASSERT_EQ(weights.packed_dtype("m.weight"), DType::packed_int4);
    const Tensor rows = weights.read("m.weight"), blocks = weights.take_blocks("m.weight"),
                 values(DType::f32, {kIn, kOut});
    ThreadPool pool(1);
    unpack_weights(pool, {blocks.view(), values.view()});
    int differ = 0;
    for (std::int64_t out = 0; out < kOut; ++out) {
      for (std::int64_t in = 0; in < kIn; ++in) {
        const float want = group_scale(out, in / group) * static_cast<float>(number(out, in) - 8);
        differ += rows.data<float>()[out * kIn + in] != want ? 1 : 0;
        differ += values.data<float>()[in * kOut + out] != want ? 1 : 0;
      }
    }
    EXPECT_EQ(differ, 0) << group;
  }
}

TEST_F(CompressedFolder, WhatIsNotReadIsNamed) {
  EXPECT_EQ(problem(compressed(32)), "");
  auto eight_bits = compressed(32);  // four numbers in a word
  const std::vector<std::int64_t> shape{kOut, kIn / 2};
  eight_bits[2].bytes = bytes_of(shape);
  EXPECT_NE(problem(eight_bits).find("its weight_shape says [32,64]"), std::string::npos);
  auto odd_groups = compressed(32);
  odd_groups[1].shape = {kOut, 3};
  odd_groups[1].bytes.resize(2 * kOut * 3);
  EXPECT_NE(problem(odd_groups).find("its weight_scale is [32,3]"), std::string::npos);
  auto without = compressed(32);
  without.pop_back();
  EXPECT_NE(problem(without).find("m.weight_shape"), std::string::npos);
  auto moved = compressed(64);
  std::vector<std::int32_t> groups(kIn, 0);
  groups.back() = 2;
  moved.push_back({"m.weight_g_idx", "I32", {kIn}, bytes_of(groups)});
  EXPECT_NE(problem(moved).find("g_idx has group 2 of input 127"), std::string::npos);
  auto infinite = compressed(64);
  const std::uint16_t bits = 0x7f80;
  std::memcpy(infinite[1].bytes.data() + 2 * (2 * 7 + 1), &bits, sizeof bits);
  const WeightFolder weights = folder(infinite);
  EXPECT_NE(words_of([&] { weights.read("m.weight"); }).find("the scale of group 1 of output 7"),
            std::string::npos);
}

TEST_F(ScaledFolder, ScalesOfAnotherShapeAreRefused) {
  const auto problem = [&](const std::vector<Stored>& tensors) {
    try {
      folder(tensors);
      return std::string();
    } catch (const Error& error) {
      return std::string(error.what());
    }
  };
  const Stored weight{"w", "F8_E4M3", {2, 200}, std::string(400, '\1')};
  EXPECT_EQ(problem({weight, {"w_scale_inv", "F32", {1, 2}, scales_of({1, 1})}}), "");
  for (const Stored& scale :
       {Stored{"w_scale_inv", "F32", {1, 1}, scales_of({1})},
        Stored{"w_scale_inv", "F32", {2}, scales_of({1, 1})}, Stored{"w_scale_inv", "I16", {1, 2}, "abcd"}})
    EXPECT_NE(problem({weight, scale}).find("\"w_scale_inv\""), std::string::npos)
        << problem({weight, scale});
  // Without scales it is 8-bit still, and a name that only ends alike is a tensor.
  EXPECT_EQ(folder({weight}).dtype("w"), "F8_E4M3");
  EXPECT_EQ(folder({{"a_scale_inv", "F32", {1}, scales_of({1})}}).names(),
            std::vector<std::string>{"a_scale_inv"});
}

template <typename T>
void expect_transposed(std::int64_t rows, std::int64_t columns, std::int64_t stride) {
  std::vector<T> from(static_cast<std::size_t>(rows * columns));
  for (std::size_t i = 0; i < from.size(); ++i) from[i] = static_cast<T>(i * 2654435761u);
  std::vector<T> to(static_cast<std::size_t>(columns * stride), T{7}), want = to;
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t c = 0; c < columns; ++c)
      want[static_cast<std::size_t>(c * stride + r)] = from[static_cast<std::size_t>(r * columns + c)];
  }
  transpose(sizeof(T), reinterpret_cast<const std::byte*>(from.data()), rows, columns,
            reinterpret_cast<std::byte*>(to.data()), stride);
  EXPECT_EQ(to, want) << rows << " x " << columns;
}

TEST(Transpose, MovesEveryElement) {
  for (const auto& [rows, columns] : std::vector<std::pair<std::int64_t, std::int64_t>>{{0, 3},
                                                                                        {3, 0},
                                                                                        {1, 1},
                                                                                        {1, 70},
                                                                                        {70, 1},
                                                                                        {64, 64},
                                                                                        {63, 65},
                                                                                        {128, 64},
                                                                                        {65, 130},
                                                                                        {600, 530},
                                                                                        {513, 512}}) {
    for (const std::int64_t more : {0, 5}) {
      expect_transposed<std::uint16_t>(rows, columns, rows + more);
      expect_transposed<std::uint32_t>(rows, columns, rows + more);
    }
  }
}

}  // namespace
}  // namespace switchyard
