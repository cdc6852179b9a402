// Tensor: a dense, contiguous, row-major block of one rank's memory.
//
// A Tensor is a handle: copies share the buffer. Buffers are 64-byte aligned and counted by `memory_in_use`
// and `memory_peak` (bytes, whole process) and by the account of their rank. Element access through data<T>()
// checks the dtype. Tensors of an abstract account (core/memory_account.h) have a size and no memory: their
// addresses may be computed with but not read or written. In a run with data such a tensor stands for zeros:
// a rank's part of a sum that another rank holds as a whole.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "core/error.h"
#include "core/inline_vector.h"
#include "core/memory_account.h"

namespace switchyard {

// At most this many dims: nothing here has more, and a file with one that has is refused.
constexpr std::size_t kMostDims = 8;
using Shape = InlineVector<std::int64_t, kMostDims>;

std::int64_t num_elements(const Shape& shape);
std::string to_string(const Shape& shape);

class Buffer {
 public:
  explicit Buffer(std::size_t bytes);
  static std::shared_ptr<Buffer> without_memory(std::size_t bytes);  // abstract, and charged all the same
  ~Buffer();
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  std::byte* data() { return data_; }
  std::size_t bytes() const { return bytes_; }
  bool abstract() const { return abstract_; }
  // Of memory that several ranks read: nobody adds to it in place.
  void make_read_only() { read_only_ = true; }
  bool read_only() const { return read_only_; }

 private:
  Buffer(std::size_t bytes, bool abstract);
  std::shared_ptr<MemoryAccount> account_;  // what it is charged to, or null
  bool abstract_;
  bool read_only_ = false;
  std::byte* data_;
  std::size_t bytes_;
};

std::size_t memory_in_use();
std::size_t memory_peak();
void reset_memory_peak();
std::size_t memory_extent();  // bytes of addresses ever used: does not grow while freed memory is recycled

class Tensor {
 public:
  Tensor() = default;
  Tensor(DType dtype, Shape shape);  // uninitialised
  Tensor(DType dtype, Shape shape, std::shared_ptr<Buffer> buffer, std::size_t offset_bytes = 0);

  static Tensor zeros(DType dtype, Shape shape);
  static Tensor without_memory(DType dtype, Shape shape);  // abstract in any run
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
  std::byte* raw() const { return buffer_ ? buffer_->data() + offset_ : nullptr; }

  Tensor reshaped(Shape shape) const;                             // same elements, shares the buffer
  Tensor slice_rows(std::int64_t begin, std::int64_t end) const;  // along dim 0, shares the buffer
  Tensor clone() const;
  Tensor cast(DType dtype) const;  // f32 <-> bf16; shares the buffer when the dtype is the same
  void fill_zero();

 private:
  DType dtype_ = DType::f32;
  Shape shape_;
  std::shared_ptr<Buffer> buffer_;
  std::size_t offset_ = 0;
};

}  // namespace switchyard
