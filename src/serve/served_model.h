// The served model, as the protocols know it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "chat/answer_parser.h"
#include "chat/chat_template.h"
#include "generate/sampling.h"
#include "grammar/grammar.h"
#include "serve/served_weights.h"
#include "serve/token_memory.h"
#include "tokenizer/tokenizer.h"

namespace switchyard::serve {

// The chat of a model: its template, its format, and the settings of the server.
struct ChatModel {
  chat::ChatTemplate prompts;
  chat::Format format = chat::Format::none;
  bool reads_reasoning = true;   // false: reasoning stays in the content
  bool trusts_messages = false;  // added tokens are found in the text of messages, too
  bool takes_templates = false;  // a request may bring its own template
  bool strict_fields = false;    // a request's unknown fields are refused instead of named in a header
};

struct ServedModel {
  std::string name;
  const Tokenizer* tokenizer;
  std::int64_t vocab = 0;                        // of the model; the tokenizer may have fewer ids
  std::int64_t capacity = 0;                     // most tokens of a prompt and its text together
  bool add_bos = false;                          // before prompts that are texts
  bool add_eos = false;                          // behind them, where the tokenizer ends prompts
  SamplingConfig sampling = {};                  // where a request does not say
  std::optional<std::int64_t> most_tokens = {};  // new ones, where a request does not say
  std::optional<std::int64_t> seed = {};         // likewise
  std::vector<std::string> stop = {};            // likewise
  std::int64_t most_texts = 128;                 // of one request
  bool has_page = true;                          // for chats, at /
  std::vector<std::string> aliases = {};         // other names of the model
  std::shared_ptr<ServedWeights> weights =       // and the adapters
      std::make_shared<ServedWeights>(ServedWeights::Model{});
  std::shared_ptr<const ChatModel> chat = {};                  // null: the model has no chat template
  std::shared_ptr<const grammar::Vocabulary> vocabulary = {};  // null: this build has no grammars
  std::shared_ptr<TokenMemory> memory = {};  // null: answers that come back are encoded anew
  bool keys_share_prefixes = false;          // the cache has one domain for all keys
  bool records_routing = false;              // of each text, for the requests that want it
  std::size_t longest_token = 0;             // LongestToken; 0: a token may stand for a text of any length

  bool is_named(const std::string& other) const {
    return other == name || std::find(aliases.begin(), aliases.end(), other) != aliases.end();
  }
  // Returns the name that an answer gives: the adapter's, where it has one.
  const std::string& name_with(const texts::TextAdapter* adapter) const {
    return adapter == nullptr ? name : adapter->name;
  }
  // Returns whether a prompt's text has more bytes than any tokens that fit.
  bool cannot_hold(std::size_t text_bytes) const {
    return longest_token > 0 && text_bytes / longest_token > static_cast<std::size_t>(capacity);
  }
};

}  // namespace switchyard::serve
