// Arrays that show what a kernel does beside its work, for tests of kernels and `switchyard selftest`. Their
// elements start as NaN, so that one that is not written is seen. They stand between guards that are NaN as
// f32 and as bf16 and must survive: what is read outside spoils the result, what is written outside is seen.
// What is read outside and not used is seen by a fenced copy: to touch what follows its end is a fault.
#pragma once

#include <cstdint>
#include <new>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

#include "core/dtype.h"

namespace switchyard {

std::uint8_t* take_fenced(std::size_t bytes);
void give_back_fenced(std::uint8_t* memory, std::size_t bytes);

// Bytes from the heap, aligned as a Tensor's, or, `fenced`, at the end of pages before one that must not be
// touched.
template <typename T>
struct FencedAllocator {
  static_assert(sizeof(T) == 1);
  static constexpr std::align_val_t kAlignment{64};
  using value_type = T;
  using propagate_on_container_copy_assignment = std::true_type;
  using propagate_on_container_move_assignment = std::true_type;

  T* allocate(std::size_t bytes) {
    return fenced ? take_fenced(bytes) : static_cast<T*>(::operator new(bytes, kAlignment));
  }
  void deallocate(T* memory, std::size_t bytes) {
    fenced ? give_back_fenced(memory, bytes) : ::operator delete(memory, kAlignment);
  }
  bool operator==(const FencedAllocator&) const = default;

  bool fenced = false;
};

// `count` elements of f32, bf16 or i32 (which start as the guards' bits).
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

  // A copy with a fence instead of the guard at its end. Its alignment is that of an element.
  PoisonedArray fenced() const;

  DType dtype() const { return dtype_; }
  std::int64_t size() const { return count_; }
  void* data() { return bytes_.data() + kGuard; }
  const void* data() const { return bytes_.data() + kGuard; }
  float* floats() { return static_cast<float*>(data()); }
  const float* floats() const { return static_cast<const float*>(data()); }

  float at(std::int64_t i) const;  // f32 or bf16
  void set(std::int64_t i, float value);
  double value(std::int64_t i) const;  // of any dtype

  bool guards_intact() const;
  // The same bits, and the guards of both are intact.
  bool operator==(const PoisonedArray& other) const;

 private:
  static constexpr std::size_t kGuard = 256;  // bytes: some vectors, and whole ones

  std::size_t data_bytes() const { return static_cast<std::size_t>(count_) * size_of(dtype_); }

  DType dtype_;
  std::int64_t count_;
  std::vector<std::uint8_t, FencedAllocator<std::uint8_t>> bytes_;  // guard, elements, guard or nothing
};

// |found - expected| <= relative * |expected| + absolute; with both 0 they must be equal (-0 is 0). A NaN
// equals nothing.
struct Bound {
  double relative = 0;
  double absolute = 0;
};

// The first element that is out of bounds. `rounding`, where not empty, is added to each element's bound.
// CHECKs equal sizes.
std::optional<std::int64_t> first_difference(const PoisonedArray& found, const PoisonedArray& expected,
                                             const Bound& bound, std::span<const double> rounding = {});

}  // namespace switchyard
