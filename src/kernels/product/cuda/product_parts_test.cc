// Where blocks of threads work in a product: every part of C once, with the operands of its group, for any
// sizes of groups. Checked field by field against plain loops over the groups.
#include "kernels/product/cuda/product_parts.h"

#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <optional>
#include <random>
#include <tuple>
#include <vector>

namespace switchyard::gpu {
namespace {

constexpr std::int64_t kAStride = 1000, kBStride = 2000, kCStride = 3000, kBiasStride = 50;

struct Found {
  bool any = false;
  Part part;
};

GPU_KERNEL find_all(DeviceProduct p, int rows, int columns, std::int64_t row_blocks, Found* found) {
  Part part;
  const bool any = find_part(p, block_index(), block_index_z(), rows, columns, row_blocks, part);
  if (thread_index() == 0) found[block_index_z() * block_count() + block_index()] = {any, part};
}

// Of every block that a launch of the product has.
std::vector<Found> parts_of(const DeviceProduct& p, int rows, int columns) {
  const Launch launched = product_launch(p, rows, columns, kWarp, 0);
  std::vector<Found> found(static_cast<std::size_t>(launched.blocks * launched.blocks_z));
  launch(launched, find_all, p, rows, columns, row_blocks_of(p, rows), found.data());
  return found;
}

DeviceProduct product(std::int64_t m, std::int64_t n, Groups groups, const std::vector<std::int32_t>& sizes) {
  return {.m = m,
          .n = n,
          .groups = groups,
          .batch = std::ssize(sizes),
          .a_stride = kAStride,
          .b_stride = kBStride,
          .c_stride = kCStride,
          .bias_stride = kBiasStride,
          .group_sizes = sizes.data()};
}

using Place = std::tuple<std::int64_t, std::int64_t, std::int64_t>;  // group, row, column

// Takes what stands at a place: a part that is there twice, or not at all, is a failure.
std::map<Place, Part> by_place(const std::vector<Found>& found) {
  std::map<Place, Part> places;
  for (const auto& [any, part] : found) {
    if (!any) continue;
    const bool once = places.emplace(Place(part.group, part.row, part.column), part).second;
    EXPECT_TRUE(once) << "group " << part.group << " row " << part.row << " column " << part.column;
  }
  return places;
}

void expect_part(std::map<Place, Part>& places, const Part& want) {
  const auto at = places.find({want.group, want.row, want.column});
  ASSERT_NE(at, places.end()) << "group " << want.group << " row " << want.row << " column " << want.column;
  const Part& got = at->second;
  EXPECT_EQ(got.rows_end, want.rows_end);
  EXPECT_EQ(got.a_offset, want.a_offset);
  EXPECT_EQ(got.b_offset, want.b_offset);
  EXPECT_EQ(got.c_offset, want.c_offset);
  EXPECT_EQ(got.bias_offset, want.bias_offset);
  EXPECT_EQ(got.depth_begin, want.depth_begin);
  EXPECT_EQ(got.depth_end, want.depth_end);
  places.erase(at);
}

struct Shape {
  int rows, columns;
};
// Of the blocks of all kernels: float32, tensor cores, wgmma, pairs of blocks with the copy engine.
constexpr Shape kBlocks[] = {{64, 64}, {128, 128}, {128, 256}, {256, 256}};

std::vector<std::vector<std::int32_t>> group_sizes() {
  std::vector<std::vector<std::int32_t>> all{
      {0},
      {1},
      {300},
      {0, 0, 0},
      {0, 700, 0, 0},  // one takes all
      {1, 63, 64, 65, 127, 0, 129, 255, 256, 257},
      std::vector<std::int32_t>(128, 3),
      std::vector<std::int32_t>(33, 0),
  };
  all.back().back() = 5;  // behind a whole warp of empty groups
  std::mt19937 random(7);
  for (int i = 0; i < 8; ++i) {
    std::vector<std::int32_t> sizes(1 + random() % 70);
    for (std::int32_t& size : sizes) size = random() % 3 == 0 ? 0 : static_cast<std::int32_t>(random() % 400);
    all.push_back(sizes);
  }
  return all;
}

constexpr std::int64_t kWidths[] = {1, 64, 200, 256 * 19 + 1};  // the last: more than a band of columns

TEST(ProductParts, GroupsOfRowsAreCutOnce) {
  for (const auto& sizes : group_sizes()) {
    const std::int64_t m = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0});
    for (const auto& [rows, columns] : kBlocks) {
      for (const std::int64_t n : kWidths) {
        if (m == 0) continue;  // run_product returns before
        auto places = by_place(parts_of(product(m, n, Groups::rows, sizes), rows, columns));
        std::int64_t first = 0;
        for (std::int64_t group = 0; group < std::ssize(sizes); ++group) {
          const std::int64_t end = first + sizes[static_cast<std::size_t>(group)];
          for (std::int64_t row = first; row < end; row += rows) {
            for (std::int64_t column = 0; column < n; column += columns)
              expect_part(places, {.group = group,
                                   .row = row,
                                   .rows_end = end,
                                   .column = column,
                                   .b_offset = group * kBStride,
                                   .bias_offset = group * kBiasStride});
          }
          first = end;
        }
        EXPECT_TRUE(places.empty()) << places.size() << " parts too many";
      }
    }
  }
}

TEST(ProductParts, GroupsOfDepthHaveAllOfTheirC) {
  constexpr std::int64_t kRows = 300;
  for (const auto& sizes : group_sizes()) {
    for (const auto& [rows, columns] : kBlocks) {
      auto places = by_place(parts_of(product(kRows, 200, Groups::depth, sizes), rows, columns));
      std::int64_t first = 0;
      for (std::int64_t group = 0; group < std::ssize(sizes); ++group) {
        const std::int64_t end = first + sizes[static_cast<std::size_t>(group)];
        for (std::int64_t row = 0; row < kRows; row += rows) {
          for (std::int64_t column = 0; column < 200; column += columns)
            expect_part(places, {.group = group,  // an empty one has a C of zeros
                                 .row = row,
                                 .rows_end = kRows,
                                 .column = column,
                                 .c_offset = group * kCStride,
                                 .depth_begin = first,
                                 .depth_end = end});
        }
        first = end;
      }
      EXPECT_TRUE(places.empty()) << places.size() << " parts too many";
    }
  }
}

TEST(ProductParts, ProductsOfABatch) {
  const std::vector<std::int32_t> three(3);
  for (const auto& [rows, columns] : kBlocks) {
    for (const std::int64_t n : kWidths) {
      auto places = by_place(parts_of(product(130, n, Groups::none, three), rows, columns));
      for (std::int64_t i = 0; i < 3; ++i) {
        for (std::int64_t row = 0; row < 130; row += rows) {
          for (std::int64_t column = 0; column < n; column += columns)
            expect_part(places, {.group = i,
                                 .row = row,
                                 .rows_end = 130,
                                 .column = column,
                                 .b_offset = i * kBStride,
                                 .c_offset = i * kCStride,
                                 .a_offset = i * kAStride});
        }
      }
      EXPECT_TRUE(places.empty()) << places.size() << " parts too many";
    }
  }
}

}  // namespace
}  // namespace switchyard::gpu
