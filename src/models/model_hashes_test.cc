// The hash of each published model and the digest of its weights' names and shapes: what a run's checkpoints
// were made with must not change, or they no longer resume.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <xxhash.h>

#include <map>

#include "config/config_file.h"
#include "models/model_config.h"
#include "models/parameters.h"

namespace switchyard {
namespace {

std::string digest_of(const std::vector<ParameterSpec>& specs) {
  std::string text;
  for (const ParameterSpec& spec : specs)
    text += fmt::format("{} [{}] [{}] {} {} {:.9g}\n", spec.name, fmt::join(spec.shape, ","),
                        fmt::join(spec.dims, ","), name_of(spec.dtype), static_cast<int>(spec.initializer),
                        spec.deviation);
  return fmt::format("{:016x}", XXH3_64bits(text.data(), text.size()));
}

// Name, hash of the architecture, digest of the weights.
const std::map<std::string, std::pair<std::string, std::string>> kHashes = {
    {"deepseek2-16b", {"924d8062a418e5b1", "d62671f7b5dc6b17"}},
    {"deepseek2-236b", {"17e18f3523cee815", "072a193d3e0dc8cb"}},
    {"deepseek3-671b", {"55e9e29d245c7707", "58e3657aff98b82b"}},
    {"deepseek3-671b-2dfsdp", {"55e9e29d245c7707", "58e3657aff98b82b"}},
    {"deepseek3-671b-batchsplit", {"f10b0050322fa34c", "58e3657aff98b82b"}},
    {"deepseek3-test", {"8eb633c43009708a", "ee69afc9d9986443"}},
    {"deepseek3-tiny", {"597478af204011a8", "d2403f8ba4fc1aa1"}},
    {"deepseek3.2-671b", {"fc0e3f7fea3ff24f", "3cc70265c710f07c"}},
    {"envy-switch-base", {"95989b6dba407c2d", "2cba328adfe88f2b"}},
    {"envy-switch-large", {"dcd22e75fbdbaba7", "1e0ac0773f8ca8ca"}},
    {"envy-switch-xxl", {"708f39c21ae5452d", "ae2f317acfb1b34f"}},
    {"envy-test", {"23d5665ecea05e1f", "c823db3e139b5ad9"}},
    {"ernie-4.5-21b-a3b", {"044ef987eeb870e8", "e04fcd0ee66e23c3"}},
    {"glm-4.5-355b", {"8e23b1f28855af94", "cd91e879201b9a97"}},
    {"glm-4.5-air-106b", {"838f56facc5390fc", "888a534b6c47d09c"}},
    {"glm-4.7-flash-30b", {"fb03f75abee7f8c5", "182f7f72b5acc5c1"}},
    {"glm-5-744b", {"082a100d6cfd8671", "b9b68645ba3af555"}},
    {"gpt-oss-120b", {"631a9cbea85418e2", "063320f151bdf279"}},
    {"gpt-oss-20b", {"4ada3fbd12ee712a", "1ad6d83e2fe958d1"}},
    {"hy3-295b", {"6ab840790b84f2e4", "71d9d0998f607a11"}},
    {"kimi-k2-1t", {"9920bdd57c04013d", "90e8149689a84b05"}},
    {"llama2-13b", {"61ed7ff21bcb919a", "bcc945b84c08e3ad"}},
    {"llama2-70b", {"13e5ffa0e7c15389", "89781432406f569e"}},
    {"llama2-7b", {"1136b9601ffdcc37", "e0f6b383cf57faff"}},
    {"llama3-405b", {"0aed5cdf5a9174bb", "dd4ec5f02b97906a"}},
    {"llama3-70b", {"cfccd9896b74e16f", "4a3ef97649caa505"}},
    {"llama3-8b", {"ba91161677c82208", "8fbd210a748f9996"}},
    {"llama3.1-405b", {"c364984a34947eb6", "dd4ec5f02b97906a"}},
    {"llama3.1-70b", {"1cb29e14091a720b", "4a3ef97649caa505"}},
    {"llama3.1-8b", {"b9ed12899d27496b", "8fbd210a748f9996"}},
    {"llama3.3-70b", {"cfccd9896b74e16f", "4a3ef97649caa505"}},
    {"llama4-17b-128e", {"3672cc3ab589d736", "598edc454e874188"}},
    {"llama4-17b-16e", {"237e9928947c38af", "2439c36ed7ab77c1"}},
    {"mimo-v2-flash-309b", {"e26895db297d2512", "5448aec756d94e43"}},
    {"minimax-m2-230b", {"6ec5660c992d66df", "870456cab2b81552"}},
    {"mistral-7b", {"e9de74099a2a98d6", "a1d92209c8a94498"}},
    {"mistral-small-4-119b", {"f805e2768c8577b7", "3510ebc37548fbaf"}},
    {"mixtral-8x22b", {"d7a81fe849c44433", "af0090dae0c656be"}},
    {"mixtral-8x7b", {"79333964242be97c", "affb9f65886d7bc6"}},
    {"olmoe-1b-7b", {"48d3d2e8144757cd", "168829da85a03428"}},
    {"qwen2.5-1.5b", {"8cfcfee0ba1d8e40", "72405c3533fe33e8"}},
    {"qwen2.5-14b", {"dfcb71f5558f250d", "9aafb7650c905777"}},
    {"qwen2.5-7b", {"30b117fcd09931b5", "95998084e09d1210"}},
    {"qwen3-0.6b", {"278bc5ea0a84fd4b", "b51b4e3e4779edec"}},
    {"qwen3-1.7b", {"2eb7f21696a756f0", "2fffbe813a276bbf"}},
    {"qwen3-1.7b-base", {"2eb7f21696a756f0", "2fffbe813a276bbf"}},
    {"qwen3-14b", {"5fa293e2c7273432", "00544c793a5c5023"}},
    {"qwen3-14b-base", {"5fa293e2c7273432", "00544c793a5c5023"}},
    {"qwen3-235b-a22b", {"b16563f4c60eb434", "54f96c31a8eb74e6"}},
    {"qwen3-30b-a3b", {"834daa78d54e7657", "5a65a20215045a5d"}},
    {"qwen3-30b-a3b-base", {"fbf98c6c7227005a", "5a65a20215045a5d"}},
    {"qwen3-32b", {"f931e8bd78047765", "c605d43c5f8903b1"}},
    {"qwen3-480b-a35b", {"68a9f8b4cad1cb26", "47931e73b63bbab0"}},
    {"qwen3-4b", {"63b12512f10ca0e3", "d1b32e312ed57d45"}},
    {"qwen3-4b-base", {"63b12512f10ca0e3", "d1b32e312ed57d45"}},
    {"qwen3-4b-thinking-2507", {"9fab917399c5b7f8", "d1b32e312ed57d45"}},
    {"qwen3-8b", {"0e967675cc62b6fe", "cae61a53c64cfd71"}},
    {"qwen3-8b-base", {"0e967675cc62b6fe", "cae61a53c64cfd71"}},
    {"qwen3-custom-30b-a3b", {"96b2827e1a47f78d", "b30262811ab44f80"}},
    {"qwen3-next-80b-a3b", {"b3229d579c787d2d", "9aba21ac2b1e4f66"}},
    {"qwen3-omni-30b-a3b", {"38d696cc267196d9", "de88a285467e6683"}},
    {"qwen3-vl-2b", {"fd6cade23e97fd04", "2fffbe813a276bbf"}},
    {"qwen3-vl-30b-a3b", {"cfb061f82f5cb351", "5a65a20215045a5d"}},
    {"qwen3-vl-4b", {"9fab917399c5b7f8", "d1b32e312ed57d45"}},
    {"qwen3.5-35b-a3b", {"35278a56e932fc14", "e858b393e30bdd46"}},
    {"qwen3.5-397b-a17b", {"a9a1eb1aa58c744f", "a1e763f948ba7ed6"}},
    {"step-3.7-flash-197b", {"c14f97acb6b11a84", "912eb3fa1e3c60d8"}},
};

TEST(ModelHashes, Stay) {
  std::string missing;
  for (const std::string& name : config_names("models")) {
    if (name == "deepseek-custom") continue;  // not built
    SCOPED_TRACE(name);
    const ModelConfig model = model_config(Config::from_args(std::vector{"model_name=" + name}));
    const auto known = kHashes.find(name);
    const std::string architecture = architecture_hash(model), weights = digest_of(parameter_specs(model));
    if (known == kHashes.end()) {
      missing += fmt::format("    {{\"{}\", {{\"{}\", \"{}\"}}}},\n", name, architecture, weights);
      continue;
    }
    EXPECT_EQ(architecture, known->second.first);
    EXPECT_EQ(weights, known->second.second);
  }
  EXPECT_EQ(missing, "") << "a new model needs a line in the table";
}

}  // namespace
}  // namespace switchyard
