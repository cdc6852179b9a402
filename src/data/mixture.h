// Several datasets as one.
#pragma once

#include <memory>
#include <vector>

#include "data/dataset.h"

namespace switchyard {

// Rows of the parts in fixed shares. Weights are positive, of any sum; they are kept as 1/65536ths, none
// below one. Every 65536 rows hold each part's share exactly, spread evenly, so that every batch is close to
// it; each part goes through its own epochs. What stands at a position depends on it and the weights only.
std::unique_ptr<Dataset> make_mixture(std::vector<std::unique_ptr<Dataset>> parts,
                                      const std::vector<double>& weights);

// One held-out part after the other, then padding.
std::unique_ptr<Dataset> make_concatenation(std::vector<std::unique_ptr<Dataset>> parts);

}  // namespace switchyard
