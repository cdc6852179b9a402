// TensorView: the operand of a kernel: a block of a device's memory, its dtype, its shape and its strides.
//
// A view owns nothing. Its address is the device's: only kernels, copies and collectives convert it to
// memory, by kernel_data(). Code above them passes views on and never reads through them; on a fenced device
// (core/device.h) such a read faults.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/device.h"
#include "core/dtype.h"
#include "core/error.h"
#include "core/shape.h"

namespace switchyard {

class TensorView;
[[noreturn]] void no_gpu_kernel(const TensorView& view);

class TensorView {
 public:
  // An undefined view: an operand that is not given.
  TensorView() = default;
  // A row-major view without gaps.
  TensorView(DType dtype, const Shape& shape, std::byte* address, const Device& device)
      : address_(address), device_(&device), dtype_(dtype), shape_(shape) {
    strides_.resize(shape.size());
    std::int64_t stride = 1;
    for (std::size_t i = shape.size(); i-- > 0; stride *= shape[i]) strides_[i] = stride;
  }
  // A view of the host's memory, for tests and tools.
  template <typename T>
  static TensorView of_host(const T* data, const Shape& shape) {
    return of_host(dtype_of<T>::value, data, shape);
  }
  static TensorView of_host(DType dtype, const void* data, const Shape& shape) {
    return {dtype, shape, static_cast<std::byte*>(const_cast<void*>(data)), Device::cpu()};
  }

  // A view of the host's memory with strides (in elements).
  static TensorView of_host(DType dtype, const void* data, const Shape& shape, const Shape& strides) {
    return of_host(dtype, data, shape).block(0, shape, strides);
  }

  bool defined() const { return address_ != nullptr; }
  bool is_abstract() const { return device_ != nullptr && device_->is_abstract(); }
  // True when a GPU's kernels work on this memory.
  bool on_gpu() const { return device_ != nullptr && device_->is_gpu(); }
  const Device& device() const { return *device_; }  // the view must be defined
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  const Shape& strides() const { return strides_; }
  std::size_t rank() const { return shape_.size(); }
  std::int64_t dim(std::size_t i) const { return shape_[i]; }
  std::int64_t stride(std::size_t i) const { return strides_[i]; }  // elements
  std::int64_t size() const {
    std::int64_t n = 1;
    for (const std::int64_t d : shape_) n *= d;
    return n;
  }
  std::size_t bytes() const { return static_cast<std::size_t>(size()) * size_of(dtype_); }
  bool is_contiguous() const {
    std::int64_t stride = 1;
    for (std::size_t i = shape_.size(); i-- > 0; stride *= shape_[i]) {
      if (shape_[i] != 1 && strides_[i] != stride) return false;
    }
    return true;
  }

  // A view of these elements with another shape. Only for a view without gaps.
  TensorView reshaped(const Shape& shape) const {
    TensorView view(dtype_, shape, address_, *device_);
    CHECK(is_contiguous() && view.size() == size(), "{} elements as {}", size(), view.size());
    return view;
  }
  // The view with its dims permuted: dim j of the result is dim order[j].
  TensorView permuted(const std::vector<std::size_t>& order) const {
    TensorView view = *this;
    for (std::size_t i = 0; i < order.size(); ++i) {
      view.shape_[i] = shape_[order[i]];
      view.strides_[i] = strides_[order[i]];
    }
    return view;
  }
  // Elements [begin, begin + count) along dim `dim`.
  TensorView slice(std::size_t dim, std::int64_t begin, std::int64_t count) const {
    CHECK(begin >= 0 && begin + count <= shape_[dim], "[{}, {}) of {}", begin, begin + count, shape_[dim]);
    TensorView view = *this;
    view.address_ = at(begin * strides_[dim]);
    view.shape_[dim] = count;
    return view;
  }
  // The view with dim `dim`, of n·m elements, split into two dims [n, m].
  TensorView split(std::size_t dim, std::int64_t n) const {
    CHECK(n > 0 && shape_[dim] % n == 0, "{} elements in {} parts", shape_[dim], n);
    TensorView view = *this;
    const std::int64_t m = shape_[dim] / n;
    view.shape_[dim] = m;
    view.shape_.insert(view.shape_.begin() + dim, n);
    view.strides_.insert(view.strides_.begin() + dim, m * strides_[dim]);
    return view;
  }
  // The block that begins `elements` further, with its own shape and strides (in elements).
  TensorView block(std::int64_t elements, const Shape& shape, const Shape& strides) const {
    TensorView view = *this;
    view.address_ = at(elements);
    view.shape_ = shape;
    view.strides_ = strides;
    return view;
  }
  // The memory that begins `bytes` bytes further, as elements of another type.
  TensorView as(DType dtype, std::int64_t bytes, const Shape& shape) const {
    return {dtype, shape, at(bytes / static_cast<std::int64_t>(size_of(dtype_))), *device_};
  }
  // Rows [begin, end) along dim 0.
  TensorView rows(std::int64_t begin, std::int64_t end) const { return slice(0, begin, end - begin); }

  // The address of the elements, for kernels of the CPU only. Null for an undefined view. Error(runtime) when
  // only a GPU's kernels can reach it: the op has no GPU kernel for this case.
  std::byte* kernel_address() const {
    if (on_gpu()) no_gpu_kernel(*this);
    return device_address();
  }
  // The address on any device, for copies, collectives and kernels of a GPU.
  std::byte* device_address() const {
    return address_ == nullptr ? nullptr : device_->kernel_address(address_);
  }
  template <typename T>
  T* device_data() const {
    CHECK(address_ == nullptr || dtype_of<T>::value == dtype_, "view is {}", name_of(dtype_));
    return reinterpret_cast<T*>(device_address());
  }
  template <typename T>
  T* kernel_data() const {
    CHECK(address_ == nullptr || dtype_of<T>::value == dtype_, "view is {}", name_of(dtype_));
    return reinterpret_cast<T*>(kernel_address());
  }

 private:
  std::byte* at(std::int64_t elements) const {
    return reinterpret_cast<std::byte*>(
        reinterpret_cast<std::uintptr_t>(address_) +
        static_cast<std::uintptr_t>(elements * static_cast<std::int64_t>(size_of(dtype_))));
  }

  std::byte* address_ = nullptr;
  const Device* device_ = nullptr;
  DType dtype_ = DType::f32;
  Shape shape_, strides_;
};

}  // namespace switchyard
