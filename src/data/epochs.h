// Datasets with an end.
#pragma once

#include <memory>

#include "data/dataset.h"

namespace switchyard {

// Gives the first `rows` rows of `data`, then padding, so that a last,
// partly filled batch trains on each row once.
std::unique_ptr<Dataset> make_ending(std::unique_ptr<Dataset> data, std::int64_t rows);

}  // namespace switchyard
