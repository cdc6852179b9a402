#include "kernels/loss/last_tokens.h"

#include <algorithm>
#include <cstring>

#include "kernels/cuda/kernels.h"

namespace switchyard {

void last_tokens(ThreadPool& pool, const LastTokensArgs& args) {
  const TensorView &x = args.x, &segments = args.segments, &out = args.out;
  CHECK(x.rank() == 3 && segments.size() == x.dim(0) * x.dim(1) && out.size() == x.dim(0) * x.dim(2) &&
            out.dtype() == x.dtype() && x.is_contiguous() && segments.is_contiguous() && out.is_contiguous(),
        "[last_tokens] {} and segments {} into {}", to_string(x.shape()), to_string(segments.shape()),
        to_string(out.shape()));
  if (pool.skips({"last_tokens", x.dtype(), 0, 2 * static_cast<double>(out.bytes())})) return;
  if (x.on_gpu()) return gpu::last_tokens(args);
  const std::int64_t length = x.dim(1);
  const std::size_t token = static_cast<std::size_t>(x.dim(2)) * size_of(x.dtype());
  pool.for_range(x.dim(0), 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = begin; row < end; ++row) {
      const std::int32_t* const of_row = segments.kernel_data<std::int32_t>() + row * length;
      const std::int64_t tokens = std::find(of_row, of_row + length, 0) - of_row;
      const std::int64_t at = row * length + std::max<std::int64_t>(tokens - 1, 0);
      std::memcpy(out.kernel_address() + static_cast<std::size_t>(row) * token,
                  x.kernel_address() + static_cast<std::size_t>(at) * token, token);
    }
  });
}

}  // namespace switchyard
