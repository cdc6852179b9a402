#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "checkpoint/safetensors.h"
#include "core/error.h"

namespace switchyard {
namespace {

// A file that is removed unless it is committed to its final name.
class AtomicFile {
 public:
  explicit AtomicFile(std::string path) : path_(std::move(path)), temporary_(path_ + ".partial") {
    fd_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666);
    if (fd_ < 0) fail_runtime("[safetensors] {}: cannot be written: {}", path_, std::strerror(errno));
  }
  ~AtomicFile() {
    if (fd_ >= 0) ::close(fd_);
    if (!committed_) ::unlink(temporary_.c_str());
  }
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, std::size_t bytes) {
    const char* from = static_cast<const char*>(data);
    while (bytes > 0) {
      const ssize_t n = ::write(fd_, from, std::min(bytes, std::size_t{1} << 30));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) fail_runtime("[safetensors] {}: cannot be written: {}", path_, std::strerror(errno));
      from += n;
      bytes -= static_cast<std::size_t>(n);
    }
  }

  void commit() {
    const bool flushed = ::fsync(fd_) == 0;
    const bool closed = ::close(std::exchange(fd_, -1)) == 0;
    if (!flushed || !closed || ::rename(temporary_.c_str(), path_.c_str()) != 0) {
      fail_runtime("[safetensors] {}: cannot be written: {}", path_, std::strerror(errno));
    }
    committed_ = true;
    // The new name is on disk only when the folder is.
    auto folder = std::filesystem::path(path_).parent_path().string();
    const int fd = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
      ::fsync(fd);
      ::close(fd);
    }
  }

 private:
  std::string path_, temporary_;
  int fd_ = -1;
  bool committed_ = false;
};

}  // namespace

std::string safetensors_dtype(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return "F32";
    case DType::bf16:
      return "BF16";
    case DType::i32:
      return "I32";
    case DType::f64:
      return "F64";
    default:
      return "U8";
  }
}

Shape safetensors_shape(DType dtype, const Shape& shape) {
  Shape in_file = shape;
  if (is_packed(dtype)) in_file.push_back(static_cast<std::int64_t>(size_of(dtype)));
  return in_file;
}

SafetensorsLayout safetensors_layout(std::span<const SafetensorsItem> items,
                                     const std::map<std::string, std::string>& metadata) {
  SafetensorsLayout layout;
  layout.order.resize(items.size());
  std::iota(layout.order.begin(), layout.order.end(), std::size_t{0});
  std::stable_sort(layout.order.begin(), layout.order.end(), [&](std::size_t a, std::size_t b) {
    return size_of(items[a].dtype) > size_of(items[b].dtype);
  });
  layout.offsets.resize(items.size());
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::int64_t end = 0;
  for (const std::size_t i : layout.order) {
    const auto& [name, dtype, shape] = items[i];
    layout.offsets[i] = end;
    end += num_elements(shape) * static_cast<std::int64_t>(size_of(dtype));
    header[name] = {{"dtype", safetensors_dtype(dtype)},
                    {"shape", safetensors_shape(dtype, shape)},
                    {"data_offsets", {layout.offsets[i], end}}};
  }
  std::string text = header.dump();
  constexpr std::size_t kLengthBytes = 8, kLine = 64;  // tensors of a mapped file are used where they lie
  text.resize((kLengthBytes + text.size() + kLine - 1) / kLine * kLine - kLengthBytes, ' ');
  for (std::size_t i = 0; i < 8; ++i) layout.header += static_cast<char>(text.size() >> (8 * i));
  layout.header += text;
  const auto data = static_cast<std::int64_t>(layout.header.size());
  for (std::int64_t& offset : layout.offsets) offset += data;
  layout.bytes = data + end;
  return layout;
}

void write_safetensors(const std::string& path, const std::map<std::string, Tensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<SafetensorsItem> items;
  std::vector<const Tensor*> values;
  for (const auto& [name, tensor] : tensors) {
    items.push_back({name, tensor.dtype(), tensor.shape()});
    values.push_back(&tensor);
  }
  const SafetensorsLayout layout = safetensors_layout(items, metadata);
  AtomicFile file(path);
  file.write(layout.header.data(), layout.header.size());
  for (const std::size_t i : layout.order) file.write(values[i]->raw(), values[i]->bytes());
  file.commit();
}

}  // namespace switchyard
