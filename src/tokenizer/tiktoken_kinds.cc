#include "tokenizer/tiktoken_kinds.h"

#include <fmt/format.h>

#include <map>
#include <utility>

#include "core/error.h"
#include "core/json_file.h"
#include "tokenizer/piece_model.h"
#include "tokenizer/split_patterns.h"

namespace switchyard {
namespace {

constexpr std::string_view kR50kSplit = R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view kCl100kSplit = R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|(?>\p{N}{1,3}))"
                         R"(| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s)";

using SpecialTokens = std::vector<ConfigToken>;

constexpr std::int32_t kReserved = 256;  // special tokens of Llama 3's and Kimi's vocabularies

SpecialTokens special_tokens(std::initializer_list<std::pair<std::int32_t, const char*>> named) {
  SpecialTokens made;
  for (const auto& [id, content] : named) made.push_back({.content = content, .id = id});
  return made;
}

SpecialTokens of_qwen(std::int32_t end, std::int32_t ids) {
  SpecialTokens made = special_tokens({{end, "<|endoftext|>"}, {end + 1, "<|im_start|>"}, {end + 2, "<|im_end|>"}});
  for (std::int32_t id = end + 3; id < ids; ++id)
    made.push_back({.content = fmt::format("<|extra_{}|>", id - end - 3), .id = id});
  return made;
}

// The special tokens of Llama 3.1, which has names for some that Llama 3 reserved.
SpecialTokens of_llama3(std::int32_t first) {
  const std::map<std::int32_t, std::string> named{
      {0, "<|begin_of_text|>"},   {1, "<|end_of_text|>"},   {4, "<|finetune_right_pad_id|>"},
      {6, "<|start_header_id|>"}, {7, "<|end_header_id|>"}, {8, "<|eom_id|>"},
      {9, "<|eot_id|>"},          {10, "<|python_tag|>"}};
  SpecialTokens made;
  int reserved = 0;
  for (std::int32_t i = 0; i < kReserved; ++i) {
    const auto name = named.find(i);
    made.push_back({.content = name != named.end() ? name->second
                                                   : fmt::format("<|reserved_special_token_{}|>", reserved++),
                    .id = first + i});
  }
  return made;
}

TiktokenKind kimi(std::int32_t first, const JsonReader& settings) {
  TiktokenKind kind{.pattern = kKimiSplit, .ids = first + kReserved, .found_in_texts = true};
  std::map<std::int32_t, ConfigToken> by_id;
  std::map<std::string, std::int32_t> ids;
  for (std::int32_t id = first; id < first + kReserved; ++id)
    by_id[id] = {.content = fmt::format("<|reserved_token_{}|>", id), .id = id};
  for (const ConfigToken& token : tokens_of_config(settings)) {
    if (!token.id) continue;
    if (*token.id < first)
      settings.fail(fmt::format("\"added_tokens_decoder\" gives {} the id {}, which is a rank",
                                in_quotes(token.content), *token.id));
    kind.ids = std::max(kind.ids, *token.id + 1);
    by_id[*token.id] = token;
  }
  for (const auto& [id, token] : by_id) {
    if (!ids.emplace(token.content, id).second)
      settings.fail(fmt::format("\"added_tokens_decoder\" gives the ids {} and {} to {}", ids[token.content], id,
                                in_quotes(token.content)));
    kind.special.push_back(token);
  }
  const auto named = [&](const char* key) -> std::optional<std::int32_t> {
    const auto content = named_token(settings, key);
    if (!content) return {};
    const auto found = ids.find(*content);
    if (found == ids.end())
      settings.fail(fmt::format("{} is {}, which is no special token, expected one of \"added_tokens_decoder\"",
                                key, in_quotes(*content)));
    return found->second;
  };
  if (settings.flag("add_bos_token", true)) kind.bos = named("bos_token");
  kind.eos = named("eos_token");
  return kind;
}

bool is_kimi(const JsonReader& settings, const std::string& name) {
  const std::string wanted = settings.has("tokenizer_class") ? settings.text("tokenizer_class") : "";
  return wanted == "TikTokenTokenizer" || name == "tiktoken.model" || name.ends_with("/tiktoken.model");
}

}  // namespace

TiktokenKind tiktoken_kind_of(std::size_t ranks, std::int32_t highest, const JsonReader& settings,
                              const std::string& name) {
  if (is_kimi(settings, name)) return kimi(highest + 1, settings);
  const auto is = [&](std::size_t count, std::int32_t ids) { return ranks == count && highest < ids; };
  if (is(50256, 50257) || is(50280, 50281))  // r50k_base; p50k_base, which leaves 50256 free
    return {kR50kSplit, ranks == 50256 ? 50257 : 50281, {}, 50256, special_tokens({{50256, "<|endoftext|>"}})};
  if (is(100256, 100277))
    return {kCl100kSplit, 100277, {}, 100257,
            special_tokens({{100257, "<|endoftext|>"},
                    {100258, "<|fim_prefix|>"},
                    {100259, "<|fim_middle|>"},
                    {100260, "<|fim_suffix|>"},
                    {100276, "<|endofprompt|>"}})};
  if (is(199998, 200019))
    return {kGpt4oSplit, 200019, {}, 199999, special_tokens({{199999, "<|endoftext|>"}, {200018, "<|endofprompt|>"}})};
  if (is(151643, 151851)) return {kQwenSplit, 151851, {}, 151643, of_qwen(151643, 151851), true};
  const bool llama3 = is(128000, 128000);
  if (!llama3 && name.ends_with(".model"))
    fail_usage("[tokenizer] {}: {} base64 tokens and ranks, of which nothing says how a text is split: expected "
               "Llama 3's 128000, or a tokenizer_config.json beside it with tokenizer_class TikTokenTokenizer; a "
               "tokenizer.json of the model says it{}",
               name, ranks, ranks == 200000 ? " (this may be Llama 4's)" : "");
  return {kLlama3Split, highest + 1 + kReserved, highest + 1, highest + 2, of_llama3(highest + 1), false, false, !llama3};
}

}  // namespace switchyard
