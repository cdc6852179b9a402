// Selects the key and value heads that belong to a rank's query heads.
#pragma once

#include <vector>

#include "autograd/op.h"

namespace switchyard {

// The local key/value heads that this rank's query heads use: all of them, or a part when q is split further
// than k. When the parts do not align with groups, every query head gets its own
// copy. q [B,S,N,D], k [B,S,Nkv,D].
std::vector<std::int64_t> kv_heads_of(const Context& context, const ArrayInfo& q, const ArrayInfo& k);

// Takes these heads of x [B,S,N,D]; x itself if they are all of its heads.
Tensor take_heads(Context& context, const Tensor& x, const std::vector<std::int64_t>& heads);

// The transpose of take_heads, for the gradient of `whole` [B,S,N,D]: heads taken several times are summed,
// heads not taken are zero.
Tensor put_heads(Context& context, const Tensor& x, const std::vector<std::int64_t>& heads,
                 const Shape& whole);

// Replicates key heads [M,Nkv,D] -> [M,P,D] (or their bias or norm [Nkv,D] -> [P,D]), split over the mesh
// axes `axes`, whose product P is a multiple of Nkv: each shard has the head that its query heads read, so
// that no rank projects to other heads.
Array spread_heads(Context& context, const Array& weight, const Axes& axes);

}  // namespace switchyard
