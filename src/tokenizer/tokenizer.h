// Tokenizer: text to ids and back. All are immutable after construction and safe to use from several threads.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace switchyard {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Ids of a text, without tokens for its beginning and end. Bytes that are not UTF-8 count as U+FFFD, but
  // for the byte tokenizer, which keeps them.
  virtual std::vector<std::int32_t> encode(std::string_view text) const = 0;
  // Text of ids. Special tokens give nothing, ids outside the vocabulary U+FFFD.
  virtual std::string decode(std::span<const std::int32_t> ids) const = 0;
  // One more than the largest id.
  virtual std::int32_t vocab_size() const = 0;
  // The ids that stand before and after a document, where the tokenizer has them.
  virtual std::optional<std::int32_t> bos() const = 0;
  virtual std::optional<std::int32_t> eos() const = 0;
  // add_eos_token of its configuration: prompts, too, get eos() behind them.
  virtual bool ends_prompts() const { return false; }
};

// `type`: "byte" (ids are bytes, 256 ends a document; no path), "sentencepiece" (a model file), "huggingface"
// (a tokenizer.json or a folder with one), "tiktoken" (a file of base64 tokens and ranks, split
// as GPT-2, cl100k, o200k or Qwen do if it has as many ranks as theirs, else as Llama-3 does), "gguf" (the
// metadata of a GGUF file). Error(usage)
// for another type, a missing or broken file, and for a hub id in the place of a path.
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& type, const std::string& path);

// The type of a tokenizer file by its name: *.model, *.tiktoken, the word "byte", else huggingface.
std::string tokenizer_type_of(const std::string& path);

// The files that a tokenizer is read from, the main one first: beside a tokenizer.json or a SentencePiece
// model may stand a tokenizer_config.json and, where that has no added_tokens_decoder, a
// special_tokens_map.json and an added_tokens.json. None for byte. Error(usage) as make_tokenizer.
std::vector<std::string> tokenizer_files(const std::string& type, const std::string& path);
// Where the main one stands in a folder that carries a tokenizer along; "" for byte.
std::string tokenizer_path_in(const std::string& type, const std::string& folder);

// A tokenizer from file contents; `name` stands for the path in messages. `config` is the text of the
// tokenizer_config.json that may stand beside it, or empty.
std::unique_ptr<Tokenizer> parse_huggingface(std::string_view json, std::string_view config,
                                             const std::string& name);
std::unique_ptr<Tokenizer> parse_sentencepiece(std::string_view model, std::string_view config,
                                               const std::string& name);
std::unique_ptr<Tokenizer> parse_tiktoken(std::string_view text, const std::string& name);

// The ids of a prompt: with bos() before it, and eos() behind it where the tokenizer ends prompts.
std::vector<std::int32_t> encode_prompt(const Tokenizer& tokenizer, std::string_view text, bool add_bos,
                                        bool add_eos);

}  // namespace switchyard
