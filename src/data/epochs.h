// Data that ends.
#pragma once

#include <memory>

#include "data/dataset.h"

namespace switchyard {

// The first `rows` rows of `data`, then padding, so that a last batch that they do not fill trains on each of
// them once.
std::unique_ptr<Dataset> make_ending(std::unique_ptr<Dataset> data, std::int64_t rows);

}  // namespace switchyard
