// Which key and value heads go with a rank's query heads.
#pragma once

#include <vector>

#include "autograd/op.h"

namespace switchyard {

// The local key/value heads that this rank's query heads use: all of them, or a part when q is split further
// than k. Where the parts do not fall between groups, every query head gets its own copy. q [B,S,N,D], k
// [B,S,Nkv,D].
std::vector<std::int64_t> kv_heads_of(const Context& context, const ArrayInfo& q, const ArrayInfo& k);

// Those heads of x [B,S,N,D]; x itself where they are all.
Tensor take_heads(Context& context, const Tensor& x, const std::vector<std::int64_t>& heads);

// Its transpose, of a gradient whose whole is `whole` [B,S,N,D]: heads taken several times add up, those not
// taken are zero.
Tensor put_heads(Context& context, const Tensor& x, const std::vector<std::int64_t>& heads,
                 const Shape& whole);

// The projection of key heads [M,Nkv,D] -> [M,P,D], or their bias or norm [Nkv,D] -> [P,D], split over `axes`
// of the mesh, of product P, a multiple of Nkv: each part has the head that the query heads of that part
// read, so that nobody projects to others.
Array spread_heads(Context& context, const Array& weight, const Axes& axes);

}  // namespace switchyard
