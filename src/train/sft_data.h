// The conversations of a run that its config describes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "chat/chat_template.h"
#include "config/config.h"
#include "data/preference_pairs.h"
#include "tokenizer/tokenizer.h"

namespace switchyard {

// Turns lines into tokens, and owns the template that it needs for that.
struct SftEncoder {
  // The template is the file chat_template_path, or that of the tokenizer's folder or of the weights'
  // folder. Error(usage) for one that cannot be read.
  SftEncoder(const Config& config, const Tokenizer& tokenizer, std::int64_t vocab, bool keeps_text);
  std::unique_ptr<chat::ChatTemplate> chat;  // null: the model has none
  std::unique_ptr<ConversationEncoder> lines;
};

// The pairs of `paths`, as keys of the config say, and its max_prompt_length.
std::vector<PreferencePair> pairs_of_run(const Config& config, const std::string& paths,
                                         const SftEncoder& encoder, ThreadPool& pool);
std::optional<std::int64_t> max_prompt_of(const Config& config);

}  // namespace switchyard
