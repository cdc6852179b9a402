// AdapterInspection: the weights that an adapter changes, and how far, for `switchyard inspect`.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace switchyard {

struct AdapterInspection {
  struct Weight {
    std::string name;  // ours
    std::int64_t rank = 0;
    double scale = 0;
    double change = 0;  // norm of scale · a·b over the norm of the weight, of a stack as a whole
  };
  std::string path, base;
  std::int64_t parameters = 0;
  std::vector<Weight> weights;     // by name
  std::vector<std::string> whole;  // weights that the adapter has in place of the base's
};

// True for a folder of PEFT, and for a run or a checkpoint that holds an adapter alone.
bool is_adapter(const std::string& path);
// Returns the base that the adapter names; "" where it names none, or none that is here.
std::string base_of_adapter(const std::string& path);
// Reads the adapter and each weight that it changes, one after the other. Error(usage) for a base that is
// no model or another one.
AdapterInspection inspect_adapter(const std::string& path, const std::string& base);

std::string adapter_text(const AdapterInspection& inspection, bool all);
nlohmann::json adapter_json(const AdapterInspection& inspection);

}  // namespace switchyard
