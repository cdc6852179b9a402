// A key that nobody reads is passed over in silence: each active key has a reader in src/.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <set>

#include "config/declaration.h"
#include "core/json_file.h"
#include "core/testing.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

// All texts in quotes of the sources that may read keys: not of the tables that declare them, nor of tests.
std::set<std::string> quoted_texts() {
  std::set<std::string> texts;
  for (const fs::directory_entry& entry : fs::recursive_directory_iterator(fs::path(kSourceFolder) / "src")) {
    const std::string name = entry.path().filename().string();
    const bool declares = name.starts_with("keys_") || name.starts_with("not_built");
    if (!entry.is_regular_file() || declares || name.find("_test") != std::string::npos) continue;
    if (entry.path().extension() != ".cc" && entry.path().extension() != ".h") continue;
    const std::string source = read_whole_file(entry.path().string());
    for (std::size_t begin = source.find('"'); begin != std::string::npos; begin = source.find('"', begin)) {
      const std::size_t end = source.find_first_of("\"\n", begin + 1);
      if (end == std::string::npos) break;
      texts.insert(source.substr(begin + 1, end - begin - 1));
      begin = end + 1;
    }
  }
  return texts;
}

// Keys without a reader of their own, and why.
const std::map<std::string, std::string>& explained() {
  static const std::map<std::string, std::string> keys{
      {"attention", "all choices mean one attention"},
      {"context_parallel_strategy", "one choice is built"},
  };
  return keys;
}

TEST(Keys, EachActiveOneHasAReader) {
  const std::set<std::string> texts = quoted_texts();
  ASSERT_GT(texts.size(), 1000u);
  int found = 0;
  for (const KeyDeclaration& key : all_keys()) {
    if (key.status != KeyStatus::active) continue;
    const bool is_axis_size = (key.name.starts_with("ici_") || key.name.starts_with("dcn_")) &&
                              key.name.ends_with("_parallelism");  // read by the names of axes
    const bool is_read = texts.contains(key.name) || is_axis_size;
    found += is_read ? 1 : 0;
    EXPECT_TRUE(is_read || explained().contains(key.name)) << key.name << ": no file of src/ reads it";
  }
  EXPECT_GT(found, 250);
  for (const auto& [name, why] : explained()) {
    const KeyDeclaration* const key = find_key(name);
    ASSERT_TRUE(key != nullptr) << name << " is no key";
    EXPECT_EQ(key->status, KeyStatus::active) << name << ": " << why;
  }
}

}  // namespace
}  // namespace switchyard
