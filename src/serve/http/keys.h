// The keys that clients show, known by their SHA-256 sums.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/sha256.h"

namespace switchyard::http {

class Keys {
 public:
  void add(std::string_view key);
  bool empty() const { return sums_.empty(); }
  // Returns which key `given` is. Takes as long for a wrong key as for a right one.
  std::optional<std::size_t> find(std::string_view given) const;

 private:
  using Sum = Sha256::Digest;
  static Sum sum_of(std::string_view key);

  std::vector<Sum> sums_;
};

// Adds the keys of a file: one a line, without the blanks around it; lines that begin with # and empty lines
// are none. Error(usage) where it cannot be read or has no key. The message shows nothing of the file.
void add_keys_of_file(const std::string& file, Keys& keys);

}  // namespace switchyard::http
