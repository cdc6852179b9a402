// The reader against valid files, and against files that break one rule each.
#include "checkpoint/safetensors.h"

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "core/json_file.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (fs::temp_directory_path() / "switchyard_checkpoint_XXXXXX").string();
    path_ = ::mkdtemp(pattern.data());
  }
  ~TemporaryFolder() { fs::remove_all(path_); }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }
  std::string path() const { return path_.string(); }

 private:
  fs::path path_;
};

std::string file_of(const std::string& header, std::size_t data_bytes) {
  std::string bytes(8, '\0');
  for (std::size_t i = 0; i < 8; ++i) bytes[i] = static_cast<char>(header.size() >> (8 * i));
  return bytes + header + std::string(data_bytes, '\1');
}

SafetensorsFile parse(const std::string& bytes) {
  return SafetensorsFile::parse(std::as_bytes(std::span(bytes.data(), bytes.size())), "test");
}

// Requires an Error(usage) of one line that names the file and contains `rule`.
template <typename Action>
void expect_error(Action action, const std::string& rule) {
  try {
    action();
    ADD_FAILURE() << "accepted, expected an error with: " << rule;
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), Error::Kind::usage);
    EXPECT_NE(std::string(e.what()).find(rule), std::string::npos) << e.what();
    EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos) << e.what();
  }
}

void expect_broken(const std::string& bytes, const std::string& rule) {
  expect_error([&] { parse(bytes); }, rule);
}

