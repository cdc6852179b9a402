// HostReads: counts how often a rank reads device data from the host, by the name of the value read.
//
// Each read makes the host wait for the device. So there are few, each has a name, and a test states how many
// a step has.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

namespace switchyard {

class HostReads {
 public:
  void add(std::string_view what) { ++counts_[std::string(what)]; }
  const std::map<std::string, std::int64_t>& counts() const { return counts_; }
  void reset() { counts_.clear(); }

 private:
  std::map<std::string, std::int64_t> counts_;
};

}  // namespace switchyard
