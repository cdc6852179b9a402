#include "kernels/attention/rope_tables.h"

#include <cmath>
#include <cstdint>

#include "kernels/cuda/kernels.h"

namespace switchyard {

void rope_tables(ThreadPool& pool, const RopeTablesArgs& args) {
  const std::int64_t tokens = args.positions.size(),
                     pairs = static_cast<std::int64_t>(args.frequencies.size());
  CHECK(args.positions.is_contiguous(), "[rope_tables] positions {} with gaps",
        to_string(args.positions.shape()));
  for (const TensorView* table : {&args.cos, &args.sin})
    CHECK(table->size() == tokens * pairs && table->is_contiguous(),
          "[rope_tables] a table {} for {} tokens of {} pairs", to_string(table->shape()), tokens, pairs);
  const auto elements = static_cast<double>(tokens * pairs);
  if (pool.skips({"rope_tables", DType::f32, 4 * elements, 8 * elements})) return;
  if (args.positions.on_gpu()) return gpu::rope_tables(args);
  const std::int32_t* const positions = args.positions.kernel_data<std::int32_t>();
  float *const cos = args.cos.kernel_data<float>(), *const sin = args.sin.kernel_data<float>();
  pool.for_range(tokens, 32, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin * pairs; i < end * pairs; ++i) {
      const std::int32_t position = positions[i / pairs];
      const double amplitude = args.amplitude * args.growth.at(position);
      const double angle = position * args.frequencies[static_cast<std::size_t>(i % pairs)];
      cos[i] = static_cast<float>(std::cos(angle) * amplitude);
      sin[i] = static_cast<float>(std::sin(angle) * amplitude);
    }
  });
}

}  // namespace switchyard
