// The same function as a model that a Hugging Face family has: where a model of ours states something that no
// config.json can, a factor on some weights, or weights of zero, may say it instead.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "config/config.h"
#include "core/tensor.h"

namespace switchyard {

struct HubForm {
  Config config;  // of the model as it is written; config_to_hub() takes it
  // End of a parameter's name ("attention.query") -> what its elements are multiplied by.
  std::map<std::string, float> factors;
  // Whether both models give the same bits: every factor a power of two, every operation in the same order.
  bool same_bits = true;
  std::vector<std::string> notices;  // one line for each thing that is written in another way

  float factor_of(const std::string& parameter) const;  // 1 for most
};

// `config` unchanged where a family has it as it is, or where none ever will: that is for config_to_hub().
HubForm hub_form(const Config& config);

// The tensor times the factor, as `dtype`: computed in float32, rounded once.
Tensor scaled(const Tensor& tensor, float factor, DType dtype);

}  // namespace switchyard
