#pragma once

#include "autograd/op.h"

namespace switchyard {

// Returns a weight that lies on the host (WeightPlace) in the context's memory: its block, dtype and
// sharding. No other op has input and output in two memories. The copy runs beside kernels and may be started
// ahead (autograd/ahead.h). Nothing saves the result: backward fetches the weight again, a frozen one, too.
// The gradient stays on the device, where the update wants it. CHECKs that the context offloads.
Array fetch_weight(Context& context, const Array& weight);

}  // namespace switchyard
