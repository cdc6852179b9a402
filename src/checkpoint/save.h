// Saving a checkpoint: files made by one process, filled by all, made valid by one.
//
// What is on disk is a checkpoint, the new one or those before, whatever ends the process or cuts the power:
// 1. create_files: the folder .saving-<name>, with every file in its full size and its header.
// 2. PieceWriter: each process writes the bytes of its pieces, and flushes the files.
// 3. commit: manifest and folder flushed, the folder renamed to <name>, its parent flushed; then the marker
//    `complete`, which makes it a checkpoint, is written and flushed.
// 4. prune, only now: what is too old is renamed to .removing-<name> and removed.
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

// Files of an unfinished save in the same place are removed first.
void create_files(FileSystem& files, const SavePlace& place, const CheckpointLayout& layout);

// A box of a tensor and its elements in row-major order.
struct Piece {
  Box box;
  const std::byte* data;
};

// A chunk as it was written, for the manifest.
struct WrittenChunk {
  std::size_t tensor;  // of the layout
  Chunk chunk;
};

// Writes the pieces of one process. One thread at a time.
class PieceWriter {
 public:
  // A chunk's largest size: what reading a single element costs.
  static constexpr std::int64_t kChunkBytes = std::int64_t{4} << 20;

  PieceWriter(FileSystem& files, const SavePlace& place, const CheckpointLayout& layout);

  // Writes pieces of a tensor, each of which becomes a chunk. Neighbouring runs are written together,
  // whichever piece they come from.
  void write(std::size_t tensor, std::span<const Piece> pieces);
  // Flushes every file to the disk: headers, too, which another may have written.
  void finish();
  const std::vector<WrittenChunk>& chunks() const { return chunks_; }

 private:
  struct Run {
    std::int64_t offset;  // bytes in the file
    const std::byte* data;
    std::size_t bytes;
  };
  // Bytes of a file from `offset` on, in memory as far behind a multiple of OutputFile::kBlock.
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
  std::future<void> flushed_;  // the disk works on one buffer while the next is filled; first to end
};

// A file carried along: "tokenizer/tokenizer.json" and its content.
struct ExtraFile {
  std::string name;
  std::string content;
};

// Makes the checkpoint valid. `manifest` has all but files, extras and tensors, which come from the layout
// and from `chunks` of all processes. A folder of that name is replaced.
void commit(FileSystem& files, const SavePlace& place, const CheckpointLayout& layout, Manifest manifest,
            std::span<const WrittenChunk> chunks, std::span<const ExtraFile> extras);

// Removes the checkpoints below `parent` but the newest `keep` (0: keeps all), and what unfinished saves
// left.
void prune(FileSystem& files, const std::string& parent, std::int64_t keep);

// One process writing whole tensors one after the other: what a save does, without ranks.
class CheckpointWriter {
 public:
  CheckpointWriter(FileSystem& files, SavePlace place, std::vector<StoredTensor> tensors);
  ~CheckpointWriter();  // without commit(): nothing stays behind
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  // In any order, each tensor once; shape and dtype as announced (CHECK).
  void write(const std::string& name, const Tensor& tensor);
  // After all tensors (CHECK).
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
