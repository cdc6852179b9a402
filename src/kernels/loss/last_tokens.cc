#include "kernels/loss/last_tokens.h"

#include <algorithm>
#include <cstring>

#include "kernels/loss/kernels.h"
#include "kernels/registry/kernel.h"

namespace switchyard {
namespace {

void copy_last(ThreadPool& pool, const LastTokensArgs& args) {
  const std::int64_t length = args.x.dim(1);
  const std::size_t bytes = static_cast<std::size_t>(args.x.dim(2)) * size_of(args.x.dtype());
  pool.for_range(args.x.dim(0), 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b) {
      const std::int32_t* const segments = args.segments.kernel_data<std::int32_t>() + b * length;
      const std::int64_t tokens = std::find(segments, segments + length, 0) - segments;
      const std::int64_t at = b * length + std::max<std::int64_t>(tokens - 1, 0);
      std::memcpy(args.out.kernel_address() + static_cast<std::size_t>(b) * bytes,
                  args.x.kernel_address() + static_cast<std::size_t>(at) * bytes, bytes);
    }
  });
}

Work work_of(const LastTokensArgs& args) {
  return {.dtype = args.x.dtype(), .bytes = 2 * static_cast<double>(args.out.bytes())};
}

constexpr Implementation<LastTokensArgs> kRows[] = {{"cuda", Gpu::any, gpu::last_tokens},
                                                    {"portable", Isa::ref, copy_last}};
constexpr Kernel<LastTokensArgs> kLastTokens{"last_tokens", work_of, &LastTokensArgs::x, kRows};

}  // namespace

void last_tokens(ThreadPool& pool, const LastTokensArgs& args) {
  const TensorView &x = args.x, &segments = args.segments, &out = args.out;
  CHECK(x.rank() == 3 && segments.size() == x.dim(0) * x.dim(1) && out.size() == x.dim(0) * x.dim(2) &&
            out.dtype() == x.dtype() && x.is_contiguous() && segments.is_contiguous() && out.is_contiguous(),
        "[last_tokens] {} and segments {} into {}", to_string(x.shape()), to_string(segments.shape()),
        to_string(out.shape()));
  run(pool, kLastTokens, args);
}

}  // namespace switchyard
