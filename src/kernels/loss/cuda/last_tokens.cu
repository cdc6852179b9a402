// The last token of each sequence.
#include "kernels/cuda/portable.h"
#include "kernels/loss/kernels.h"

namespace switchyard::gpu {
namespace {

constexpr int kLastTokensThreads = 256;

// A block takes a sequence; `bytes`: of a token.
GPU_KERNEL copy_last(const unsigned char* x, const std::int32_t* segments, std::int64_t length,
                     std::int64_t bytes, unsigned char* out) {
  GPU_SHARED(std::int64_t, last, 1);
  const std::int64_t sequence = block_index();
  if (thread_index() == 0) {
    std::int64_t tokens = 0;
    while (tokens < length && segments[sequence * length + tokens] != 0) ++tokens;
    *last = sequence * length + (tokens > 0 ? tokens - 1 : 0);
  }
  barrier();
  for (std::int64_t i = thread_index(); i < bytes; i += kLastTokensThreads)
    out[sequence * bytes + i] = x[*last * bytes + i];
}

}  // namespace

void last_tokens(const LastTokensArgs& args) {
  const auto bytes = args.x.dim(2) * static_cast<std::int64_t>(size_of(args.x.dtype()));
  launch({.blocks = args.x.dim(0), .threads = kLastTokensThreads}, copy_last,
         reinterpret_cast<const unsigned char*>(args.x.device_address()),
         args.segments.device_data<std::int32_t>(), args.x.dim(1), bytes,
         reinterpret_cast<unsigned char*>(args.out.device_address()));
}

}  // namespace switchyard::gpu
