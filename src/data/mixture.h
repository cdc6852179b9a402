// Combines several datasets into one.
#pragma once

#include <memory>
#include <vector>

#include "data/dataset.h"

namespace switchyard {

// Mixes rows of the parts in fixed shares. Weights are positive, with any sum; they are rounded to
// 1/65536ths, at least one. Every 65536 rows hold each part's share exactly, spread evenly, so every batch is
// close to it; each part has its own epochs. The row at a position depends only on it and the weights.
std::unique_ptr<Dataset> make_mixture(std::vector<std::unique_ptr<Dataset>> parts,
                                      const std::vector<double>& weights);

// Joins held-out parts one after the other, then padding.
std::unique_ptr<Dataset> make_concatenation(std::vector<std::unique_ptr<Dataset>> parts);

}  // namespace switchyard
