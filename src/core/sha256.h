// SHA-256 of bytes that arrive in pieces (FIPS 180-4).
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace switchyard {

class Sha256 {
 public:
  using Digest = std::array<std::uint8_t, 32>;

  void add(std::span<const std::byte> bytes);
  // The hash of all added bytes. No bytes can be added afterwards, and it is asked for once.
  Digest digest();
  // The hash as 64 lower-case hexadecimal digits.
  std::string hex();

 private:
  void take_block(const std::uint8_t* block);

  std::array<std::uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::uint8_t, 64> block_{};
  std::uint64_t bytes_ = 0;
};

}  // namespace switchyard
