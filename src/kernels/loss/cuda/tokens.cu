// Copies the last tokens of rows.
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/portable.h"
#include "kernels/loss/last_tokens.h"

namespace switchyard::gpu {
namespace {

constexpr int kThreads = 256;

// A block takes a row; `bytes`: of a token.
GPU_KERNEL copy_last(const unsigned char* x, const std::int32_t* segments, std::int64_t length,
                     std::int64_t bytes, unsigned char* out) {
  GPU_SHARED(std::int64_t, last, 1);
  const std::int64_t row = block_index();
  if (thread_index() == 0) {
    std::int64_t tokens = 0;
    while (tokens < length && segments[row * length + tokens] != 0) ++tokens;
    *last = row * length + (tokens > 0 ? tokens - 1 : 0);
  }
  barrier();
  for (std::int64_t i = thread_index(); i < bytes; i += kThreads) out[row * bytes + i] = x[*last * bytes + i];
}

}  // namespace

void last_tokens(const LastTokensArgs& args) {
  const auto bytes = args.x.dim(2) * static_cast<std::int64_t>(size_of(args.x.dtype()));
  launch({.blocks = args.x.dim(0), .threads = kThreads}, copy_last,
         reinterpret_cast<const unsigned char*>(args.x.device_address()),
         args.segments.device_data<std::int32_t>(), args.x.dim(1), bytes,
         reinterpret_cast<unsigned char*>(args.out.device_address()));
}

}  // namespace switchyard::gpu
