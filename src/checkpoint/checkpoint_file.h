// One file of an open checkpoint, shared by the parts of CheckpointFolder.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <string>
#include <system_error>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/mapped_file.h"
#include "checkpoint/safetensors_header.h"
#include "core/error.h"

namespace switchyard {

struct CheckpointFolder::File {
  std::string path;
  int descriptor = -1;
  std::int64_t data = 0;  // where the tensors' bytes begin
  SafetensorsHeader header;
  mutable std::once_flag mapping;
  mutable MappedFile mapped;  // set once a tensor is used directly from the mapping

  File() = default;
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  ~File() {
    if (descriptor >= 0) ::close(descriptor);
  }

  // The whole file, mapped into memory.
  const MappedFile& map() const {
    std::call_once(mapping, [&] { mapped = map_file(path, "checkpoint"); });
    return mapped;
  }

  void read(void* to, std::size_t bytes, std::int64_t offset) const {
    auto* at = static_cast<std::byte*>(to);
    while (bytes > 0) {
      const ssize_t n = ::pread(descriptor, at, std::min(bytes, std::size_t{1} << 30), offset);
      if (n < 0 && errno == EINTR) continue;
      if (n < 0)
        fail_runtime("[checkpoint] cannot read {}: {}", path, std::generic_category().message(errno));
      if (n == 0) fail_usage("[checkpoint] {}: ends at byte {}, in the middle of a tensor", path, offset);
      at += n;
      offset += n;
      bytes -= static_cast<std::size_t>(n);
    }
  }
};

}  // namespace switchyard
