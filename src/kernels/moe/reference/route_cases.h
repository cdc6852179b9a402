// Routing rules of the models that there are, for tests of route.h and `switchyard selftest`.
#pragma once

#include <string>
#include <vector>

#include "kernels/moe/route.h"

namespace switchyard::reference {

struct NamedRule {
  const char* name;
  RoutingRule rule;
  bool bias = false;
};

// For a number of experts that 4 divides.
inline std::vector<NamedRule> routing_rules() {
  const RoutingRule softmax{.score = RouterScore::softmax, .softmax_over_selected = false};
  std::vector<NamedRule> all{{"softmax over selected", {}}, {"softmax", softmax}, {"normalised", softmax}};
  all.back().rule.normalise = true;
  all.push_back({"scaled, in groups", softmax});
  all.back().rule.scaling = 16;
  all.back().rule.groups = 4;
  all.back().rule.kept_groups = 2;
  RoutingRule sigmoid{.score = RouterScore::sigmoid,
                      .softmax_over_selected = false,
                      .normalise = true,
                      .normalise_epsilon = 1e-20f,
                      .scaling = 2.5f};
  all.push_back({"sigmoid with bias", sigmoid, true});
  sigmoid.groups = 4;
  sigmoid.kept_groups = 2;
  all.push_back({"sigmoid with bias, in groups", sigmoid, true});
  sigmoid.weights_include_bias = true;
  all.push_back({"weights of biased sigmoid", sigmoid, true});
  sigmoid.weights_include_bias = false;
  sigmoid.score = RouterScore::sqrt_softplus;
  all.push_back({"square root of softplus with bias, in groups", sigmoid, true});
  all.push_back({"sigmoid of the largest logits",
                 {.score = RouterScore::sigmoid, .softmax_over_selected = false, .choose_by_logit = true}});
  return all;
}

}  // namespace switchyard::reference
