// Rows of GPUs that must have run on a card, and what the repository says of them.
#include "kernels/registry/proofs.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <regex>
#include <span>
#include <string>

#include "core/sha256.h"
#include "core/testing.h"
#include "kernels/cuda/planned.h"

namespace switchyard {
namespace {

std::string text_of(const std::string& file) {
  std::ifstream in(std::string(kSourceFolder) + "/" + file);
  EXPECT_TRUE(in) << file;
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(Proofs, AreOfTheSourcesThatRan) {
  int given = 0;
  for (const Proof* const proof : proofs::kAll) {
    Sha256 hash;
    const std::string text = text_of("src/kernels/" + std::string(proof->source));
    hash.add(std::as_bytes(std::span(text)));
    EXPECT_EQ(proof->is_given(), !proof->sha256.empty()) << proof->kernel << " " << proof->row;
    if (!proof->is_given()) continue;
    ++given;
    EXPECT_EQ(hash.hex().substr(0, 16), proof->sha256)
        << proof->source << " changed since it ran on a card (" << proof->card << "): run " << proof->kernel
        << " " << proof->row << " on a card again, or take its proof out of kernels/registry/proofs.h";
  }
  EXPECT_GT(given, 0);
}

// docs/cuda.md has a line `| kernel | row | card |` for each.
TEST(Proofs, AreWhatTheDocumentSays) {
  const std::string page = text_of("docs/cuda.md");
  std::size_t found = 0;
  const std::regex line(R"(\n\| `(\w+)` \| `(cuda_\w+)` \| ([^|]+) \|)");
  for (std::sregex_iterator at(page.begin(), page.end(), line), end; at != end; ++at) ++found;
  for (const Proof* const proof : proofs::kAll) {
    const std::string wanted =
        "\n| `" + std::string(proof->kernel) + "` | `" + std::string(proof->row) + "` | " +
        (proof->is_given() ? std::string(proof->card) : "an emulated card only") + " |";
    EXPECT_NE(page.find(wanted), std::string::npos) << wanted;
  }
  EXPECT_EQ(found, std::size(proofs::kAll));
}

TEST(Proofs, DecideOnACardAlone) {
  constexpr Proof none{"product", "cuda_x", "x.cu"}, given{"product", "cuda_y", "y.cu", "a card", "0"};
  registry::take_unproven_rows(false);
  EXPECT_EQ(registry::unproven(nullptr), nullptr);
  const gpu::PlannedGpu hopper(9);
  EXPECT_STREQ(registry::unproven(&none), "it has run on an emulated card only; gpu_kernels=all takes it");
  EXPECT_EQ(registry::unproven(&given), nullptr);
  EXPECT_EQ(registry::unproven(nullptr), nullptr);
  registry::take_unproven_rows(true);
  EXPECT_EQ(registry::unproven(&none), nullptr);
  registry::take_unproven_rows(false);
}

}  // namespace
}  // namespace switchyard
