#pragma once

#include "autograd/op.h"

namespace switchyard {

// A weight that lies on the host (WeightPlace), in the context's memory: its block, in its dtype and
// sharding. The one op whose input and output are in two memories. The copy runs beside kernels and may be
// started ahead (autograd/ahead.h); nothing saves its result, so that backward fetches it again, also where
// it is frozen. Its gradient stays on the device, where the update wants it. The context must offload
// (Context::offload).
Array fetch_weight(Context& context, const Array& weight);

}  // namespace switchyard
