#include "checkpoint/layout.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "core/error.h"

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

std::string safetensors_type(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "F32";
    case DType::bf16:
      return "BF16";
    case DType::i32:
      return "I32";
    default:
      return "U8";
  }
}

DType dtype_of_safetensors(const std::string& type, const std::string& where) {
  for (const DType dtype : {DType::f32, DType::bf16, DType::i32, DType::u8}) {
    if (safetensors_type(dtype) == type) return dtype;
  }
  fail_usage("[checkpoint] {}: dtype {}, expected F32, BF16, I32 or U8", where, type);
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
  // Wide types first keeps every tensor aligned to its element.
  std::vector<std::size_t> order = tensors;
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return size_of(tensors_[a].dtype) > size_of(tensors_[b].dtype);
  });
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  header["__metadata__"] = {{"format", "pt"}};
  std::int64_t end = 0;
  for (const std::size_t i : order) {
    const StoredTensor& tensor = tensors_[i];
    const std::int64_t begin = end;
    end += num_elements(tensor.shape) * static_cast<std::int64_t>(size_of(tensor.dtype));
    header[tensor.name] = {
        {"dtype", safetensors_type(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {begin, end}}};
    places_[i] = {files_.size(), begin};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes += static_cast<char>(text.size() >> (8 * i));
  bytes += text;
  const auto data = static_cast<std::int64_t>(bytes.size());
  for (const std::size_t i : order) places_[i].offset += data;
  files_.push_back({name, std::move(bytes), data + end});
}

std::size_t CheckpointLayout::index_of(const std::string& name) const {
  const auto found = index_.find(name);
  CHECK(found != index_.end(), "no tensor {}", name);
  return found->second;
}

}  // namespace switchyard
