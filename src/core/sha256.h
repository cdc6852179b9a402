// SHA-256 of bytes that come piece by piece.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

namespace switchyard {

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(const Sha256&) = delete;
  Sha256& operator=(const Sha256&) = delete;

  void add(std::span<const std::byte> bytes);
  // Of all that was added, as 64 lower-case hexadecimal digits. Nothing can be added after it.
  std::string hex();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace switchyard
