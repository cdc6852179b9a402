#include "config/not_built.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

namespace switchyard {
namespace {

struct BlockNotBuilt {
  std::string_view block, missing;
};

constexpr BlockNotBuilt kBlocks[] = {
    {"deepseek4", "compressed attention, hyper-connections, routing by a hash, sqrtsoftplus scores"},
    {"gemma", "GELU gates, embeddings times the root of their width"},
    {"gemma2", "GELU gates, soft caps of attention's scores, norms after attention and after the MLP"},
    {"gemma3", "GELU gates, norms after attention and after the MLP, a second base of rotations"},
    {"gemma4", "GELU gates, heads of two widths, keys that are values, of 26b experts beside a dense MLP"},
    {"gemma4_small", "GELU gates, an embedding for each layer, layers that share keys and values"},
    {"gpt3", "LayerNorm, learned positions, an MLP without gate"},
    {"olmo3", "norms after attention and after the MLP in place of those before"},
    {"simple", "a product in place of attention, for measurements"},
    {"simple_mlp", "an MLP without attention, for measurements"},
};

struct ModelNotBuilt {
  std::string_view model;
  std::string_view block;         // one of those above, or empty: what is missing
  std::string_view missing = {};  // stands here
};

constexpr std::string_view kWeaver =
    "a mixture of transformers, whose second half makes images, beside the one for text";
constexpr ModelNotBuilt kModels[] = {
    {"deepseek4-284b", "deepseek4"},
    {"deepseek4-tiny", "deepseek4"},
    {"gemma-2b", "gemma"},
    {"gemma-7b", "gemma"},
    {"gemma2-2b", "gemma2"},
    {"gemma2-9b", "gemma2"},
    {"gemma2-27b", "gemma2"},
    {"gemma3-4b", "gemma3"},
    {"gemma3-12b", "gemma3"},
    {"gemma3-27b", "gemma3"},
    {"gemma4-26b", "gemma4"},
    {"gemma4-31b", "gemma4"},
    {"gemma4-e2b", "gemma4_small"},
    {"gemma4-e4b", "gemma4_small"},
    {"gpt3-52k", "gpt3"},
    {"gpt3-6b", "gpt3"},
    {"gpt3-22b", "gpt3"},
    {"gpt3-175b", "gpt3"},
    {"olmo3-7b", "olmo3"},
    {"olmo3-7b-pt", "olmo3"},
    {"olmo3-32b", "olmo3"},
    {"weaver-mini", "", kWeaver},
    {"weaver-max", "", kWeaver},
};

}  // namespace

constinit const std::string_view kNoFp8Training =
    "training with weights in fp8 is planned, not built yet: use the model without -fp8; generate and serve "
    "read folders of fp8 weights";

std::vector<std::string> blocks_not_built() {
  std::vector<std::string> names;
  for (const BlockNotBuilt& block : kBlocks) names.emplace_back(block.block);
  return names;
}

std::string_view missing_in_block(std::string_view block) {
  const auto* const found = std::ranges::find(kBlocks, block, &BlockNotBuilt::block);
  return found == std::end(kBlocks) ? std::string_view() : found->missing;
}

std::string reason_not_built(std::string_view model) {
  if (model.starts_with("qwen3.5-") && model.ends_with("-fp8")) return std::string(kNoFp8Training);
  const auto* const found = std::ranges::find(kModels, model, &ModelNotBuilt::model);
  if (found == std::end(kModels)) return {};
  if (found->block.empty()) return fmt::format("planned, not built yet ({})", found->missing);
  return fmt::format("decoder_block={} is planned, not built yet ({})", found->block,
                     missing_in_block(found->block));
}

}  // namespace switchyard
