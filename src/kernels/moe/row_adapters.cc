#include "kernels/moe/row_adapters.h"

#include <algorithm>
#include <cstring>

#include "kernels/moe/kernels.h"
#include "kernels/registry/kernel.h"

namespace switchyard {
namespace {

constexpr std::int64_t kBytesAPiece = 1 << 16;  // long against handing the piece out

void keep_columns(ThreadPool& pool, const KeepAdapterArgs& args) {
  const std::int64_t rows = rows_of(args.x), columns = columns_of(args.x);
  if (rows == 0) return;
  const std::int64_t per_token = rows / args.adapters.size();
  const std::size_t element = size_of(args.x.dtype()), width = static_cast<std::size_t>(columns) * element,
                    part = static_cast<std::size_t>(args.rank) * element;
  const std::byte* const from = args.x.kernel_address();
  std::byte* const to = args.out.kernel_address();
  const auto* const adapters = args.adapters.kernel_data<std::int32_t>();
  const std::int64_t grain = std::max<std::int64_t>(1, kBytesAPiece / static_cast<std::int64_t>(width));
  pool.for_range(rows, grain, [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const std::size_t row = static_cast<std::size_t>(i) * width;
      const std::int32_t number = adapters[i / per_token];
      CHECK(number >= 0 && number * args.rank <= columns, "[keep_adapter] number {} of {}", number,
            columns / args.rank);
      std::memset(to + row, 0, width);
      if (number == 0) continue;
      const std::size_t at = row + static_cast<std::size_t>(number - 1) * part;
      std::memcpy(to + at, from + at, part);
    }
  });
}

void part_ids(ThreadPool&, const PartExpertsArgs& args) {
  const auto* const ids = args.ids.kernel_data<std::int32_t>();
  const auto* const adapters = args.adapters.kernel_data<std::int32_t>();
  auto* const out = args.out.kernel_data<std::int32_t>();
  const std::int64_t per_token = args.ids.dim(1);
  for (std::int64_t i = 0; i < args.ids.size(); ++i) {
    const std::int32_t number = adapters[i / per_token];
    CHECK(number >= 0 && number < args.numbers, "[part_experts] number {} of {}", number, args.numbers);
    out[i] = ids[i] < 0 ? -1 : ids[i] * static_cast<std::int32_t>(args.numbers) + number;
  }
}

void join_sizes(ThreadPool&, const JoinExpertsArgs& args) {
  for (std::int64_t e = 0; e < args.sizes.dim(0); ++e) {
    std::int32_t sum = 0;
    for (const std::int32_t size : row_of<std::int32_t>(args.sizes, e)) sum += size;
    args.out.kernel_data<std::int32_t>()[e] = sum;
  }
}

Work keep_work(const KeepAdapterArgs& args) {
  return {.dtype = args.x.dtype(), .bytes = static_cast<double>(2 * args.x.bytes())};
}
Work part_work(const PartExpertsArgs& args) {
  return {.bytes = static_cast<double>(2 * args.ids.bytes())};
}
Work join_work(const JoinExpertsArgs& args) {
  return {.bytes = static_cast<double>(args.sizes.bytes())};
}

constexpr Implementation<KeepAdapterArgs> kKeepRows[] = {{"cuda", Gpu::any, gpu::keep_adapter},
                                                         {"portable", Isa::ref, keep_columns}};
constexpr Implementation<PartExpertsArgs> kPartRows[] = {{"cuda", Gpu::any, gpu::part_experts},
                                                         {"portable", Isa::ref, part_ids}};
constexpr Implementation<JoinExpertsArgs> kJoinRows[] = {{"cuda", Gpu::any, gpu::join_experts},
                                                         {"portable", Isa::ref, join_sizes}};
constexpr Kernel<KeepAdapterArgs> kKeepAdapter{"keep_adapter", keep_work, &KeepAdapterArgs::x, kKeepRows};
constexpr Kernel<PartExpertsArgs> kPartExperts{"part_experts", part_work, &PartExpertsArgs::ids, kPartRows};
constexpr Kernel<JoinExpertsArgs> kJoinExperts{"join_experts", join_work, &JoinExpertsArgs::sizes, kJoinRows};

}  // namespace

void keep_adapter(ThreadPool& pool, const KeepAdapterArgs& args) {
  const std::int64_t tokens = args.adapters.size();
  check_operand("keep_adapter", "out", args.out, args.x.dtype(), args.x.shape());
  check_operand("keep_adapter", "adapters", args.adapters, DType::i32, {tokens});
  CHECK(args.x.is_contiguous() && args.rank > 0 && columns_of(args.x) % args.rank == 0 &&
            (tokens > 0 ? rows_of(args.x) % tokens == 0 : args.x.size() == 0),
        "[keep_adapter] {} for {} tokens of rank {}", to_string(args.x.shape()), tokens, args.rank);
  run(pool, kKeepAdapter, args);
}

void part_experts(ThreadPool& pool, const PartExpertsArgs& args) {
  check_operand("part_experts", "ids", args.ids, DType::i32, args.ids.shape());
  check_operand("part_experts", "adapters", args.adapters, DType::i32, {args.ids.dim(0)});
  check_operand("part_experts", "out", args.out, DType::i32, args.ids.shape());
  run(pool, kPartExperts, args);
}

void join_experts(ThreadPool& pool, const JoinExpertsArgs& args) {
  check_operand("join_experts", "sizes", args.sizes, DType::i32, args.sizes.shape());
  check_operand("join_experts", "out", args.out, DType::i32, {args.sizes.dim(0)});
  run(pool, kJoinExperts, args);
}

}  // namespace switchyard
