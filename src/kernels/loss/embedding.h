// Rows of a table looked up by token ids, and the gradient of the table. A rank may hold only some rows of
// the table: those of other ids give 0 and get nothing. Views have no gaps. Bit-identical
// for any number of threads.
#pragma once

#include <cstdint>

#include "core/tensor_view.h"
#include "core/thread_pool.h"

namespace switchyard {

// out[t,:] = table[ids[t] - first_id,:], or 0 where that row is not in the table.
struct EmbeddingLookupArgs {
  TensorView table;           // [V,M] of any dtype
  TensorView ids;             // [T] i32, or more dims
  TensorView out;             // [T,M] of the table's dtype, or more dims, of which the last is M
  std::int64_t first_id = 0;  // of row 0
};
void embedding_lookup(ThreadPool& pool, const EmbeddingLookupArgs& args);

// dtable[ids[t] - first_id,:] += dout[t,:] in the order of t, where that row is in the table. Repeated ids
// add up in fp32.
struct EmbeddingBackwardArgs {
  TensorView dout;            // [T,M] f32 or bf16, or more dims, of which the last is M
  TensorView ids;             // as in EmbeddingLookupArgs
  TensorView dtable;          // [V,M] f32, added to
  std::int64_t first_id = 0;  // of row 0
};
void embedding_backward(ThreadPool& pool, const EmbeddingBackwardArgs& args);

}  // namespace switchyard
