#include "models/families/hub_source.h"

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "checkpoint/safetensors.h"
#include "core/json_file.h"
#include "gguf/gguf_weights.h"
#include "models/families/family.h"
#include "models/families/quantization.h"

namespace switchyard {

namespace {

// Like transformers, does not tie an embedding and a head that the files both hold and that differ.
void take_head_of_its_own(HubSource& source) {
  const std::string head = "lm_head.weight", embedding = "model.embed_tokens.weight";
  constexpr const char* kTied = "tie_word_embeddings";
  if (source.config.value(kTied, nlohmann::json()) != true || !source.weights->contains(head) ||
      !source.weights->contains(embedding) || same_tensors(*source.weights, head, embedding))
    return;
  source.config[kTied] = false;
  source.notices.push_back(
      "warning: config.json has tie_word_embeddings=true, but lm_head.weight differs from the embedding: it "
      "is "
      "taken as a head of its own");
}

}  // namespace

bool same_tensors(const HubWeights& weights, const std::string& a, const std::string& b) {
  const Shape shape = weights.shape(a);
  if (weights.shape(b) != shape) return false;
  const std::int64_t rows = std::max<std::int64_t>(1, (1 << 20) / std::max<std::int64_t>(1, shape.back()));
  for (std::int64_t begin = 0; begin < shape[0]; begin += rows) {
    const std::int64_t end = std::min(shape[0], begin + rows);
    const Tensor first = weights.take_values(a, begin, end), second = weights.take_values(b, begin, end);
    if (first.bytes() != second.bytes() || std::memcmp(first.raw(), second.raw(), first.bytes()) != 0)
      return false;
  }
  return true;
}

bool is_hub_source(const std::string& path) {
  std::error_code error;
  return std::filesystem::exists(std::filesystem::path(path) / "config.json", error) ||
         GgufFile::is_gguf(path);
}

HubSource open_hub_source(const std::string& path) {
  HubSource source;
  if (GgufFile::is_gguf(path)) {
    GgufFile file = GgufFile::open(path);
    std::string notice;
    source.config = hub_config_of(file, &notice);
    if (!notice.empty()) source.notices.push_back(std::move(notice));
    source.files = file.paths();
    source.weights = std::make_shared<GgufWeights>(std::move(file), source.config);
    return source;
  }
  const std::string config = path + "/config.json";
  // The check comes before any tensor is taken for a form that is read. A folder without config.json passes:
  // the next line says that it lacks weights.
  if (is_hub_source(path)) check_quantization_of(path, decoder_part(read_json_file(config)));
  auto folder = std::make_shared<WeightFolder>(WeightFolder::open(path));
  source.config = decoder_part(read_json_file(config));
  source.files = {config};
  for (const SafetensorsFile& file : folder->files()) source.files.push_back(file.path());
  source.weights = std::move(folder);
  if (const ModelFamily* family = find_family(source.config))
    source.weights = unfused(*family, source.config, std::move(source.weights));
  take_head_of_its_own(source);
  if (std::string notice = unknown_fields_notice(source.config); !notice.empty())
    source.notices.push_back(std::move(notice));
  return source;
}

}  // namespace switchyard
