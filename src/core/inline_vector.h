// InlineVector: at most N elements, stored in the object itself. The metadata of an op's arrays (shapes,
// axes) is copied often and is short, so it should not allocate on the heap.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <iterator>
#include <type_traits>
#include <utility>

#include "core/error.h"

namespace switchyard {

// The used part of std::vector's interface. T is trivially copyable; more than N elements fail a CHECK.
template <typename T, std::size_t N>
class InlineVector {
 public:
  static_assert(std::is_trivially_copyable_v<T> && N < 256);
  using value_type = T;
  using iterator = T*;
  using const_iterator = const T*;
  static constexpr std::size_t kCapacity = N;

  InlineVector() = default;
  explicit InlineVector(std::size_t size, const T& value = T()) { resize(size, value); }
  template <std::input_iterator It>
  InlineVector(It first, It last) {
    for (; first != last; ++first) push_back(*first);
  }
  InlineVector(std::initializer_list<T> items) : InlineVector(items.begin(), items.end()) {}

  std::size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T* data() { return items_; }
  const T* data() const { return items_; }
  T* begin() { return items_; }
  const T* begin() const { return items_; }
  T* end() { return items_ + size_; }
  const T* end() const { return items_ + size_; }
  T& operator[](std::size_t i) { return items_[i]; }
  const T& operator[](std::size_t i) const { return items_[i]; }
  const T& front() const { return items_[0]; }
  T& back() { return items_[size_ - 1]; }
  const T& back() const { return items_[size_ - 1]; }

  bool contains(const T& item) const { return std::find(begin(), end(), item) != end(); }

  void push_back(const T& item) {
    const T copy = item;  // `item` may be an element of this vector
    grow(1);
    back() = copy;
  }
  template <typename... Arguments>
  void emplace_back(Arguments&&... arguments) {
    push_back(T(std::forward<Arguments>(arguments)...));
  }
  void pop_back() { --size_; }
  void clear() { size_ = 0; }
  void resize(std::size_t size, const T& value = T()) {
    while (size_ < size) push_back(value);
    size_ = static_cast<std::uint8_t>(size);
  }
  // `first` and `last` must not point into this vector.
  template <std::input_iterator It>
  void insert(const T* where, It first, It last) {
    const auto at = where - items_, before = end() - items_;
    for (; first != last; ++first) push_back(*first);
    std::rotate(items_ + at, items_ + before, end());
  }
  void insert(const T* where, const T& item) {
    const T copy = item;
    insert(where, &copy, &copy + 1);
  }
  void erase(const T* first, const T* last) {
    T* const at = items_ + (first - items_);
    size_ = static_cast<std::uint8_t>(std::copy(last, static_cast<const T*>(end()), at) - items_);
  }

  bool operator==(const InlineVector& other) const {
    return std::equal(begin(), end(), other.begin(), other.end());
  }
  bool operator<(const InlineVector& other) const {
    return std::lexicographical_compare(begin(), end(), other.begin(), other.end());
  }

 private:
  void grow(std::size_t by) {
    CHECK(size_ + by <= N, "{} elements where there may be {}", size_ + by, N);
    size_ = static_cast<std::uint8_t>(size_ + by);
  }

  T items_[N]{};
  std::uint8_t size_ = 0;
};

template <typename T, std::size_t N, typename Predicate>
void erase_if(InlineVector<T, N>& items, const Predicate& predicate) {
  items.erase(std::remove_if(items.begin(), items.end(), predicate), items.end());
}

}  // namespace switchyard
