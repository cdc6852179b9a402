#include "checkpoint/layout.h"

#include <fmt/ranges.h>

#include <string_view>
#include <utility>

#include "checkpoint/safetensors.h"
#include "core/error.h"
#include "core/packed_words.h"

namespace switchyard {

StoredParameter stored_parameter(const std::string& parameter, const Shape& shape) {
  for (const std::string_view last : {".moe.wi_0", ".moe.wi_1", ".moe.wo"}) {
    if (!parameter.ends_with(last)) continue;
    CHECK(shape.size() == 3, "{} has shape {}", parameter, to_string(shape));
    const std::string below(last.substr(5));
    const std::string front = parameter.substr(0, parameter.size() - below.size());
    StoredParameter stored{{}, {shape[1], shape[2]}, true};
    for (std::int64_t e = 0; e < shape[0]; ++e)
      stored.names.push_back(fmt::format("{}experts.{}.{}", front, e, below));
    return stored;
  }
  return {{parameter}, shape, false};
}

std::string stored_dtype_name(DType dtype) {
  return is_packed(dtype) ? std::string(name_of(dtype)) : safetensors_dtype(dtype);
}

DType stored_dtype(const std::string& type, const std::string& where) {
  if (const std::optional<DType> packed = packed_dtype(type)) return *packed;
  for (const DType dtype : {DType::f32, DType::bf16, DType::i32, DType::u8}) {
    if (safetensors_dtype(dtype) == type) return dtype;
  }
  const std::vector<std::string> words = packed_words({"F32", "BF16", "I32", "U8"});
  fail_usage("[checkpoint] {}: dtype {}, expected {} or {}", where, type,
             fmt::join(words.begin(), words.end() - 1, ", "), words.back());
}

CheckpointLayout::CheckpointLayout(std::vector<StoredTensor> tensors, std::int64_t file_bytes)
    : tensors_(std::move(tensors)), places_(tensors_.size()) {
  for (std::size_t i = 0; i < tensors_.size(); ++i)
    CHECK(index_.emplace(tensors_[i].name, i).second, "tensor {} twice", tensors_[i].name);
  for (const bool optimizer : {false, true}) {
    int files = 0;
    std::vector<std::size_t> next;
    std::int64_t bytes = 0;
    const auto close_file = [&] {
      if (next.empty()) return;
      add_file(next, fmt::format("{}-{:05}.safetensors", optimizer ? "optimizer" : "weights", ++files));
      next.clear();
      bytes = 0;
    };
    for (std::size_t i = 0; i < tensors_.size(); ++i) {
      if (tensors_[i].optimizer != optimizer) continue;
      const std::int64_t size =
          num_elements(tensors_[i].shape) * static_cast<std::int64_t>(size_of(tensors_[i].dtype));
      if (bytes + size > file_bytes) close_file();
      next.push_back(i);
      bytes += size;
    }
    close_file();
  }
}

void CheckpointLayout::add_file(const std::vector<std::size_t>& tensors, const std::string& name) {
  std::vector<SafetensorsItem> items;
  for (const std::size_t i : tensors)
    items.push_back({tensors_[i].name, tensors_[i].dtype, tensors_[i].shape});
  const SafetensorsLayout layout = safetensors_layout(items, {{"format", "pt"}});
  for (std::size_t k = 0; k < tensors.size(); ++k) places_[tensors[k]] = {files_.size(), layout.offsets[k]};
  files_.push_back({name, layout.header, layout.bytes});
}

std::size_t CheckpointLayout::index_of(const std::string& name) const {
  const auto found = index_.find(name);
  CHECK(found != index_.end(), "no tensor {}", name);
  return found->second;
}

}  // namespace switchyard
