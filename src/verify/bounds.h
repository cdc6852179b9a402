// Bounds of a case: how far each kind of value may be off, relative to a tensor's largest magnitude.
#pragma once

#include <filesystem>
#include <optional>

#include "models/model_config.h"

namespace switchyard {

struct Bounds {
  double logits, hidden, router_weights, loss, gradients;  // of one pass
  double training_losses, training_norms;                  // while training
  double choices;  // how close to a tie another choice of experts or keys must be
  bool of_file = false;
};

// The bounds of a folder's case: those of its bounds.json, where there is one; for kinds that it does not
// name, the defaults. `tolerance`, where given, wins over both but for choices. Error(usage) for a file that
// is no object from kinds of values to positive numbers.
Bounds case_bounds(const std::filesystem::path& folder, const ModelConfig& model,
                   std::optional<double> tolerance);

}  // namespace switchyard