std::string tensor(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return R"({"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

TEST(Safetensors, RoundTrip) {
  TemporaryFolder folder;
  const std::string path = folder / "a.safetensors";
  const std::vector<float> f = {1.5f, -2, 3};
  const std::vector<std::int32_t> i = {7, -7};
  const std::vector<std::uint8_t> u = {1, 2, 3, 4, 5};
  const std::vector<bfloat16> b = {bfloat16(1.0f), bfloat16(-0.5f), bfloat16(3.0f)};
  write_safetensors(path,
                    {{"u", Tensor::of<std::uint8_t>({5}, u)},
                     {"f", Tensor::of<float>({3, 1}, f)},
                     {"i", Tensor::of<std::int32_t>({2}, i)},
                     {"b", Tensor::of<bfloat16>({3}, b)},
                     {"empty", Tensor::zeros(DType::f32, {0, 4})},
                     {"scalar", Tensor::of<float>({}, std::vector<float>{9})}},
                    {{"format", "pt"}, {"note", "line\nbreak \"quote\""}});
  EXPECT_FALSE(fs::exists(path + ".partial"));
  const auto file = SafetensorsFile::open(path);
  EXPECT_EQ(file.metadata().at("note"), "line\nbreak \"quote\"");
  EXPECT_EQ(file.entries().size(), 6u);
  const Tensor read = file.read("f");
  EXPECT_EQ(read.shape(), (Shape{3, 1}));
  EXPECT_EQ(std::vector<float>(read.data<float>(), read.data<float>() + 3), f);
  EXPECT_EQ(file.read("i").data<std::int32_t>()[1], -7);
  EXPECT_EQ(file.read("u").data<std::uint8_t>()[4], 5);
  EXPECT_EQ(file.read("b").data<bfloat16>()[1].bits, b[1].bits);
  EXPECT_EQ(file.read("empty").shape(), (Shape{0, 4}));
  EXPECT_EQ(file.read("scalar").data<float>()[0], 9);
  expect_error([&] { file.read("nothing"); }, "no tensor \"nothing\"");
}

TEST(Safetensors, ConvertsOtherTypes) {
  std::string bytes = file_of(
      "{\"h\":" + tensor("F16", "[4]", "[0,8]") + ",\"d\":" + tensor("F64", "[1]", "[8,16]") +
          ",\"l\":" + tensor("I64", "[1]", "[16,24]") + ",\"w\":" + tensor("U32", "[1]", "[24,28]") +
          ",\"s\":" + tensor("U16", "[1]", "[28,30]") + ",\"q\":" + tensor("I8", "[1]", "[30,31]") + "}",
      31);
  const std::uint16_t halves[4] = {0x3c00, 0xc000, 0x0001, 0x7c00};
  const double d = 0.25;
  const std::int64_t l = -5;
  const std::uint32_t w = 3'000'000'000u;
  std::byte* data = reinterpret_cast<std::byte*>(bytes.data()) + bytes.size() - 31;
  std::memcpy(data, halves, 8);
  std::memcpy(data + 8, &d, 8);
  std::memcpy(data + 16, &l, 8);
  std::memcpy(data + 24, &w, 4);
  const auto file = parse(bytes);
  const Tensor h = file.read("h");
  EXPECT_EQ(h.data<float>()[0], 1);
  EXPECT_EQ(h.data<float>()[1], -2);
  EXPECT_EQ(h.data<float>()[2], 0x1p-24f);
  EXPECT_TRUE(std::isinf(h.data<float>()[3]));
  EXPECT_EQ(file.read("d").data<float>()[0], 0.25f);
  EXPECT_EQ(file.read("l").data<std::int32_t>()[0], -5);
  EXPECT_EQ(file.read("s").data<std::int32_t>()[0], 0x0101);
  expect_error([&] { file.read("w"); }, "holds 3000000000, which does not fit");
  expect_error([&] { file.read("q"); }, "is I8");
}

TEST(Safetensors, NamesPointersOfGitLfs) {
  const auto path =
      (std::filesystem::temp_directory_path() / fmt::format("pointer_{}.safetensors", ::getpid())).string();
  std::ofstream(path) << "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n";
  expect_error([&] { SafetensorsFile::open(path); }, "a Git LFS pointer of 63 bytes");
  expect_error([&] { read_whole_file(path); }, "a Git LFS pointer of 63 bytes");
  std::filesystem::remove(path);
}

TEST(Safetensors, RefusesBrokenLengths) {
  expect_broken("", "expected at least 8");
  expect_broken("1234567", "expected at least 8");
  expect_broken(std::string(8, '\xff'), "header of 18446744073709551615 bytes, expected at most 100000000");
  expect_broken(file_of("{}", 0).substr(0, 9), "truncated");
  expect_broken(std::string("\x00\xe1\xf5\x05\x00\x00\x00\x00{}", 10), "truncated");  // exactly 100 MB
  expect_broken(std::string("\x01\xe1\xf5\x05\x00\x00\x00\x00{}", 10), "at most 100000000");
  EXPECT_TRUE(parse(file_of("{}", 0)).entries().empty());
  EXPECT_TRUE(parse(file_of("{}   ", 0)).entries().empty());
  expect_broken(file_of("{}", 3), "3 bytes follow the last tensor");
}

TEST(Safetensors, RefusesBrokenHeaders) {
  expect_broken(file_of("", 0), "does not begin with '{'");
  expect_broken(file_of(" {}", 0), "does not begin with '{'");
  expect_broken(file_of("[]", 0), "does not begin with '{'");
  expect_broken(file_of("{\"a\":", 0), "not valid JSON at byte");
  expect_broken(file_of("{} {}", 0), "not valid JSON at byte");
  expect_broken(file_of(std::string("{}\0", 3), 0),
                "not valid JSON at byte 2");  // to the parser a NUL is the end
  expect_broken(file_of("\n{}", 0), "does not begin with '{'");
  expect_broken(file_of("{\"__metadata__\":null}", 0), "is null, expected an object");
  expect_broken(file_of("{\"a\":[\"F32\",[1],[0,4]]}", 4), "is an array, expected an object");
  expect_broken(file_of("{\"\xff\":1}", 0), "not valid JSON");
  expect_broken(file_of("{\"a\":1}", 0), "\"a\" is the number 1, expected an object");
  expect_broken(file_of("{\"a\":{}}", 0), "has no dtype");
  expect_broken(file_of("{\"a\":{\"dtype\":\"F32\",\"shape\":[]}}", 0), "has no data_offsets");
  expect_broken(file_of("{\"a\":{\"dtype\":7}}", 0), "expected a string");
  expect_broken(file_of("{\"a\":{\"extra\":7}}", 0), "unknown key \"extra\"");
  expect_broken(file_of("{\"a\":" + std::string(50000, '['), 0), "is an array, expected an object");
  expect_broken(file_of("{\"a\":{\"shape\":" + std::string(50000, '['), 0),
                "is an array, expected whole numbers");
  expect_broken(file_of("{\"__metadata__\":{\"k\":1}}", 0), "expected a string");
  expect_broken(file_of("{\"__metadata__\":[]}", 0), "expected an object");
  const std::string a = tensor("F32", "[1]", "[0,4]");
  expect_broken(file_of("{\"a\":" + a + ",\"a\":" + a + "}", 4), "duplicate key \"a\"");
  expect_broken(file_of("{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\"}}", 4),
                "duplicate key \"dtype\" in \"a\"");
  expect_broken(file_of("{\"__metadata__\":{\"k\":\"1\",\"k\":\"1\"}}", 0), "duplicate key \"k\"");
  expect_broken(file_of("{\"__metadata__\":{},\"__metadata__\":{}}", 0), "duplicate key \"__metadata__\"");
}

TEST(Safetensors, RefusesBrokenTensors) {
  const auto one = [](const std::string& dtype, const std::string& shape, const std::string& offsets,
                      std::size_t bytes) {
    return file_of("{\"a\":" + tensor(dtype, shape, offsets) + "}", bytes);
  };
  expect_broken(one("F31", "[1]", "[0,4]", 4), "unknown dtype \"F31\"");
  expect_broken(one("F4", "[3]", "[0,1]", 1), "does not end at a whole byte");
  EXPECT_EQ(parse(one("F4", "[3,2]", "[0,3]", 3)).entries().size(), 1u);
  EXPECT_EQ(parse(one("F6_E2M3", "[4]", "[0,3]", 3)).entries().size(), 1u);
  EXPECT_EQ(parse(one("F8_E8M0", "[4]", "[0,4]", 4)).entries().size(), 1u);
  expect_broken(one("F32", "[-1]", "[0,4]", 4), "the number -1");
  expect_broken(one("F32", "[1.5]", "[0,4]", 4), "the number 1.5");
  expect_broken(one("F32", "[1e0]", "[0,4]", 4), "the number 1e0");
  expect_broken(one("F32", "[99999999999999999999]", "[0,4]", 4), "the number 99999999999999999999");
  EXPECT_EQ(parse(one("F32", "[1,1,1,1,1,1,1,1]", "[0,4]", 4)).entries().size(), 1u);
  expect_broken(one("F32", "[1,1,1,1,1,1,1,1,1]", "[0,4]", 4), "expected at most 8 dims, got 9");
  expect_broken(one("F32", "[4294967296,4294967296]", "[0,0]", 0), "overflows 64 bits");
  expect_broken(one("F32", "[4611686018427387904]", "[0,0]", 0), "overflows 64 bits");
  expect_broken(one("F32", "[4294967296,4294967296,0]", "[0,0]", 0), "overflows 64 bits");
  expect_broken(one("F32", "[2]", "[0,4]", 4), "takes 8 bytes by its shape");
  expect_broken(one("BF16", "[1]", "[0,4]", 4), "takes 2 bytes by its shape");
  expect_broken(one("F32", "[1]", "[0,4,8]", 4), "more than two numbers");
  expect_broken(one("F32", "[1]", "[4]", 4), "not two numbers");
  expect_broken(one("F32", "[1]", "[4,0]", 4), "not inside");
  expect_broken(one("F32", "[1]", "[0,4]", 3), "not inside the 3 bytes");
  expect_broken(one("F32", "[1]", "[4,8]", 8), "begins at byte 4 of the data, expected 0 (a hole)");
  expect_broken(one("F32", "[1]", "[0,4]", 5), "1 bytes follow");
  expect_broken(one("F32", "[1]", "[18446744073709551612,0]", 4), "not inside");
  const auto two = [](const std::string& first, const std::string& second, std::size_t bytes) {
    return file_of("{\"a\":" + tensor("U8", "[4]", first) + ",\"b\":" + tensor("U8", "[4]", second) + "}",
                   bytes);
  };
  EXPECT_EQ(parse(two("[4,8]", "[0,4]", 8)).entries().size(), 2u);
  expect_broken(two("[0,4]", "[2,6]", 6), "overlap");
  expect_broken(two("[0,4]", "[0,4]", 4), "overlap");
  expect_broken(two("[0,4]", "[6,10]", 10), "a hole");
}

TEST(Safetensors, RefusesPathsThatAreNoFiles) {
  TemporaryFolder folder;
  expect_error([&] { SafetensorsFile::open(folder / "absent"); }, "cannot be opened: No such file");
  expect_error([&] { SafetensorsFile::open(folder.path()); }, "not a regular file");
  std::ofstream(folder / "empty").close();
  expect_error([&] { SafetensorsFile::open(folder / "empty"); }, "the file is empty");
}

TEST(Safetensors, WriteFailureLeavesNothing) {
  TemporaryFolder folder;
  fs::create_directory(folder / "taken");  // a folder under the final name: the rename fails
  std::ofstream(folder / "taken/file").close();
  EXPECT_THROW(write_safetensors(folder / "taken", {{"a", Tensor::zeros(DType::f32, {1})}}, {}), Error);
  EXPECT_FALSE(fs::exists(folder / "taken.partial"));
  EXPECT_THROW(write_safetensors(folder / "no/such/place", {}, {}), Error);
}

class Shards : public ::testing::Test {
 protected:
  Shards() {
    write_safetensors(folder_ / "one.safetensors", {{"a", Tensor::zeros(DType::f32, {2})}}, {});
    write_safetensors(folder_ / "two.safetensors", {{"b", Tensor::zeros(DType::f32, {3})}}, {});
  }
  void index(const std::string& text) { std::ofstream(folder_ / "model.safetensors.index.json") << text; }
  TemporaryFolder folder_;
};

TEST_F(Shards, ReadThroughTheIndex) {
  index(R"({"metadata":{},"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})");
  const auto weights = WeightFolder::open(folder_.path());
  EXPECT_EQ(weights.names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(weights.shape("b"), Shape{3});
  EXPECT_EQ(weights.read("a").size(), 2);
  expect_error([&] { weights.read("c"); }, "no tensor \"c\"");
  EXPECT_EQ(WeightFolder::open(folder_ / "one.safetensors").names(), std::vector<std::string>{"a"});
}

TEST_F(Shards, ATensorIsFoundInAnotherFile) {
  index(R"({"weight_map":{"a":"two.safetensors","b":"one.safetensors"}})");
  EXPECT_EQ(WeightFolder::open(folder_.path()).read("b").size(), 3);
  write_safetensors(folder_ / "two.safetensors",
                    {{"a", Tensor::zeros(DType::f32, {2})}, {"b", Tensor::zeros(DType::f32, {3})}}, {});
  expect_error([&] { WeightFolder::open(folder_.path()); }, "holds tensor \"a\", which");
}

TEST_F(Shards, RefusesAnIndexThatDoesNotFit) {
  const auto open = [&] { WeightFolder::open(folder_.path()); };
  expect_error(open, "expected model.safetensors or model.safetensors.index.json");
  index(R"({"weight_map":{"a":"one.safetensors","c":"two.safetensors"}})");
  expect_error(open, "no tensor \"c\", which the index places there");
  index(R"({"weight_map":{"a":"one.safetensors","b":"one.safetensors"}})");
  expect_error(open, "no tensor \"b\"");
  index(R"({"weight_map":{"a":"three.safetensors"}})");
  expect_error(open, "cannot be opened");
  index(R"({"weight_map":{"a":"../one.safetensors"}})");
  expect_error(open, "expected a file name");
  index(R"({"weight_map":{"a":"one.safetensors","a":"two.safetensors"}})");
  expect_error(open, "duplicate key \"a\"");
  index(R"({"weight_map":7})");
  expect_error(open, "weight_map");
  index("{");
  expect_error(open, "not valid JSON");
  write_safetensors(folder_ / "two.safetensors",
                    {{"b", Tensor::zeros(DType::f32, {3})}, {"extra", Tensor::zeros(DType::f32, {3})}}, {});
  index(R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})");
  expect_error(open, "holds tensor \"extra\", which the index does not place there");
  expect_error([&] { WeightFolder::open(folder_ / "absent"); }, "no such file or folder");
}

}  // namespace
}  // namespace switchyard
