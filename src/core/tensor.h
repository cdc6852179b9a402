// Tensor: a dense, contiguous, row-major block of a device's memory.
//
// A Tensor is a handle: copies share the buffer. Buffers are 64-byte aligned and counted by `memory_in_use`
// and `memory_peak` (bytes, whole process) and by their rank's account. Kernels take view(); data<T>() and
// raw() are for the host, and throw HostAccess when the memory is not the host's. Tensors of the abstract
// device have sizes and no memory: code may compute with their addresses but not read or write there.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/device.h"
#include "core/dtype.h"
#include "core/error.h"
#include "core/tensor_view.h"

namespace switchyard {

// Thrown when the host accesses memory it cannot reach, for example an op that reads a tensor directly.
class HostAccess : public Error {
 public:
  explicit HostAccess(std::string_view device);
};

class Buffer {
 public:
  Buffer(const Memory& memory, std::size_t bytes);
  // Scratch of a kernel: memory of the host, or abstract memory, charged to the thread's rank.
  explicit Buffer(std::size_t bytes);
  // Memory of the host that `owner` keeps alive: read only, and charged to no rank.
  Buffer(std::shared_ptr<const void> owner, std::span<const std::byte> bytes);
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  std::byte* data() { return data_; }  // an address of the device
  std::size_t bytes() const { return bytes_; }
  const Memory& memory() const { return memory_; }
  Device& device() const { return memory_.device(); }
  bool abstract() const { return device().is_abstract(); }
  // For memory that several ranks read: no rank may add to it in place.
  void make_read_only() { read_only_ = true; }
  bool read_only() const { return read_only_; }

 private:
  Memory memory_;
  std::shared_ptr<const void> owner_;  // keeps memory alive that the device did not allocate
  bool read_only_ = false;
  std::byte* data_;
  std::size_t bytes_;
};

std::size_t memory_in_use();
std::size_t memory_peak();
void reset_memory_peak();
std::size_t memory_reserved();  // bytes of addresses that are reserved for tensors and that none has now
std::size_t memory_extent();  // bytes of addresses ever used: constant while freed memory is recycled

class Tensor {
 public:
  Tensor() = default;
  Tensor(DType dtype, Shape shape);                        // uninitialised
  Tensor(const Memory& memory, DType dtype, Shape shape);  // uninitialised
  Tensor(DType dtype, Shape shape, std::shared_ptr<Buffer> buffer, std::size_t offset_bytes = 0);

  static Tensor zeros(DType dtype, Shape shape);
  template <typename T>
  static Tensor of(const Shape& shape, std::span<const T> values) {
    Tensor t(dtype_of<T>::value, shape);
    CHECK(static_cast<std::int64_t>(values.size()) == t.size(), "{} values for shape {}", values.size(),
          to_string(shape));
    if (!t.abstract()) std::copy(values.begin(), values.end(), t.data<T>());
    return t;
  }

  bool defined() const { return buffer_ != nullptr; }
  bool abstract() const { return buffer_ != nullptr && buffer_->abstract(); }
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  std::int64_t dim(std::size_t i) const { return shape_[i]; }
  std::size_t rank() const { return shape_.size(); }
  std::int64_t size() const { return num_elements(shape_); }
  std::size_t bytes() const { return static_cast<std::size_t>(size()) * size_of(dtype_); }
  const std::shared_ptr<Buffer>& buffer() const { return buffer_; }
  std::size_t offset_bytes() const { return offset_; }

  template <typename T>
  T* data() const {
    CHECK(dtype_of<T>::value == dtype_, "tensor is {}", name_of(dtype_));
    return reinterpret_cast<T*>(raw());
  }
  template <typename T>
  std::span<T> span() const {
    return {data<T>(), static_cast<std::size_t>(size())};
  }
  std::byte* raw() const {
    if (buffer_ == nullptr) return nullptr;
    if (!buffer_->device().is_host() && !buffer_->device().is_abstract())
      throw HostAccess(buffer_->device().name());
    return address();
  }
  // The view that kernels take. An undefined tensor gives an undefined view.
  TensorView view() const {
    if (buffer_ == nullptr) return {};
    return {dtype_, shape_, address(), buffer_->device()};
  }
  const Memory& memory() const { return buffer_->memory(); }  // the tensor must be defined

  Tensor reshaped(Shape shape) const;                             // same elements, shares the buffer
  Tensor slice_rows(std::int64_t begin, std::int64_t end) const;  // along dim 0, shares the buffer
  Tensor clone() const;                                           // copies the data, within the same memory
  Tensor cast(DType dtype) const;  // f32 <-> bf16; shares the buffer when the dtype is the same
  void fill_zero();

 private:
  std::byte* address() const {
    return reinterpret_cast<std::byte*>(reinterpret_cast<std::uintptr_t>(buffer_->data()) + offset_);
  }

  DType dtype_ = DType::f32;
  Shape shape_;
  std::shared_ptr<Buffer> buffer_;
  std::size_t offset_ = 0;
};

// Copies between memories: data that enters a device, and results read back from it.
void copy(const TensorView& from, const TensorView& to);  // equal sizes, neither with gaps
Tensor to_host(const Tensor& x);                          // x itself where the host can read it
Tensor to_device(const Memory& memory,
                 const Tensor& host);  // `host` itself where that is the memory's device

}  // namespace switchyard
