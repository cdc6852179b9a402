#include "checkpoint/checkpoint_folder.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "checkpoint/checkpoint_file.h"
#include "checkpoint/layout.h"
#include "checkpoint/safetensors.h"
#include "core/error.h"
#include "core/json_file.h"

namespace switchyard {

namespace fs = std::filesystem;

namespace {

constexpr std::int64_t kMaxHeaderBytes = 100'000'000;
constexpr const char* kMarker = "complete";

bool marker_of(const std::string& folder, std::uint64_t& hash) {
  std::error_code error;
  const fs::path path = fs::path(folder) / kMarker;
  if (!fs::is_regular_file(path, error) || fs::file_size(path, error) > 64) return false;
  std::string text = read_whole_file(path.string());
  if (text.ends_with('\n')) text.pop_back();
  return parse_hex(text, hash);
}

std::string in_folder(const std::string& folder, const std::string& name) {
  return (fs::path(folder) / name).string();
}

}  // namespace

CheckpointFolder CheckpointFolder::open(const std::string& folder) {
  CheckpointFolder checkpoint;
  checkpoint.path_ = folder;
  std::uint64_t marker = 0;
  if (!marker_of(folder, marker))
    fail_usage("[checkpoint] {}: no checkpoint, or not written to the end: {} is missing or no hash", folder,
               kMarker);
  const std::string path = in_folder(folder, "manifest.json");
  const std::string text = read_whole_file(path);
  if (const std::uint64_t hash = XXH3_64bits(text.data(), text.size()); hash != marker) {
    fail_usage("[checkpoint] {}: hash {}, expected {} by the file {}: damaged", path, to_hex(hash),
               to_hex(marker), kMarker);
  }
  checkpoint.manifest_ = parse_manifest(text, path);
  for (const ManifestFile& file : checkpoint.manifest_.files) checkpoint.open_file(file);
  std::size_t chunks = 0;
  for (std::size_t i = 0; i < checkpoint.manifest_.tensors.size(); ++i) {
    const ManifestTensor& tensor = checkpoint.manifest_.tensors[i];
    checkpoint.index_[tensor.name] = i;
    checkpoint.check_entry(tensor);
    checkpoint.first_chunks_[tensor.name] = chunks;
    chunks += tensor.chunks.size();
  }
  checkpoint.verified_ = std::make_shared<VerifiedChunks>(chunks);
  return checkpoint;
}

void CheckpointFolder::open_file(const ManifestFile& entry) {
  const auto file = std::make_shared<File>();
  file->path = in_folder(path_, entry.name);
  file->descriptor = ::open(file->path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file->descriptor < 0)
    fail_usage("[checkpoint] {}: cannot be opened: {}", file->path, std::generic_category().message(errno));
  struct stat info {};
  if (::fstat(file->descriptor, &info) != 0 || !S_ISREG(info.st_mode))
    fail_usage("[checkpoint] {}: not a regular file", file->path);
  if (info.st_size != entry.bytes)
    fail_usage("[checkpoint] {}: {} bytes, expected {}", file->path, info.st_size, entry.bytes);
  unsigned char length_bytes[8] = {};
  if (entry.bytes < 8)
    fail_usage("[checkpoint] {}: {} bytes are no safetensors file", file->path, entry.bytes);
  file->read(length_bytes, sizeof length_bytes, 0);
  std::uint64_t length = 0;
  for (std::size_t i = 8; i-- > 0;) length = (length << 8) | length_bytes[i];
  if (length > kMaxHeaderBytes || static_cast<std::int64_t>(length) > entry.bytes - 8)
    fail_usage("[checkpoint] {}: header of {} bytes in a file of {}: damaged", file->path, length,
               entry.bytes);
  std::string header(length + 8, '\0');
  file->read(header.data(), header.size(), 0);
  if (XXH3_64bits(header.data(), header.size()) != entry.header_xxh3)
    fail_usage("[checkpoint] {}: the header's hash is not the manifest's: damaged", file->path);
  file->data = static_cast<std::int64_t>(header.size());
  file->header = parse_safetensors_header(std::string_view(header).substr(8), file->path);
  files_.push_back(file);
}

// Checks that the manifest and the file's header agree about a tensor.
void CheckpointFolder::check_entry(const ManifestTensor& tensor) {
  const File& file = *files_[tensor.file];
  const auto found = file.header.items.find(tensor.name);
  if (found == file.header.items.end())
    fail_usage("[checkpoint] {}: has no tensor {}", file.path, in_quotes(tensor.name));
  const auto& item = found->second;
  const auto bytes = static_cast<std::uint64_t>(num_elements(tensor.shape)) * size_of(tensor.dtype);
  const auto available = static_cast<std::uint64_t>(manifest_.files[tensor.file].bytes - file.data);
  const bool same =
      item.dtype == safetensors_dtype(tensor.dtype) &&
      Shape(item.shape.begin(), item.shape.end()) == safetensors_shape(tensor.dtype, tensor.shape) &&
      item.offsets[0] <= item.offsets[1] && item.offsets[1] - item.offsets[0] == bytes &&
      item.offsets[1] <= available;
  if (!same)
    fail_usage("[checkpoint] {}: tensor {} is not as the manifest says", file.path, in_quotes(tensor.name));
  offsets_[tensor.name] = file.data + static_cast<std::int64_t>(item.offsets[0]);
}

const ManifestTensor& CheckpointFolder::tensor(const std::string& name) const {
  const auto found = index_.find(name);
  if (found == index_.end()) fail_usage("[checkpoint] {}: no tensor {}", path_, in_quotes(name));
  return manifest_.tensors[found->second];
}

// Runs shorter than `shortest` bytes are read with what lies between them.
void CheckpointFolder::read_box(const ManifestTensor& tensor, const Box& box, std::int64_t shortest,
                                std::byte* to) const {
  const File& file = *files_[tensor.file];
  const std::int64_t offset = offsets_.at(tensor.name);
  const auto element = static_cast<std::int64_t>(size_of(tensor.dtype));
  std::int64_t begin = -1, end = 0;  // of the runs, in the tensor
  std::int64_t longest = 0;
  for_runs(tensor.shape, box, [&](std::int64_t from, std::int64_t, std::int64_t count) {
    if (begin < 0) begin = from;
    end = from + count;
    longest = count;
  });
  if (longest * element >= shortest || end - begin == num_elements(box.shape)) {
    for_runs(tensor.shape, box, [&](std::int64_t from, std::int64_t at, std::int64_t count) {
      file.read(to + at * element, static_cast<std::size_t>(count * element), offset + from * element);
    });
    return;
  }
  constexpr std::int64_t kWindow = std::int64_t{4} << 20;
  std::vector<std::byte> window;
  std::int64_t window_begin = 0, window_end = 0;  // elements of the tensor
  for_runs(tensor.shape, box, [&](std::int64_t from, std::int64_t at, std::int64_t count) {
    if (from + count > window_end) {
      window_begin = from;
      window_end = std::min(end, from + std::max(count, kWindow / element));
      window.resize(static_cast<std::size_t>((window_end - window_begin) * element));
      file.read(window.data(), window.size(), offset + window_begin * element);
    }
    std::memcpy(to + at * element, window.data() + (from - window_begin) * element,
                static_cast<std::size_t>(count * element));
  });
}

void CheckpointFolder::read_chunk(const ManifestTensor& tensor, const Chunk& chunk, std::byte* to) const {
  const std::int64_t elements = num_elements(chunk.box.shape);
  if (elements == 0) return;
  // The disk delivers whole pages anyway, so runs shorter than a page are read with the gaps between them.
  constexpr std::int64_t kPage = 4096;
  read_box(tensor, chunk.box, kPage, to);
  if (XXH3_64bits(to, static_cast<std::size_t>(elements) * size_of(tensor.dtype)) != chunk.xxh3)
    fail_damaged(tensor, chunk);
}

void CheckpointFolder::fail_damaged(const ManifestTensor& tensor, const Chunk& chunk) const {
  fail_usage("[checkpoint] {}: tensor {} {}: the data's hash is not the manifest's: damaged",
             files_[tensor.file]->path, in_quotes(tensor.name), to_string(chunk.box));
}

// `part` lies in the chunk.
void CheckpointFolder::read_part(const ManifestTensor& tensor, std::size_t index, const Box& part,
                                 std::byte* to) const {
  const Chunk& chunk = tensor.chunks[index];
  const bool whole = part == chunk.box;
  const std::size_t element = size_of(tensor.dtype);
  const auto [ran, content] =
      verified_->once(first_chunks_.at(tensor.name) + index, [&]() -> VerifiedChunks::Content {
        if (whole) {
          read_chunk(tensor, chunk, to);
          return nullptr;
        }
        auto buffer = std::make_shared_for_overwrite<std::byte[]>(
            static_cast<std::size_t>(num_elements(chunk.box.shape)) * element);
        read_chunk(tensor, chunk, buffer.get());
        return buffer;
      });
  if (content) {
    Box in_chunk = part;
    for (std::size_t d = 0; d < part.start.size(); ++d) in_chunk.start[d] -= chunk.box.start[d];
    for_runs(chunk.box.shape, in_chunk,
             [&, content = content](std::int64_t from, std::int64_t at, std::int64_t count) {
               std::memcpy(to + static_cast<std::size_t>(at) * element,
                           content.get() + static_cast<std::size_t>(from) * element,
                           static_cast<std::size_t>(count) * element);
             });
  } else if (!ran) {
    // It is likely to be in memory since then: short runs of it cost a call each, no disk.
    constexpr std::int64_t kShortest = 512;
    read_box(tensor, part, kShortest, to);
  }
}

void CheckpointFolder::read(const std::string& name, const Box& box, void* to) const {
  const ManifestTensor& stored = tensor(name);
  CHECK(inside(box, stored.shape), "{} of tensor {} {}", to_string(box), name, to_string(stored.shape));
  const std::size_t element = size_of(stored.dtype);
  auto* out = static_cast<std::byte*>(to);
  std::vector<std::byte> piece;
  for (std::size_t i = 0; i < stored.chunks.size(); ++i) {
    const Chunk& chunk = stored.chunks[i];
    const Box common = intersection(chunk.box, box);
    const std::int64_t elements = num_elements(common.shape);
    if (elements == 0) continue;
    if (chunk.box == box) {
      read_chunk(stored, chunk, out);
      return;
    }
    Box in_box = common;
    for (std::size_t d = 0; d < common.start.size(); ++d) in_box.start[d] -= box.start[d];
    std::byte* direct = nullptr;  // where the part stands in the result, when it is one run there
    for_runs(box.shape, in_box, [&](std::int64_t into, std::int64_t, std::int64_t count) {
      if (count == elements) direct = out + static_cast<std::size_t>(into) * element;
    });
    if (direct != nullptr) {
      read_part(stored, i, common, direct);
      continue;
    }
    piece.resize(static_cast<std::size_t>(elements) * element);
    read_part(stored, i, common, piece.data());
    for_runs(box.shape, in_box, [&](std::int64_t into, std::int64_t at, std::int64_t count) {
      std::memcpy(out + static_cast<std::size_t>(into) * element,
                  piece.data() + static_cast<std::size_t>(at) * element,
                  static_cast<std::size_t>(count) * element);
    });
  }
}

Tensor CheckpointFolder::read(const std::string& name, const Box& box) const {
  Tensor out(tensor(name).dtype, box.shape);
  read(name, box, out.raw());
  return out;
}

Tensor CheckpointFolder::read(const std::string& name) const {
  return read(name, whole_box(tensor(name).shape));
}

void CheckpointFolder::read_parameter(const std::string& parameter, const Shape& shape,
                                      const std::string& suffix, const Box& box, void* to) const {
  const StoredParameter stored = stored_parameter(parameter, shape);
  if (!stored.is_stack) {
    read(parameter + suffix, box, to);
    return;
  }
  const Box each{{box.start.begin() + 1, box.start.end()}, {box.shape.begin() + 1, box.shape.end()}};
  auto* out = static_cast<std::byte*>(to);
  for (std::int64_t e = box.start[0]; e < box.start[0] + box.shape[0]; ++e) {
    const std::string name = stored.names[static_cast<std::size_t>(e)] + suffix;
    read(name, each, out);
    out += static_cast<std::size_t>(num_elements(each.shape)) * size_of(tensor(name).dtype);
  }
}

void CheckpointFolder::prove() const {
  std::vector<std::byte> buffer;
  for (const ManifestTensor& tensor : manifest_.tensors) {
    for (const Chunk& chunk : tensor.chunks) {
      buffer.resize(static_cast<std::size_t>(num_elements(chunk.box.shape)) * size_of(tensor.dtype));
      read_chunk(tensor, chunk, buffer.data());
    }
  }
  for (const ManifestExtra& extra : manifest_.extras) {
    const std::string path = in_folder(path_, extra.name);
    const std::string content = read_whole_file(path);
    if (static_cast<std::int64_t>(content.size()) != extra.bytes ||
        XXH3_64bits(content.data(), content.size()) != extra.xxh3)
      fail_usage("[checkpoint] {}: hash or size is not the manifest's: damaged", path);
  }
}

bool has_marker(const std::string& folder) {
  std::uint64_t hash = 0;
  return marker_of(folder, hash);
}

std::vector<FoundCheckpoint> find_checkpoints(const std::string& checkpoints) {
  std::vector<FoundCheckpoint> found;
  std::error_code error;
  for (fs::directory_iterator it(checkpoints, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    std::int64_t step = 0;
    const auto [last, status] = std::from_chars(name.data(), name.data() + name.size(), step);
    // No other name is a step's: "0100", "100.bak" and "100~" are copies of the user's.
    const bool numbered = status == std::errc() && last == name.data() + name.size() && step >= 0 &&
                          name == std::to_string(step);
    if (numbered && has_marker(it->path().string())) found.push_back({step, it->path().string()});
  }
  if (error && error != std::errc::no_such_file_or_directory && error != std::errc::not_a_directory)
    fail_usage("[checkpoint] {}: cannot be looked at: {}", checkpoints, error.message());
  std::sort(found.begin(), found.end(), [](const auto& a, const auto& b) { return a.step > b.step; });
  return found;
}

CheckpointFolder open_newest(const std::vector<FoundCheckpoint>& found, std::vector<std::string>* skipped) {
  CHECK(!found.empty());
  std::string first;
  for (const FoundCheckpoint& candidate : found) {
    try {
      return CheckpointFolder::open(candidate.path);
    } catch (const Error& error) {
      if (first.empty()) first = error.what();
      if (skipped != nullptr) skipped->push_back(error.what());
    }
  }
  fail_usage("{} (and no checkpoint before it can be read)", first);
}

bool is_checkpoint_path(const std::string& path) {
  std::error_code error;
  return fs::exists(in_folder(path, kMarker), error) ||
         fs::is_directory(in_folder(path, "checkpoints"), error) || !find_checkpoints(path).empty();
}

CheckpointFolder open_checkpoint(const std::string& path, std::vector<std::string>* skipped) {
  std::error_code error;
  if (fs::exists(in_folder(path, kMarker), error)) return CheckpointFolder::open(path);
  std::vector<FoundCheckpoint> found = find_checkpoints(in_folder(path, "checkpoints"));
  if (found.empty()) found = find_checkpoints(path);
  if (found.empty())
    fail_usage("[checkpoint] {}: expected a checkpoint or the folder of a run that has one", path);
  return open_newest(found, skipped);
}

}  // namespace switchyard
