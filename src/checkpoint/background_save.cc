#include "checkpoint/background_save.h"

#include <algorithm>
#include <iterator>

#include "core/error.h"

namespace switchyard {

BackgroundSave::~BackgroundSave() {
  if (thread_.joinable()) thread_.join();
}

void BackgroundSave::add(std::vector<TensorPiece> pieces, std::vector<Tensor> memory) {
  const std::scoped_lock lock(mutex_);
  std::move(pieces.begin(), pieces.end(), std::back_inserter(pieces_));
  std::move(memory.begin(), memory.end(), std::back_inserter(memory_));
}

void BackgroundSave::run(const Work& work) {
  CHECK(!running_);
  if (thread_.joinable()) thread_.join();
  running_ = true;
  thread_ = std::thread([this, work] {
    std::exception_ptr failure;
    try {
      work();
    } catch (...) {
      failure = std::current_exception();
    }
    const std::scoped_lock lock(mutex_);
    if (failure && !failure_) failure_ = failure;
    running_ = false;
    ended_.notify_all();
  });
}

void BackgroundSave::start(const SavePlace& place, const Work& then) {
  std::vector<TensorPiece> pieces;
  std::vector<Tensor> memory;
  {
    const std::scoped_lock lock(mutex_);
    pieces.swap(pieces_);
    memory.swap(memory_);
  }
  run([this, place, then, pieces = std::move(pieces), memory = std::move(memory)] {
    // Sorted by place in the files, so that neighbouring tensors are written together.
    std::vector<std::size_t> order(pieces.size());
    for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
    const auto key = [&](std::size_t i) {
      const CheckpointLayout::Place& at = layout_.place(pieces[i].tensor);
      return std::tuple(at.file, at.offset, pieces[i].tensor);
    };
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return key(a) < key(b); });
    PieceWriter writer(files_, place, layout_);
    std::vector<Piece> same;
    for (std::size_t i = 0; i < order.size();) {
      const std::size_t tensor = pieces[order[i]].tensor;
      same.clear();
      for (; i < order.size() && pieces[order[i]].tensor == tensor; ++i)
        same.push_back(pieces[order[i]].piece);
      writer.write(tensor, same);
    }
    writer.finish();
    chunks_ = writer.chunks();
    if (then) then();
  });
}

void BackgroundSave::start_commit(const Work& work) {
  run(work);
}

void BackgroundSave::wait() {
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [&] { return !running_; });
  if (failure_) std::rethrow_exception(failure_);
}

void BackgroundSave::check() {
  const std::scoped_lock lock(mutex_);
  if (failure_) std::rethrow_exception(failure_);
}

}  // namespace switchyard
