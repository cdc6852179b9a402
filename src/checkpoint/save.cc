#include "checkpoint/save.h"

#include <xxhash.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "checkpoint/checkpoint_folder.h"
#include "core/error.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kBufferBytes = std::size_t{8} << 20, kWorthAThread = std::size_t{1} << 20;

constexpr const char* kSaving = ".saving-";
constexpr const char* kRemoving = ".removing-";

// Renames an existing folder, which hides it in one step, and then removes it.
void remove_checkpoint(FileSystem& files, const std::string& parent, const std::string& name) {
  const std::string away = parent + "/" + kRemoving + name;
  remove_tree(files, away);
  rename_path(files, parent + "/" + name, away);
  remove_tree(files, away);
}

void write_extras(FileSystem& files, const std::string& folder, std::span<const ExtraFile> extras,
                  Manifest& manifest) {
  for (const ExtraFile& extra : extras) {
    std::vector<std::string> made;  // folders of the file, the outer one first
    for (fs::path sub = fs::path(extra.name).parent_path(); !sub.empty(); sub = sub.parent_path())
      made.insert(made.begin(), folder + "/" + sub.string());
    for (const std::string& path : made) make_folder(files, path);
    write_synced(files, folder + "/" + extra.name, extra.content);
    for (const std::string& path : made) sync_folder(files, path);
    manifest.extras.push_back({extra.name, static_cast<std::int64_t>(extra.content.size()),
                               XXH3_64bits(extra.content.data(), extra.content.size())});
  }
}

}  // namespace

void create_files(FileSystem& files, const SavePlace& place, const CheckpointLayout& layout) {
  remove_tree(files, place.temporary());
  make_folder(files, place.temporary());
  for (const CheckpointLayout::File& file : layout.files()) {
    OutputFile out(files, place.temporary() + "/" + file.name, OutputFile::Mode::create);
    out.resize(file.bytes);
    out.write_at(file.header.data(), file.header.size(), 0);
    out.close();
  }
}

PieceWriter::PieceWriter(FileSystem& files, const SavePlace& place, const CheckpointLayout& layout)
    : files_(files), place_(place), layout_(layout), open_(layout.files().size()) {}

OutputFile& PieceWriter::file(std::size_t index) {
  auto& file = open_[index];
  if (!file) {
    file = std::make_unique<OutputFile>(files_, place_.temporary() + "/" + layout_.files()[index].name,
                                        OutputFile::Mode::existing);
  }
  return *file;
}

void PieceWriter::write(std::size_t tensor, std::span<const Piece> pieces) {
  const StoredTensor& stored = layout_.tensors()[tensor];
  const CheckpointLayout::Place place = layout_.place(tensor);
  const auto element = static_cast<std::int64_t>(size_of(stored.dtype));
  std::vector<Run> runs;
  for (const Piece& piece : pieces) {
    CHECK(inside(piece.box, stored.shape), "{} of tensor {} {}", to_string(piece.box), stored.name,
          to_string(stored.shape));
    const auto bytes = static_cast<std::size_t>(num_elements(piece.box.shape) * element);
    chunks_.push_back({tensor, {piece.box, XXH3_64bits(piece.data, bytes)}});
    for_runs(stored.shape, piece.box, [&](std::int64_t at, std::int64_t from, std::int64_t count) {
      runs.push_back({place.offset + at * element, piece.data + from * element,
                      static_cast<std::size_t>(count * element)});
    });
  }
  std::sort(runs.begin(), runs.end(), [](const Run& a, const Run& b) { return a.offset < b.offset; });
  for (const Run& run : runs) append(place.file, run);
}

std::byte* PieceWriter::Buffer::begin() {
  constexpr std::size_t kBlock = OutputFile::kBlock;
  memory.resize(kBufferBytes + kBlock);
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data());
  return memory.data() + (kBlock - address % kBlock) % kBlock + static_cast<std::size_t>(offset) % kBlock;
}

// Up to the end of a block, where the next buffer begins.
std::size_t PieceWriter::Buffer::room() const {
  return kBufferBytes - static_cast<std::size_t>(offset) % OutputFile::kBlock - bytes;
}

void PieceWriter::append(std::size_t index, Run run) {
  if (index != filling_.file || run.offset != filling_.offset + static_cast<std::int64_t>(filling_.bytes)) {
    flush();
    filling_.file = index;
    filling_.offset = run.offset;
  }
  while (run.bytes > 0) {
    const std::size_t part = std::min(run.bytes, filling_.room());
    std::memcpy(filling_.begin() + filling_.bytes, run.data, part);
    filling_.bytes += part;
    run.data += part;
    run.bytes -= part;
    if (filling_.room() == 0) flush();
  }
}

