// Upload: tensors of the host on their way to a GPU, by a small ring of pinned buffers. The pool's threads
// fill the next buffer while the GPU copies the last one, so that neither waits for the other, and no copy
// begins in memory that the GPU cannot reach by itself. An emulated GPU runs the same code; its copies are
// done when they are started.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/gpu.h"
#include "core/offload.h"
#include "core/tensor.h"
#include "core/thread_pool.h"

namespace switchyard {

class Upload {
 public:
  static constexpr std::int64_t kBufferBytes = std::int64_t{16} << 20;

  // `device`: memory of a GPU. `buffer_bytes`: a multiple of 64. The pool must outlive the object.
  Upload(const Memory& device, ThreadPool& pool, std::int64_t buffer_bytes = kBufferBytes);
  ~Upload();
  Upload(const Upload&) = delete;
  Upload& operator=(const Upload&) = delete;

  // A tensor on the device with the values of `host` (memory of the host) as `dtype`: its own, or between f32
  // and bf16, which is cast on the way as Tensor::cast does it. Work issued from now on may read it; `host`
  // may be released at once.
  Tensor send(const Tensor& host, DType dtype);
  // Does the same into memory that exists: of the host's size, without gaps, of the wanted dtype.
  void send(const Tensor& host, const TensorView& to);
  // Returns when all copies are done.
  void finish();

 private:
  struct Slot {
    Tensor buffer;
    gpu::Moment copied;  // when the GPU has read what was filled in last
    bool is_filled = false;
  };
  Slot& next_slot();

  const HostMemory pinned_;
  ThreadPool& pool_;
  const std::int64_t buffer_bytes_;
  std::vector<Slot> slots_;
  std::size_t next_ = 0;
};

}  // namespace switchyard
