#pragma once

#include "autograd/op.h"

namespace switchyard {

// Looks up rows of table [V,M] for tokens i32 [B,S] -> [B,S,M] in `want`. A table split over V is looked up
// locally, with zeros for other ranks' rows; the sum of the parts is the result.
Array embedding(Context& context, const Array& table, const Array& tokens, const Sharding& want);

}  // namespace switchyard
