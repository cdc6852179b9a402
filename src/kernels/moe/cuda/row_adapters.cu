// Rows of several adapters: a thread takes one element of the result.
#include "kernels/cuda/portable.h"
#include "kernels/cuda/wide.h"
#include "kernels/moe/kernels.h"

namespace switchyard::gpu {
namespace {

template <typename T>
GPU_KERNEL keep_columns(const T* x, const std::int32_t* adapters, std::int64_t per_token,
                        std::int64_t columns, std::int64_t rank, std::int64_t count, T* out) {
  const std::int64_t i = thread_of_grid();
  if (i >= count) return;
  const std::int64_t row = i / columns, number = i % columns / rank + 1;
  out[i] = adapters[row / per_token] == number ? x[i] : T(0.0f);
}

GPU_KERNEL part_ids(const std::int32_t* ids, const std::int32_t* adapters, std::int64_t per_token,
                    std::int32_t numbers, std::int64_t count, std::int32_t* out) {
  const std::int64_t i = thread_of_grid();
  if (i < count) out[i] = ids[i] < 0 ? -1 : ids[i] * numbers + adapters[i / per_token];
}

GPU_KERNEL join_sizes(const std::int32_t* sizes, std::int64_t numbers, std::int64_t experts,
                      std::int32_t* out) {
  const std::int64_t e = thread_of_grid();
  if (e >= experts) return;
  std::int32_t sum = 0;
  for (std::int64_t i = 0; i < numbers; ++i) sum += sizes[e * numbers + i];
  out[e] = sum;
}

}  // namespace

void keep_adapter(const KeepAdapterArgs& args) {
  const std::int64_t rows = rows_of(args.x);
  if (rows == 0) return;
  with_float_type(args.x.dtype(), [&]<typename T>(T) {
    launch(threads_for(args.x.size()), keep_columns<T>, args.x.device_data<T>(),
           args.adapters.device_data<std::int32_t>(), rows / args.adapters.size(), columns_of(args.x),
           args.rank, args.x.size(), args.out.device_data<T>());
  });
}

void part_experts(const PartExpertsArgs& args) {
  launch(threads_for(args.ids.size()), part_ids, args.ids.device_data<std::int32_t>(),
         args.adapters.device_data<std::int32_t>(), args.ids.dim(1), static_cast<std::int32_t>(args.numbers),
         args.ids.size(), args.out.device_data<std::int32_t>());
}

void join_experts(const JoinExpertsArgs& args) {
  launch(threads_for(args.out.size()), join_sizes, args.sizes.device_data<std::int32_t>(), args.sizes.dim(1),
         args.out.size(), args.out.device_data<std::int32_t>());
}

}  // namespace switchyard::gpu
