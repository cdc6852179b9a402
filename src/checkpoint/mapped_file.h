// Maps files into memory.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace switchyard {

struct MappedFile {
  std::shared_ptr<const void> memory;  // keeps `bytes` alive
  std::span<const std::byte> bytes;
};

// True when the bytes of a file start as a Git LFS pointer: a few lines that a clone without Git LFS has in
// place of a large file.
bool is_lfs_pointer(std::string_view bytes);

// Maps a regular file read-only. Error(usage) "[tag] path: reason" for a file that is empty, is a Git LFS
// pointer, or cannot be read.
MappedFile map_file(const std::string& path, std::string_view tag);

// Releases the memory that holds the pages of `bytes`, a part of a mapped file;
// they are read from disk again when touched.
void release_pages(std::span<const std::byte> bytes);

}  // namespace switchyard
