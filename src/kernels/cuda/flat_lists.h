// Lists of flat arrays that one kernel goes through, whatever their sizes and types, and sums of squares in
// double, one an item: of each block, and then of an item's blocks. Their order depends on sizes alone.
//
// A model has many weights, most of them small. One kernel for a whole list starts once for all.
#pragma once

#include <algorithm>
#include <span>

#include "kernels/cuda/portable.h"
#include "kernels/cuda/wide.h"
#include "kernels/cuda/workspace.h"

namespace switchyard::gpu {

// The threads of a block, the elements that it takes, and those that a thread takes at a time.
constexpr int kListThreads = 256, kQuad = 4;
constexpr std::int64_t kListElements = 4096;

// A flat array of f32 or bf16.
struct Elements {
  void* data = nullptr;
  bool is_bf16 = false;
  bool is_wide = false;  // its address is a multiple of a quad

  static Elements of(const TensorView& x) {
    CHECK(is_float(x.dtype()), "elements of {}", name_of(x.dtype()));
    void* const data = x.device_address();
    return {data, x.dtype() == DType::bf16,
            reinterpret_cast<std::uintptr_t>(data) % (kQuad * size_of(x.dtype())) == 0};
  }

  GPU_FUNCTION float get(std::int64_t i) const {
    return is_bf16 ? to_float(static_cast<const bfloat16*>(data)[i]) : static_cast<const float*>(data)[i];
  }
  GPU_FUNCTION void put(std::int64_t i, float x) const {
    if (is_bf16)
      static_cast<bfloat16*>(data)[i] = from_float<bfloat16>(x);
    else
      static_cast<float*>(data)[i] = x;
  }
  // `count` of the quad that begins at i; the others become 0.
  GPU_FUNCTION void load(std::int64_t i, int count, float* to) const {
    if (count == kQuad && is_wide) {
      if (is_bf16)
        load_floats<kQuad>(static_cast<const bfloat16*>(data) + i, to);
      else
        load_floats<kQuad>(static_cast<const float*>(data) + i, to);
    } else {
      for (int k = 0; k < kQuad; ++k) to[k] = k < count ? get(i + k) : 0;
    }
  }
  GPU_FUNCTION void store(std::int64_t i, int count, const float* from) const {
    if (count == kQuad && is_wide) {
      if (is_bf16)
        store_floats<kQuad>(from, static_cast<bfloat16*>(data) + i);
      else
        store_floats<kQuad>(from, static_cast<float*>(data) + i);
    } else {
      for (int k = 0; k < kQuad; ++k) {
        if (k < count) put(i + k, from[k]);
      }
    }
  }
  // A number as `store` stores it.
  GPU_FUNCTION float stored(float x) const { return is_bf16 ? to_float(from_float<bfloat16>(x)) : x; }
};

// Arrays of as many elements each, what the kernel does with them, and where the sum goes.
struct ListItem {
  Elements arrays[4] = {};
  std::int64_t size = 0;
  std::int64_t first_block = 0;  // of the kernel's
  double* squares = nullptr;
  float factor = 0;  // a term of this item's own
};

// About as many items as fit in a kernel's arguments, which are 4 KB.
struct List {
  static constexpr int kItems = 40;
  ListItem items[kItems] = {};
  int count = 0;

  GPU_FUNCTION static const ListItem& of_block(const List& list, std::int64_t block) {
    int low = 0, high = list.count;  // the item is in [low, high)
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      if (list.items[middle].first_block <= block)
        low = middle;
      else
        high = middle;
    }
    return list.items[low];
  }
};

// The sum of what the block's threads have.
GPU_FUNCTION void put_block_sum(double squares, double* to) {
  GPU_SHARED(double, scratch, kListThreads / kWarp);
  squares = block_sum(squares, scratch);
  if (thread_index() == 0) *to = squares;
}

// `count` of a quad's numbers, squared.
GPU_FUNCTION double squares_of(const float* numbers, int count) {
  double squares = 0;
  for (int k = 0; k < kQuad; ++k) {
    if (k < count) squares += static_cast<double>(numbers[k]) * static_cast<double>(numbers[k]);
  }
  return squares;
}

// quad(item, i, count) does the item's elements [i, i + count) and returns the sum of their squares. Nothing
// is done where `is_wanted` is given and is 0.
template <typename Quad>
GPU_KERNEL go_through(GPU_CONSTANT(Quad) quad, GPU_CONSTANT(List) list, double* sums,
                      const float* is_wanted) {
  if (is_wanted != nullptr && *is_wanted == 0) return;
  const ListItem& item = List::of_block(list, block_index());
  const std::int64_t begin = (block_index() - item.first_block) * kListElements,
                     end = begin + kListElements < item.size ? begin + kListElements : item.size;
  double squares = 0;
  for (std::int64_t i = begin + static_cast<std::int64_t>(thread_index()) * kQuad; i < end;
       i += static_cast<std::int64_t>(kListThreads) * kQuad)
    squares += quad(item, i, end - i < kQuad ? static_cast<int>(end - i) : kQuad);
  put_block_sum(squares, sums + block_index());
}

// A block an item.
inline GPU_KERNEL add_sums_of_blocks(GPU_CONSTANT(List) list, const double* sums, const float* is_wanted) {
  if (is_wanted != nullptr && *is_wanted == 0) return;
  const ListItem& item = list.items[block_index()];
  const std::int64_t blocks = (item.size + kListElements - 1) / kListElements;
  double sum = 0;
  for (std::int64_t i = thread_index(); i < blocks; i += kListThreads) sum += sums[item.first_block + i];
  put_block_sum(sum, item.squares);
}

// Runs `quad` on all items, which item_of(args[i]) says but for their first blocks. Memory is as `like` has.
// `is_wanted`, of the GPU's memory: as go_through has it.
template <typename Args, typename Quad>
void run_list(std::span<const Args> args, const TensorView& like, const Quad& quad, const auto& item_of,
              const float* is_wanted = nullptr) {
  static_assert(sizeof(Quad) + sizeof(List) + 2 * sizeof(void*) <= 4096, "a kernel's arguments");
  for (std::size_t begin = 0; begin < args.size(); begin += List::kItems) {
    List list;
    std::int64_t blocks = 0;
    for (const Args& each : args.subspan(begin, std::min<std::size_t>(List::kItems, args.size() - begin))) {
      ListItem& item = list.items[list.count++] = item_of(each);
      item.first_block = blocks;
      blocks += divide_up(item.size, kListElements);
    }
    const Workspace sums(like, static_cast<std::size_t>(blocks) * sizeof(double));
    launch({.blocks = blocks, .threads = kListThreads}, go_through<Quad>, quad, list, sums.data<double>(),
           is_wanted);
    launch({.blocks = list.count, .threads = kListThreads}, add_sums_of_blocks, list, sums.data<double>(),
           is_wanted);
  }
}

}  // namespace switchyard::gpu
