// BackgroundSave: one process's part of a save, written by its own thread while training continues.
//
// 1. The ranks of the process add() their pieces; then one of them starts the writing.
// 2. The thread writes and flushes. In a run of one process it also commits. With several processes, the
//    chunks of all processes are collected first, and the committing process receives them by start_commit().
// 3. done() becomes true; after a failure, check() and wait() throw it to every caller.
#pragma once

#include <atomic>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <tuple>
#include <vector>

#include "checkpoint/save.h"
#include "core/tensor.h"

namespace switchyard {

struct TensorPiece {
  std::size_t tensor;  // index in the layout
  Piece piece;
};

class BackgroundSave {
 public:
  using Work = std::function<void()>;

  BackgroundSave(FileSystem& files, CheckpointLayout layout) : files_(files), layout_(std::move(layout)) {}
  ~BackgroundSave();
  BackgroundSave(const BackgroundSave&) = delete;
  BackgroundSave& operator=(const BackgroundSave&) = delete;

  const CheckpointLayout& layout() const { return layout_; }
  FileSystem& files() const { return files_; }

  // Thread-safe. `memory` owns the data that the pieces point into; it is held until they are written.
  void add(std::vector<TensorPiece> pieces, std::vector<Tensor> memory);
  // Writes the added pieces; `then` runs afterwards on the same thread.
  void start(const SavePlace& place, const Work& then);
  // Runs `work` on the thread, after the work of start() is done.
  void start_commit(const Work& work);

  bool done() const { return !running_; }
  void wait();   // until done; throws the failure, to every caller
  void check();  // throws the failure, if there is one so far
  const std::vector<WrittenChunk>& chunks() const { return chunks_; }  // valid once done

 private:
  void run(const Work& work);

  FileSystem& files_;
  const CheckpointLayout layout_;
  std::mutex mutex_;  // guards pieces_, memory_, failure_
  std::condition_variable ended_;
  std::vector<TensorPiece> pieces_;
  std::vector<Tensor> memory_;
  std::exception_ptr failure_;
  std::vector<WrittenChunk> chunks_;
  std::atomic<bool> running_{false};
  std::thread thread_;
};

}  // namespace switchyard
