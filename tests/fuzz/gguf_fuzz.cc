// Any bytes as a GGUF file, its model and its tokenizer: read whole, or refused with an Error.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "core/error.h"
#include "core/json_file.h"
#include "gguf/gguf_file.h"
#include "gguf/gguf_tokenizer.h"
#include "gguf/gguf_weights.h"
#include "models/families/family.h"
#include "tokenizer/tokenizer.h"

namespace {

using namespace switchyard;

void read_tensors(const GgufFile& file, std::size_t size) {
  std::size_t bytes = 0;
  for (const auto& [name, entry] : file.entries()) {
    bytes += entry.bytes.size();
    file.read(name);
  }
  CHECK(bytes <= size, "{} bytes of tensors in {}", bytes, size);
}

void read_model(const GgufFile& file) {
  const nlohmann::json config = hub_config_of(file);
  config_from_hub(config);
  const GgufWeights weights(file, config);
  for (const std::string& name : weights.names()) {
    try {
      const Tensor whole = weights.read(name);
      CHECK(whole.shape() == weights.shape(name), "{} read as {}", name, to_string(whole.shape()));
      if (weights.packed_dtype(name)) weights.take_blocks(name);
    } catch (const Error&) {  // a scale that is no number
    }
  }
}

void read_tokenizer(const GgufFile& file) {
  end_tokens_of(file);
  const TokenizerFiles files = tokenizer_files_of(file);
  const auto tokenizer = files.json.empty() ? parse_sentencepiece(files.model, files.config, "input")
                                            : parse_huggingface(files.json, files.config, "input");
  const auto ids = tokenizer->encode("Hello  world's 123 \xe6\x97\xa5");
  for (const std::int32_t id : ids) CHECK(id >= 0 && id < tokenizer->vocab_size(), "id {}", id);
  tokenizer->decode(ids);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto each = [](const auto& part) {
    try {
      part();
    } catch (const Error&) {
    }
  };
  each([&] {
    const GgufFile file = GgufFile::parse(std::as_bytes(std::span(data, size)), "input");
    each([&] { read_tensors(file, size); });
    each([&] { read_model(file); });
    each([&] { read_tokenizer(file); });
  });
  return 0;
}
