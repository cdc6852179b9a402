// The last token of each sequence of a batch.
#pragma once

#include "core/tensor_view.h"
#include "core/thread_pool.h"

namespace switchyard {

// out[b,:] = x[b,t,:], t being the last position of sequence b before its first segment of 0 (padding), or 0
// where the sequence begins with padding.
struct LastTokensArgs {
  TensorView x;         // [B,S,M] of any dtype
  TensorView segments;  // [B,S] i32
  TensorView out;       // [B,1,M]
};
void last_tokens(ThreadPool& pool, const LastTokensArgs& args);

}  // namespace switchyard
