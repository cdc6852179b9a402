#include "kernels/attention/rope_tables.h"

#include <cmath>
#include <cstdint>

#include "kernels/attention/kernels.h"
#include "kernels/registry/kernel.h"

namespace switchyard {
namespace {

std::int64_t pairs_of(const RopeTablesArgs& args) {
  return static_cast<std::int64_t>(args.frequencies.size());
}

void tables_of_tokens(ThreadPool& pool, const RopeTablesArgs& args) {
  const std::int64_t pairs = pairs_of(args);
  const std::int32_t* const positions = args.positions.kernel_data<std::int32_t>();
  float *const cos = args.cos.kernel_data<float>(), *const sin = args.sin.kernel_data<float>();
  pool.for_range(args.positions.size(), 32, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin * pairs; i < end * pairs; ++i) {
      const std::int32_t position = positions[i / pairs];
      const double amplitude = args.amplitude * args.growth.at(position);
      const double angle = position * args.frequencies[static_cast<std::size_t>(i % pairs)];
      cos[i] = static_cast<float>(std::cos(angle) * amplitude);
      sin[i] = static_cast<float>(std::sin(angle) * amplitude);
    }
  });
}

Work work_of(const RopeTablesArgs& args) {
  const auto elements = static_cast<double>(args.positions.size() * pairs_of(args));
  return {.flops = 4 * elements, .bytes = 8 * elements};
}

constexpr Implementation<RopeTablesArgs> kTables[] = {{"cuda", Gpu::any, gpu::rope_tables},
                                                      {"portable", Isa::ref, tables_of_tokens}};
constexpr Kernel<RopeTablesArgs> kRopeTables{"rope_tables", work_of, &RopeTablesArgs::positions, kTables};

}  // namespace

void rope_tables(ThreadPool& pool, const RopeTablesArgs& args) {
  const std::int64_t tokens = args.positions.size(), pairs = pairs_of(args);
  CHECK(args.positions.is_contiguous(), "[rope_tables] positions {} with gaps",
        to_string(args.positions.shape()));
  for (const TensorView* table : {&args.cos, &args.sin})
    CHECK(table->size() == tokens * pairs && table->is_contiguous(),
          "[rope_tables] a table {} for {} tokens of {} pairs", to_string(table->shape()), tokens, pairs);
  run(pool, kRopeTables, args);
}

}  // namespace switchyard
