// The last token of each row of a batch.
#pragma once

#include "core/tensor_view.h"
#include "core/thread_pool.h"

namespace switchyard {

// out[b,:] = x[b,t,:], t being the last position of row b before its first segment of 0 (padding), or 0 where
// the row begins with padding.
struct LastTokensArgs {
  TensorView x;         // [B,S,M] of any dtype
  TensorView segments;  // [B,S] i32
  TensorView out;       // [B,1,M]
};
void last_tokens(ThreadPool& pool, const LastTokensArgs& args);

}  // namespace switchyard
