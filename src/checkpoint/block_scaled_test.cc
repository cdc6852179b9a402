// 8-bit weights with scales, and the transpose, against plain loops.
#include "checkpoint/block_scaled.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "checkpoint/transpose.h"
#include "core/error.h"

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
  const Tensor whole = weights.read("w"), part = weights.take_rows("w", 127, 130);
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
      ASSERT_TRUE(got == want || (std::isnan(got) && std::isnan(want)))
          << r << " " << c << ": " << got << " " << want;
    }
  }
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
        Stored{"w_scale_inv", "F32", {2}, scales_of({1, 1})}, Stored{"w_scale_inv", "BF16", {1, 2}, "abcd"}})
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
