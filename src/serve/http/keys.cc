#include "serve/http/keys.h"

#include <fstream>

#include "core/error.h"
#include "core/sha256.h"

namespace switchyard::http {

Keys::Sum Keys::sum_of(std::string_view key) {
  Sha256 sum;
  sum.add(std::as_bytes(std::span(key)));
  return sum.digest();
}

void Keys::add(std::string_view key) {
  sums_.push_back(sum_of(key));
}

std::optional<std::size_t> Keys::find(std::string_view given) const {
  const Sum sum = sum_of(given);
  std::optional<std::size_t> found;
  for (std::size_t i = 0; i < sums_.size(); ++i) {
    int differs = 0;
    for (std::size_t byte = 0; byte < sum.size(); ++byte) differs |= sums_[i][byte] ^ sum[byte];
    if (differs == 0) found = i;
  }
  return found;
}

void add_keys_of_file(const std::string& file, Keys& keys) {
  std::ifstream lines(file);
  bool has_any = false;
  for (std::string line; std::getline(lines, line);) {
    const std::size_t begin = line.find_first_not_of(" \t\r");
    if (begin == std::string::npos || line[begin] == '#') continue;
    keys.add(std::string_view(line).substr(begin, line.find_last_not_of(" \t\r") + 1 - begin));
    has_any = true;
  }
  if (!has_any) fail_usage("[serve] {}: expected a file with a key a line", file);
}

}  // namespace switchyard::http
