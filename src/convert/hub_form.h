// Restates our model as an equal one that a Hugging Face family has. A setting that no config.json can state
// may be stated by a factor on some weights, or by zero weights.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "config/config.h"
#include "core/tensor.h"

namespace switchyard {

struct HubForm {
  Config config;  // config of the model as it is written; the input of config_to_hub()
  // End of a parameter's name ("attention.query") -> the factor on its elements.
  std::map<std::string, float> factors;
  // End of a parameter's name -> how many columns of the last dim have the factor, where not all have it.
  std::map<std::string, std::int64_t> columns;
  // True when both models give the same bits: factors are powers of two, and operations keep their order.
  bool same_bits = true;
  std::vector<std::string> notices;  // one line for each setting that is written in another way

  float factor_of(const std::string& parameter) const;          // 1 for most
  std::int64_t columns_of(const std::string& parameter) const;  // 0: all
};

// `config` unchanged when a family has it as it is, or none ever will (config_to_hub() reports that).
HubForm hub_form(const Config& config);

// The tensor times the factor as `dtype`: computed in float32, rounded once. `columns`: only so many of the
// last dim have the factor; 0: all.
Tensor scaled(const Tensor& tensor, float factor, DType dtype, std::int64_t columns = 0);

}  // namespace switchyard
