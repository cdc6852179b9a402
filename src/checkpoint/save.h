// Saves a checkpoint: one process creates the files, all processes fill them, one makes them valid.
//
// A complete checkpoint, new or old, is on disk at any time, even if the process or the power fails:
// 1. create_files: the folder .saving-<name>, with every file in its full size and its header.
// 2. PieceWriter: each process writes the bytes of its pieces, and flushes the files.
// 3. commit: flushes manifest and folder, renames the folder to <name>, flushes its parent; then writes and
//    flushes the marker `complete`, which makes the folder a checkpoint.
// 4. prune, only now: renames old checkpoints to .removing-<name> and removes them.
// All failures are Error(runtime) with path and reason.
#pragma once

#include <future>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/file_system.h"
#include "checkpoint/layout.h"
#include "checkpoint/manifest.h"

namespace switchyard {

struct SavePlace {
  std::string parent;  // an existing folder
  std::string name;    // "100"
  std::string temporary() const { return parent + "/.saving-" + name; }
  std::string final() const { return parent + "/" + name; }
};

// Removes the files of an unfinished save in the same place first.
void create_files(FileSystem& files, const SavePlace& place, const CheckpointLayout& layout);

// A box of a tensor, and its elements in row-major order.
struct Piece {
  Box box;
  const std::byte* data;
};

// A chunk that was written, for the manifest.
struct WrittenChunk {
  std::size_t tensor;  // index in the layout
  Chunk chunk;
};

// Writes the pieces of one process. One thread at a time.
class PieceWriter {
 public:
  // The largest chunk, which bounds the bytes read for a single element.
  static constexpr std::int64_t kChunkBytes = std::int64_t{4} << 20;

  PieceWriter(FileSystem& files, const SavePlace& place, const CheckpointLayout& layout);

  // Writes pieces of a tensor, each of which becomes a chunk. Adjacent runs are written together, even if
  // they come from different pieces.
  void write(std::size_t tensor, std::span<const Piece> pieces);
  // Flushes every file to the disk, including headers that another process may have written.
  void finish();
  const std::vector<WrittenChunk>& chunks() const { return chunks_; }

 private:
  struct Run {
    std::int64_t offset;  // bytes in the file
    const std::byte* data;
    std::size_t bytes;
  };
  // Bytes of a file from `offset` on, at an address that equals `offset` modulo OutputFile::kBlock.
  struct Buffer {
    std::vector<std::byte> memory;
    std::size_t file = 0;
    std::int64_t offset = 0;
    std::size_t bytes = 0;
    std::byte* begin();
    std::size_t room() const;
  };
  void append(std::size_t file, Run run);
  void flush();
  OutputFile& file(std::size_t index);

  FileSystem& files_;
  SavePlace place_;
  const CheckpointLayout& layout_;
  std::vector<std::unique_ptr<OutputFile>> open_;  // by file of the layout, null until needed
  Buffer filling_, flushing_;
  std::vector<WrittenChunk> chunks_;
  std::future<void> flushed_;  // the disk writes one buffer while the next is filled; destroyed first
};

// A file stored along: "tokenizer/tokenizer.json" and its content.
struct ExtraFile {
  std::string name;
  std::string content;
};

// Makes the checkpoint valid. `manifest` lacks files, extras and tensors, which are added from the layout and
// from the `chunks` of all processes. An existing folder of that name is replaced.
void commit(FileSystem& files, const SavePlace& place, const CheckpointLayout& layout, Manifest manifest,
            std::span<const WrittenChunk> chunks, std::span<const ExtraFile> extras);

// Removes the checkpoints below `parent` except the newest `keep` (0:
// keeps all), and the leftovers of unfinished saves.
void prune(FileSystem& files, const std::string& parent, std::int64_t keep);

// Writes a checkpoint from one process, whole tensors one after the other: a save without ranks.
class CheckpointWriter {
 public:
  CheckpointWriter(FileSystem& files, SavePlace place, std::vector<StoredTensor> tensors);
  ~CheckpointWriter();  // without commit(), removes everything written
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // Accepts tensors in any order, each once, with the announced shape and dtype (CHECK).
  void write(const std::string& name, const Tensor& tensor);
  // Call it after all tensors (CHECK).
  void commit(Manifest manifest, std::span<const ExtraFile> extras = {});

 private:
  FileSystem& files_;
  SavePlace place_;
  CheckpointLayout layout_;
  PieceWriter pieces_;
  std::size_t written_ = 0;
  bool committed_ = false;
};

}  // namespace switchyard
