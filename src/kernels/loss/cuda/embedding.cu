// Rows of a table. Their gradients are added row by row in the order of the tokens: tokens are sorted by id,
// each by counting those that come before it, and a block walks the tokens of one id.
#include "kernels/cuda/portable.h"
#include "kernels/cuda/wide.h"
#include "kernels/cuda/workspace.h"
#include "kernels/loss/kernels.h"

namespace switchyard::gpu {
namespace {

constexpr int kEmbeddingThreads = 256;

// Rows of `units` units; 0 bits are 0 of every type.
template <typename Unit>
GPU_KERNEL look_up(const Unit* table, std::int64_t rows, const std::int32_t* ids, std::int64_t first_id,
                   Unit* out, std::int64_t units) {
  const std::int64_t token = block_index(), at = ids[token] - first_id;
  const bool has = at >= 0 && at < rows;
  for (std::int64_t i = thread_index(); i < units; i += thread_count())
    out[token * units + i] = has ? table[at * units + i] : Unit{};
}

GPU_KERNEL clear_places(std::int32_t* place, std::int64_t tokens) {
  const std::int64_t i = thread_of_grid();
  if (i < tokens) place[i] = 0;
}

// Adds to place[t] how many of the tokens of this block's slice (y) come before t: of smaller ids, or earlier
// ones of the same.
GPU_KERNEL count_before(const std::int32_t* ids, std::int64_t tokens, std::int64_t slice,
                        std::int32_t* place) {
  GPU_SHARED(std::int32_t, others, kEmbeddingThreads);
  const std::int64_t token = thread_of_grid();
  const std::int32_t id = token < tokens ? ids[token] : 0;
  const std::int64_t begin = block_index_y() * slice, end = begin + slice < tokens ? begin + slice : tokens;
  std::int32_t before = 0;
  for (std::int64_t first = begin; first < end; first += kEmbeddingThreads) {
    const int count = static_cast<int>(end - first < kEmbeddingThreads ? end - first : kEmbeddingThreads);
    barrier();
    if (thread_index() < count) others[thread_index()] = ids[first + thread_index()];
    barrier();
    const std::int64_t earlier = token - first;
    for (int i = 0; i < count; ++i) before += others[i] < id || (others[i] == id && i < earlier) ? 1 : 0;
  }
  if (token < tokens) atomic_add(place + token, before);
}

GPU_KERNEL put_in_order(const std::int32_t* place, std::int64_t tokens, std::int32_t* order) {
  const std::int64_t i = thread_of_grid();
  if (i < tokens) order[place[i]] = static_cast<std::int32_t>(i);
}

// A block takes a place of the order and some columns (y), and does the rows of its id where it
// is the first of them.
template <typename T, int width>
GPU_KERNEL add_rows_of_id(const T* dout, const std::int32_t* ids, const std::int32_t* order,
                          std::int64_t tokens, std::int64_t first_id, float* dtable, std::int64_t rows,
                          std::int64_t dim) {
  const std::int64_t begin = block_index();
  const std::int32_t id = ids[order[begin]];
  const std::int64_t at = id - first_id;
  if (at < 0 || at >= rows || (begin > 0 && ids[order[begin - 1]] == id)) return;  // all threads
  std::int64_t same = begin + 1, end = tokens;  // those up to `same` have the id, those from `end` on do not
  while (same < end) {
    const std::int64_t middle = (same + end) / 2;
    if (ids[order[middle]] == id)
      same = middle + 1;
    else
      end = middle;
  }
  const std::int64_t j =
      (static_cast<std::int64_t>(block_index_y()) * thread_count() + thread_index()) * width;
  if (j >= dim) return;
  float sum[width];
  load_floats<width>(dtable + at * dim + j, sum);
  constexpr int kAhead = 32 / width;  // rows on their way at a time
  std::int64_t next = begin;
  for (; next + kAhead <= end; next += kAhead) {
    float values[kAhead][width];
    for (int k = 0; k < kAhead; ++k)
      load_floats<width>(dout + static_cast<std::int64_t>(order[next + k]) * dim + j, values[k]);
    for (int k = 0; k < kAhead; ++k) {
      for (int i = 0; i < width; ++i) sum[i] += values[k][i];
    }
  }
  for (; next < end; ++next) {
    float values[width];
    load_floats<width>(dout + static_cast<std::int64_t>(order[next]) * dim + j, values);
    for (int i = 0; i < width; ++i) sum[i] += values[i];
  }
  store_floats<width>(sum, dtable + at * dim + j);
}

}  // namespace

void embedding_lookup(const EmbeddingLookupArgs& args) {
  const std::int64_t bytes = args.table.dim(1) * static_cast<std::int64_t>(size_of(args.table.dtype()));
  const void* const table = args.table.device_address();
  void* const out = args.out.device_address();
  const auto* const ids = args.ids.device_data<std::int32_t>();
  const auto run = [&]<typename Unit>(Unit) {
    launch({.blocks = bytes > 0 ? args.ids.size() : 0, .threads = kEmbeddingThreads}, look_up<Unit>,
           static_cast<const Unit*>(table), args.table.dim(0), ids, args.first_id, static_cast<Unit*>(out),
           bytes / static_cast<std::int64_t>(sizeof(Unit)));
  };
  if (bytes % 16 == 0 && are_wide({table, out}))
    run(Vector<std::uint32_t, 4>());
  else if (size_of(args.table.dtype()) % 4 == 0)
    run(std::uint32_t());
  else if (args.table.dtype() == DType::bf16)
    run(std::uint16_t());
  else
    run(std::uint8_t());
}

void embedding_backward(const EmbeddingBackwardArgs& args) {
  const std::int64_t tokens = args.ids.size(), dim = args.dtable.dim(1);
  if (tokens == 0 || dim == 0) return;
  const auto* const ids = args.ids.device_data<std::int32_t>();
  const Workspace places(args.dtable, static_cast<std::size_t>(2 * tokens) * sizeof(std::int32_t));
  auto* const place = places.data<std::int32_t>();
  auto* const order = place + tokens;
  constexpr std::int64_t kSlices = 16;
  const std::int64_t slice = divide_up(divide_up(tokens, kSlices), kEmbeddingThreads) * kEmbeddingThreads;
  launch(threads_for(tokens), clear_places, place, tokens);
  launch({.blocks = divide_up(tokens, kEmbeddingThreads),
          .threads = kEmbeddingThreads,
          .blocks_y = static_cast<int>(divide_up(tokens, slice))},
         count_before, ids, tokens, slice, place);
  launch(threads_for(tokens), put_in_order, place, tokens, order);
  float* const dtable = args.dtable.device_data<float>();
  with_float_type(args.dout.dtype(), [&]<typename T>(T) {
    const T* const dout = args.dout.device_data<T>();
    with_width<T>(dim % kWide<T> == 0 && are_wide({dout, dtable}), [&](auto width) {
      launch({.blocks = tokens,
              .threads = kEmbeddingThreads,
              .blocks_y = static_cast<int>(divide_up(dim, kEmbeddingThreads * width.value))},
             add_rows_of_id<T, width.value>, dout, ids, order, tokens, args.first_id, dtable,
             args.dtable.dim(0), dim);
    });
  });
}

}  // namespace switchyard::gpu
