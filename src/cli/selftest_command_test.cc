#include "cli/selftest_command.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <vector>

#include "core/error.h"

namespace switchyard {
namespace {

// Doubles its input; with `wrong` triples it.
template <bool wrong>
std::vector<selftest::Case> doubling_cases(std::uint32_t seed) {
  return {{DType::f32,
           "planted",
           {PoisonedArray::integers(DType::f32, 1, seed, 3)},
           {{"out", PoisonedArray(DType::f32, 1)}},
           [](ThreadPool&, const selftest::Arrays& in, selftest::Arrays& out) {
             out[0].set(0, in[0].at(0) + in[0].at(0) + (wrong ? 1.0f : 0.0f));
           },
           [](const selftest::Arrays& in, selftest::Arrays& out) { out[0].set(0, 2 * in[0].at(0)); }}};
}

constexpr selftest::KernelCases kPlanted[] = {{"right", nullptr, doubling_cases<false>},
                                              {"wrong", nullptr, doubling_cases<true>}};

// Exit status, and what was printed.
std::pair<int, std::string> selftest_of_planted(const std::vector<std::string>& args) {
  testing::internal::CaptureStdout();
  const int status = run_selftest(kPlanted, args);
  return {status, testing::internal::GetCapturedStdout()};
}

TEST(SelftestCommand, EndsWithThreeWhereAKernelDiffers) {
  EXPECT_EQ(selftest_of_planted({"right"}).first, 0);
  const auto [status, text] = selftest_of_planted({});
  EXPECT_EQ(status, 3);
  EXPECT_NE(text.find("planted, 1 thread: out[0] is "), std::string::npos) << text;
  EXPECT_NE(text.find("1 of 2 differ"), std::string::npos) << text;
}

TEST(SelftestCommand, ListsKernelsAndTestsOneByItsName) {
  EXPECT_EQ(selftest_of_planted({"--list"}), std::pair(0, std::string("right\nwrong\n")));
  EXPECT_EQ(selftest_of_planted({"--only", "right"}).first, 0);
  EXPECT_EQ(selftest_of_planted({"--only", "wrong"}).first, 3);
}

TEST(SelftestCommand, WritesJson) {
  const std::string file =
      (std::filesystem::path(testing::TempDir()) / "selftest_command_test.json").string();
  EXPECT_EQ(selftest_of_planted({"seed=3", "threads=2", "--json", file}).first, 3);
  const auto json = nlohmann::json::parse(std::ifstream(file));
  EXPECT_TRUE(json.contains("version") && json.contains("machine"));
  ASSERT_EQ(json["results"].size(), 2u);
  EXPECT_EQ(json["results"][0]["kernel"], "right");
  EXPECT_EQ(json["results"][0]["pass"], true);
  EXPECT_EQ(json["results"][0]["cases"], 1);
  EXPECT_EQ(json["results"][1]["pass"], false);
  EXPECT_EQ(json["results"][1]["max_abs"], 1);
}

TEST(SelftestCommand, WritesTheBitsOfEachCase) {
  const auto lines_of = [](const std::string& kernel) {
    const std::string file =
        (std::filesystem::path(testing::TempDir()) / "selftest_command_test.bits").string();
    selftest_of_planted({kernel, "--bits", file});
    std::ifstream stream(file);
    return std::string(std::istreambuf_iterator<char>(stream), {});
  };
  const std::string right = lines_of("right"), wrong = lines_of("wrong");
  EXPECT_EQ(right.substr(64), " right portable float32 planted\n");
  EXPECT_EQ(wrong.substr(64), " wrong portable float32 planted\n");
  EXPECT_NE(right.substr(0, 64), wrong.substr(0, 64));
  EXPECT_EQ(right, lines_of("right"));
}

TEST(SelftestCommand, RefusesWhatItDoesNotKnow) {
  const auto message = [](const std::vector<std::string>& args) -> std::string {
    try {
      run_selftest(kPlanted, args);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), Error::Kind::usage);
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(message({"left"}), "[selftest] no kernel has left in its name; they are right, wrong");
  EXPECT_EQ(message({"--only", "righ"}), "[selftest] --only righ: no kernel has this name; --list has them");
  EXPECT_EQ(message({"wrong", "--only", "right"}),
            "[selftest] --only right: takes no filter beside it, got wrong");
  EXPECT_NE(message({"thread=2"}).find("unknown key thread"), std::string::npos);
  EXPECT_NE(message({"threads=0"}).find("from 1 to"), std::string::npos);
  EXPECT_NE(message({"seed=x"}).find("seed=x"), std::string::npos);
  EXPECT_NE(message({"--all"}).find("--json FILE"), std::string::npos);
}

}  // namespace
}  // namespace switchyard
