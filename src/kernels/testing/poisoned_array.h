// Arrays that show what a kernel does beside its work, for tests of kernels and `switchyard selftest`. Their
// elements start as NaN, so that one that is not written is seen. They stand between guards that are NaN as
// f32 and as bf16 and must survive: what is read outside spoils the result, what is written outside is seen.
// A fenced copy shows a read outside whose value is not used: touching what follows its end is a fault.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "core/tensor.h"

namespace switchyard {

// Bytes from the heap, aligned as a Tensor's, or, `fenced`, at the end of pages before one that must not be
// touched. A copy is as its original.
class FencedBytes {
 public:
  FencedBytes(std::size_t size, bool fenced);
  FencedBytes(const FencedBytes& other);
  FencedBytes(FencedBytes&&) noexcept = default;
  FencedBytes& operator=(FencedBytes other) noexcept;

  std::uint8_t* data() { return data_.get(); }
  const std::uint8_t* data() const { return data_.get(); }
  std::size_t size() const { return data_.get_deleter().size; }

 private:
  struct Release {
    std::size_t size;
    bool fenced;
    void operator()(std::uint8_t* data) const;
  };
  std::unique_ptr<std::uint8_t[], Release> data_;
};

// `count` elements of f32, bf16, or i32, i8 or f64 (which start as the guards' bits).
class PoisonedArray {
 public:
  PoisonedArray(DType dtype, std::int64_t count);

  // Integers in [-limit, limit]: exact in bf16 up to 256, and their sums in fp32 up to 2^24.
  static PoisonedArray integers(DType dtype, std::int64_t count, std::uint32_t seed, int limit = 3);

  // Integers below 2^bits over 2^bits, of either sign: with 8 bits, all that a bf16 has. Products of x and y
  // bits are multiples of 2^-(x + y), so sums of them below 2^(24 - x - y) are exact in fp32 in any order.
  static PoisonedArray fractions(DType dtype, std::int64_t count, std::uint32_t seed, int bits);

  // Normally distributed values.
  static PoisonedArray normal(DType dtype, std::int64_t count, std::uint32_t seed, float scale = 1.0f);

  // A copy that lives on a device: view() is of the device's memory, guards and all. read_back() brings what
  // is there to where the other functions look.
  PoisonedArray on(Device& device) const;
  void read_back();
  Memory memory() const { return there_ ? there_->memory() : Memory(); }

  // A copy with a fence instead of the guard at its end. Its alignment is that of an element.
  PoisonedArray fenced() const { return {*this, true}; }

  DType dtype() const { return dtype_; }
  std::int64_t size() const { return count_; }
  void* data() { return bytes_.data() + kGuard; }
  const void* data() const { return bytes_.data() + kGuard; }
  TensorView view(const Shape& shape) const;
  TensorView view() const { return view({size()}); }
  float* floats() { return static_cast<float*>(data()); }
  const float* floats() const { return static_cast<const float*>(data()); }

  float at(std::int64_t i) const;  // f32 or bf16
  void set(std::int64_t i, float value);
  double value(std::int64_t i) const;  // of any dtype

  bool guards_intact() const;
  // True if both have the same bits and intact guards.
  bool operator==(const PoisonedArray& other) const;

 private:
  static constexpr std::size_t kGuard = 256;  // bytes: some vectors, and whole ones

  PoisonedArray(const PoisonedArray& other, bool fenced);

  std::size_t data_bytes() const { return static_cast<std::size_t>(count_) * size_of(dtype_); }

  DType dtype_;
  std::int64_t count_;
  FencedBytes bytes_;              // guard, elements, guard or nothing
  std::shared_ptr<Buffer> there_;  // the same, on a device
};

// |found - expected| <= relative * |expected| + absolute; with both 0 they must be equal (-0 is
// 0). A NaN equals nothing.
struct Bound {
  double relative = 0;
  double absolute = 0;
};

// The first element that is out of bounds. `rounding`, where not empty, is added to each element's bound.
// CHECKs equal sizes.
std::optional<std::int64_t> first_difference(const PoisonedArray& found, const PoisonedArray& expected,
                                             const Bound& bound, std::span<const double> rounding = {});

}  // namespace switchyard
