#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "checkpoint/safetensors.h"
#include "core/error.h"

namespace switchyard {
namespace {

const char* format_name(DType dtype) {
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

void write_safetensors(const std::string& path, const std::map<std::string, Tensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  // Wide types first keeps every tensor aligned to its element.
  std::vector<std::pair<const std::string*, const Tensor*>> order;
  for (const auto& [name, tensor] : tensors) order.emplace_back(&name, &tensor);
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return size_of(a.second->dtype()) > size_of(b.second->dtype());
  });
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::size_t offset = 0;
  for (const auto& [name, tensor] : order) {
    const std::size_t end = offset + tensor->bytes();
    header[*name] = {
        {"dtype", format_name(tensor->dtype())}, {"shape", tensor->shape()}, {"data_offsets", {offset, end}}};
    offset = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  unsigned char length[8];
  for (std::size_t i = 0; i < 8; ++i) length[i] = static_cast<unsigned char>(text.size() >> (8 * i));

  AtomicFile file(path);
  file.write(length, sizeof(length));
  file.write(text.data(), text.size());
  for (const auto& [name, tensor] : order) file.write(tensor->raw(), tensor->bytes());
  file.commit();
}

}  // namespace switchyard
