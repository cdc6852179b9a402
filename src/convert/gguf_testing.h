// Writes GGUF files for tests.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/tensor.h"

namespace switchyard {

// Writes a GGUF file of float32 tensors, or of random Q8_0 blocks.
class GgufWriter {
 public:
  void text(const std::string& key, const std::string& value) {
    begin(key, 8);
    add_text(metadata_, value);
  }
  void integer(const std::string& key, std::uint32_t value) { begin(key, 4), add(metadata_, value); }
  void number(const std::string& key, float value) { begin(key, 6), add(metadata_, value); }
  void flag(const std::string& key, bool value) { begin(key, 7), metadata_ += static_cast<char>(value); }
  void flags(const std::string& key, const std::vector<bool>& values) {
    begin(key, 9), add(metadata_, std::uint32_t{7});
    add(metadata_, static_cast<std::uint64_t>(values.size()));
    for (const bool value : values) metadata_ += static_cast<char>(value);
  }
  void tensor(const std::string& name, const Shape& shape, const Tensor& values) {
    ASSERT_EQ(num_elements(shape), values.size()) << name;
    describe(name, shape, 0);
    data_.append(reinterpret_cast<const char*>(values.raw()), values.bytes());
    end();
  }
  void random_blocks(const std::string& name, const Shape& shape) {
    describe(name, shape, 8);
    for (std::int64_t block = 0; block < num_elements(shape) / 32; ++block) {
      add(data_, static_cast<std::uint16_t>(0x2000 + next() % 0x1000));  // a scale: 2^-7 to 2^-3
      for (int i = 0; i < 32; ++i) data_ += static_cast<char>(next() % 255 - 127);
    }
    end();
  }
  std::string bytes() const {
    std::string file = "GGUF";
    add(file, std::uint32_t{3}), add(file, tensors_), add(file, entries_);
    file += metadata_ + described_;
    file.resize((file.size() + 31) / 32 * 32);
    return file + data_;
  }

 private:
  template <typename T>
  static void add(std::string& to, T value) {
    to.append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  static void add_text(std::string& to, const std::string& value) {
    add(to, static_cast<std::uint64_t>(value.size()));
    to += value;
  }
  void begin(const std::string& key, std::uint32_t type) {
    add_text(metadata_, key), add(metadata_, type);
    ++entries_;
  }
  void describe(const std::string& name, const Shape& shape, std::uint32_t type) {
    add_text(described_, name);
    add(described_, static_cast<std::uint32_t>(shape.size()));
    for (std::size_t d = shape.size(); d-- > 0;) add(described_, static_cast<std::uint64_t>(shape[d]));
    add(described_, type), add(described_, static_cast<std::uint64_t>(data_.size()));
    ++tensors_;
  }
  void end() { data_.resize((data_.size() + 31) / 32 * 32); }
  std::uint32_t next() { return (state_ = state_ * 1664525u + 1013904223u) >> 8; }

  std::string metadata_, described_, data_;
  std::uint64_t tensors_ = 0, entries_ = 0;
  std::uint32_t state_ = 1;
};

}  // namespace switchyard