void PieceWriter::flush() {
  if (flushed_.valid()) flushed_.get();
  const std::int64_t end = filling_.offset + static_cast<std::int64_t>(filling_.bytes);
  std::swap(filling_, flushing_);
  filling_.file = flushing_.file;
  filling_.offset = end;
  filling_.bytes = 0;
  const auto write = [this] {
    if (flushing_.bytes > 0)
      file(flushing_.file).write_at(flushing_.begin(), flushing_.bytes, flushing_.offset);
  };
  if (flushing_.bytes < kWorthAThread) {
    write();
  } else {
    flushed_ = std::async(std::launch::async, write);
  }
}

void PieceWriter::finish() {
  flush();
  if (flushed_.valid()) flushed_.get();
  for (std::size_t i = 0; i < open_.size(); ++i) {
    file(i).sync();
    file(i).close();
    open_[i].reset();
  }
}

void commit(FileSystem& files, const SavePlace& place, const CheckpointLayout& layout, Manifest manifest,
            std::span<const WrittenChunk> chunks, std::span<const ExtraFile> extras) {
  for (const CheckpointLayout::File& file : layout.files())
    manifest.files.push_back({file.name, file.bytes, XXH3_64bits(file.header.data(), file.header.size())});
  for (std::size_t i = 0; i < layout.tensors().size(); ++i) {
    const StoredTensor& tensor = layout.tensors()[i];
    manifest.tensors.push_back({tensor.name, tensor.dtype, tensor.shape, layout.place(i).file, {}});
  }
  for (const WrittenChunk& written : chunks) manifest.tensors[written.tensor].chunks.push_back(written.chunk);
  write_extras(files, place.temporary(), extras, manifest);
  const std::string text = to_json(manifest);
  parse_manifest(text, place.temporary() + "/manifest.json");  // nothing is written that would not be read
  write_synced(files, place.temporary() + "/manifest.json", text);
  sync_folder(files, place.temporary());
  std::error_code error;
  if (fs::exists(fs::symlink_status(place.final(), error)))
    remove_checkpoint(files, place.parent, place.name);
  rename_path(files, place.temporary(), place.final());
  sync_folder(files, place.parent);
  write_synced(files, place.final() + "/complete", to_hex(XXH3_64bits(text.data(), text.size())) + "\n");
  sync_folder(files, place.final());
}

void prune(FileSystem& files, const std::string& parent, std::int64_t keep) {
  std::error_code error;
  std::vector<std::string> leftovers;
  for (fs::directory_iterator it(parent, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.starts_with(kSaving) || name.starts_with(kRemoving)) leftovers.push_back(it->path().string());
  }
  for (const std::string& path : leftovers) remove_tree(files, path);
  if (keep == 0) return;
  const std::vector<FoundCheckpoint> found = find_checkpoints(parent);
  for (std::size_t i = found.size(); i-- > static_cast<std::size_t>(keep);)
    remove_checkpoint(files, parent, fs::path(found[i].path).filename().string());
}

CheckpointWriter::CheckpointWriter(FileSystem& files, SavePlace place, std::vector<StoredTensor> tensors)
    : files_(files), place_(std::move(place)), layout_(std::move(tensors)), pieces_(files_, place_, layout_) {
  create_files(files_, place_, layout_);
}

CheckpointWriter::~CheckpointWriter() {
  if (committed_) return;
  try {
    remove_tree(files_, place_.temporary());
  } catch (const Error&) {  // what ended the writing is told by its own error
  }
}

void CheckpointWriter::write(const std::string& name, const Tensor& tensor) {
  const std::size_t index = layout_.index_of(name);
  const StoredTensor& stored = layout_.tensors()[index];
  CHECK(stored.dtype == tensor.dtype() && stored.shape == tensor.shape(), "{}: {} {}, announced as {} {}",
        name, name_of(tensor.dtype()), to_string(tensor.shape()), name_of(stored.dtype),
        to_string(stored.shape));
  std::vector<Piece> pieces;
  const std::byte* data = tensor.raw();
  const auto most = PieceWriter::kChunkBytes / static_cast<std::int64_t>(size_of(tensor.dtype()));
  for (Box& box : boxes_of_range(whole_box(tensor.shape()), 0, tensor.size(), most)) {
    const auto bytes = static_cast<std::size_t>(num_elements(box.shape)) * size_of(tensor.dtype());
    pieces.push_back({std::move(box), data});
    data += bytes;
  }
  pieces_.write(index, pieces);
  ++written_;
}

void CheckpointWriter::commit(Manifest manifest, std::span<const ExtraFile> extras) {
  CHECK(written_ == layout_.tensors().size(), "{} of {} tensors", written_, layout_.tensors().size());
  pieces_.finish();
  switchyard::commit(files_, place_, layout_, std::move(manifest), pieces_.chunks(), extras);
  committed_ = true;
}

}  // namespace switchyard
