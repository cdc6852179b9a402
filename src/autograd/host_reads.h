// HostReads: how often a rank looked at data of its device from the host, by what it wanted to know.
//
// Each look makes the host wait for the device. So there are few, each has a name, and a test states how many
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
