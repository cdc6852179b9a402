// Tokenizer: converts text to ids and back. Immutable after construction; usable from several threads.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/text_range.h"

namespace switchyard {

// The ids of a text, and where in the text each ends, in bytes; it begins where the one before ends.
struct PlacedTokens {
  std::vector<std::int32_t> ids;
  std::vector<std::size_t> ends;
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Encodes a text, without special tokens at its beginning and end. Bytes that are not UTF-8 are encoded as
  // U+FFFD, except by the byte tokenizer, which keeps them.
  virtual std::vector<std::int32_t> encode(std::string_view text) const = 0;
  // Decodes ids. Special tokens give no text. Ids outside the vocabulary give U+FFFD, with a tokenizer.json nothing.
  virtual std::string decode(std::span<const std::int32_t> ids) const = 0;
  // Encodes as encode() does, but texts of added and of special tokens become their ids, also where encode()
  // does not look for them. An occurrence that touches a byte of a range in `plain` is text: whoever wrote
  // those ranges writes no markup (tokens of white space only are no markup). Ranges are in order and apart.
  // The byte tokenizer has no such texts.
  virtual std::vector<std::int32_t> encode_with_special(std::string_view text,
                                                        std::span<const TextRange> plain = {}) const = 0;
  // encode_with_special() with the places of the tokens. None where the text's normal form is another text, so
  // that no place is certain. A space that a tokenizer adds before a text has no place, and white space that
  // a special token takes away from the text around it is that token's.
  std::optional<PlacedTokens> encode_with_places(std::string_view text,
                                                 std::span<const TextRange> plain = {}) const;
  // Decodes as decode() does, but special tokens give their text, as far as they have one.
  virtual std::string decode_all(std::span<const std::int32_t> ids) const = 0;
  // Returns the exact bytes that a token adds within a text, which may be a part of a character; none for
  // special tokens and for ids without a token.
  virtual std::optional<std::string> token_bytes(std::int32_t id) const = 0;
  // One more than the largest id.
  virtual std::int32_t vocab_size() const = 0;
  // The ids placed before and after a document, if the tokenizer has them.
  virtual std::optional<std::int32_t> bos() const = 0;
  virtual std::optional<std::int32_t> eos() const = 0;
  // add_eos_token of the tokenizer's configuration: prompts, too, end with eos().
  virtual bool ends_prompts() const { return false; }
};

// `type`: "byte" (ids are bytes, 256 ends a document; no path), "sentencepiece" (a model
// file), "huggingface" (a tokenizer.json), "tiktoken" (a file of base64 tokens and ranks, as
// tiktoken_kinds.h knows it), "gguf" (the metadata of a GGUF file). `path` may be a folder
// that has such a file. Error(usage) for another type, a missing or broken file, and for a
// hub id instead of a path.
std::unique_ptr<Tokenizer> make_tokenizer(const std::string& type, const std::string& path);

// Infers the type of a tokenizer file, or of a folder's (tokenizer_folder.h), from its name: *.model, which may also begin
// with lines of base64 and then is tiktoken's, *.tiktoken, *.gguf, the word "byte", else huggingface.
std::string tokenizer_type_of(const std::string& path);

// The files that a tokenizer is read from, the main file first. All but GGUF files may
// have a tokenizer_config.json beside it and, if that lacks added_tokens_decoder, a special_tokens_map.json
// and an added_tokens.json. None for byte. Error(usage) as for make_tokenizer.
std::vector<std::string> tokenizer_files(const std::string& type, const std::string& path);
// The path of the main file in a folder that stores the tokenizer of a file `from`; "" for byte. Kimi's
// tiktoken.model keeps its name, which says what it is; `from` may be "" where the folder is already filled.
std::string tokenizer_path_in(const std::string& type, const std::string& folder, const std::string& from = "");

// Builds a tokenizer from file contents; `name` replaces the path in messages. `config` is the text of the
// accompanying tokenizer_config.json, or empty.
std::unique_ptr<Tokenizer> parse_huggingface(std::string_view json, std::string_view config,
                                             const std::string& name);
std::unique_ptr<Tokenizer> parse_sentencepiece(std::string_view model, std::string_view config,
                                               const std::string& name);
std::unique_ptr<Tokenizer> parse_tiktoken(std::string_view text, std::string_view config, const std::string& name);

// Encodes a prompt: bos() before it, and eos() after it if the tokenizer ends prompts.
std::vector<std::int32_t> encode_prompt(const Tokenizer& tokenizer, std::string_view text, bool add_bos,
                                        bool add_eos);

}  // namespace switchyard
