// How many of a text's drafts the model is to read. A call of several tokens reads the weights of all experts
// that any of them goes to, so drafts cost more the more experts a model has, and less the more texts share
// the call. Drafts are read as long as they give more tokens for what the call reads than a call without.
#pragma once

#include <cstdint>

#include "models/model_config.h"

namespace switchyard::texts {

// Numbers of weights that a call reads: those that it reads in any case, and of the routed experts those that
// a token chooses. By default drafts cost nothing.
struct CallCost {
  double always = 1, experts = 0;
  double chosen = 0;  // share of the experts that one token chooses
  double work = 0;    // of one token, in weights that could be read meanwhile

  // The cost of so many tokens, with the union of the experts that they choose apart from each other.
  double of(double tokens) const;
};
CallCost call_cost(const ModelConfig& model);

// The share of a text's drafts that are right. Later drafts count more.
class DraftRate {
 public:
  // `right` drafts of a call were right; then came one that was wrong, or none.
  void add(std::int64_t right, bool one_wrong);
  double share() const { return right_ / tried_; }

 private:
  double right_ = 1.5, tried_ = 2;  // a text begins with hope
};

// Returns the number of drafts, up to `most`, that gives most tokens for a call's cost where each of `texts`
// texts has so many and that share of them is right.
std::int64_t drafts_worth(const CallCost& cost, double right, std::int64_t most, std::int64_t texts);

}  // namespace switchyard::texts
