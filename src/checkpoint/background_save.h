// BackgroundSave: one process's part of a save, written by a thread of its own while training goes on.
//
// 1. The ranks of the process add() their pieces; then one of them starts the writing.
// 2. The thread writes and flushes. Alone in its run it also commits; else the chunks of all processes have
//    to come together first, and the process that commits gets them by start_commit().
// 3. done() becomes true, or what went wrong is thrown by check() and wait() on whoever asks.
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
  std::size_t tensor;  // of the layout
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

  // Thread-safe. `memory` is what the pieces point into; it is held until they are written.
  void add(std::vector<TensorPiece> pieces, std::vector<Tensor> memory);
  // Writes what was added; `then` follows on the same thread.
  void start(const SavePlace& place, const Work& then);
  // Runs `work` on the thread, after start's is done.
  void start_commit(const Work& work);

  bool done() const { return !running_; }
  void wait();   // until done; throws what went wrong, on every caller
  void check();  // throws what has gone wrong so far
  const std::vector<WrittenChunk>& chunks() const { return chunks_; }  // once done

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
