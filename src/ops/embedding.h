#pragma once

#include "autograd/op.h"

namespace switchyard {

// Rows of table [V,M] for tokens i32 [B,S] -> [B,S,M] in `want`. A table split over V is looked up locally;
// the parts that are zero elsewhere add up to the result.
Array embedding(Context& context, const Array& table, const Array& tokens, const Sharding& want);

}  // namespace switchyard
