// Rows moved between token order and sorted order: products and sums of fractions that are exact in fp32.
#include "kernels/ragged_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <random>

#include "selftest/exact_operands.h"
#include "selftest/kernel.h"

namespace switchyard::selftest {
namespace {

// Tokens of `slots` rows each, sorted by expert; positions [start, end) exist.
struct RaggedShape {
  std::int64_t tokens, slots, m, start, end;
  DType dtype;
  std::uint32_t seed;
  SortedRows sorted;

  std::int64_t rows() const { return end - start; }
  std::string text() const {
    return fmt::format("{} tokens of {} rows of {}, positions [{}, {}), seed {}", tokens, slots, m, start,
                       end, seed);
  }
  // Which token's row stands at each sorted position.
  std::vector<std::int32_t> token_of() const {
    std::vector<std::int32_t> result(sorted.order);
    for (std::int32_t& row : result) row /= static_cast<std::int32_t>(slots);
    return result;
  }
};

// Random ones, or the last expert for all.
std::vector<std::int32_t> expert_ids(std::int64_t count, std::int32_t experts, bool one_takes_all,
                                     std::uint32_t seed) {
  std::mt19937 generator(seed);
  std::vector<std::int32_t> ids(static_cast<std::size_t>(count), experts - 1);
  for (std::int32_t& id : ids) {
    if (!one_takes_all) id = static_cast<std::int32_t>(generator() % static_cast<std::uint32_t>(experts));
  }
  return ids;
}

template <typename MakeCase>
std::vector<Case> ragged_cases(std::uint32_t seed, const MakeCase& make) {
  std::vector<Case> cases;
  for (const DType dtype : kFloatTypes) {
    const auto add = [&](std::int64_t tokens, std::int64_t slots, std::int64_t m, std::int64_t start,
                         std::int64_t end) {
      seed += kSeedsOfCase;
      make(RaggedShape{tokens, slots, m, start, end, dtype, seed,
                       counting_sort(expert_ids(tokens * slots, 5, m == 33, seed), 5)},
           cases);
    };
    add(0, 2, 7, 0, 0);
    for (const std::int64_t m : {0, 1, 7, 16, 33, 100}) {
      for (const std::int64_t slots : {1, 3}) {
        add(11, slots, m, 0, 11 * slots);
        add(11, slots, m, 2, 9);
        add(11, slots, m, 4, 4);
      }
    }
    add(700, 3, 130, 50, 1900);  // several pieces
  }
  return cases;
}

std::vector<Case> ragged_gather_cases(std::uint32_t seed) {
  return ragged_cases(seed, [](const RaggedShape& s, std::vector<Case>& cases) {
    for (const bool weighted : {false, true}) {
      ExactOperands draw(s.dtype, s.seed);
      cases.push_back({s.dtype,
                       s.text() + (weighted ? ", weighted" : ""),
                       {draw.left(s.tokens * s.m), draw.addend(DType::f32, s.tokens * s.slots)},
                       {{"out", PoisonedArray(s.dtype, s.rows() * s.m)}},
                       [s, weighted](ThreadPool& pool, const Arrays& in, Arrays& out) {
                         ragged_gather(pool, s.dtype, in[0].data(), s.m, s.token_of(), s.start, s.end,
                                       weighted ? in[1].floats() : nullptr, out[0].data());
                       }});
    }
  });
}

std::vector<Case> ragged_gather_reduce_cases(std::uint32_t seed) {
  return ragged_cases(seed, [](const RaggedShape& s, std::vector<Case>& cases) {
    for (const bool weighted : {false, true}) {
      for (const DType out_dtype : kFloatTypes) {
        ExactOperands draw(s.dtype, s.seed);
        cases.push_back(
            {s.dtype,
             fmt::format("{}{}, into {}", s.text(), weighted ? ", weighted" : "", name_of(out_dtype)),
             {draw.left(s.rows() * s.m), draw.addend(DType::f32, s.tokens * s.slots)},
             {{"out", PoisonedArray(out_dtype, s.tokens * s.m)}},
             [s, weighted, out_dtype](ThreadPool& pool, const Arrays& in, Arrays& out) {
               ragged_gather_reduce(pool, s.dtype, in[0].data(), s.m, s.sorted.revert, s.slots, s.start,
                                    s.end, weighted ? in[1].floats() : nullptr, out[0].data(), out_dtype);
             }});
      }
    }
  });
}

std::vector<Case> ragged_row_dot_cases(std::uint32_t seed) {
  return ragged_cases(seed, [](const RaggedShape& s, std::vector<Case>& cases) {
    ExactOperands draw(s.dtype, s.seed);
    cases.push_back({s.dtype,
                     s.text(),
                     {draw.left(s.tokens * s.m), draw.right(s.rows() * s.m)},
                     {{"dw", PoisonedArray(DType::f32, s.tokens * s.slots)}},
                     [s](ThreadPool& pool, const Arrays& in, Arrays& out) {
                       ragged_row_dot(pool, s.dtype, in[0].data(), in[1].data(), s.m, s.sorted.revert,
                                      s.slots, s.start, s.end, out[0].floats());
                     }});
  });
}

void store(std::span<const std::int32_t> values, PoisonedArray& out) {
  if (!values.empty()) std::memcpy(out.data(), values.data(), values.size_bytes());
}

std::vector<std::int32_t> narrowed(const std::vector<std::int64_t>& sizes) {
  return {sizes.begin(), sizes.end()};
}

std::vector<Case> counting_sort_cases(std::uint32_t seed) {
  std::vector<Case> cases;
  for (const std::int64_t count : {0, 1, 100, 10000}) {
    for (const std::int32_t experts : {1, 3, 200}) {
      for (const bool one_takes_all : {false, true}) {
        const auto ids = expert_ids(count, experts, one_takes_all, ++seed);
        const PoisonedArray rows(DType::i32, count);
        cases.push_back(
            {DType::i32,
             fmt::format("{} rows, {} experts{}, seed {}", count, experts,
                         one_takes_all ? ", one takes all" : "", seed),
             {},
             {{"order", rows}, {"revert", rows}, {"group_sizes", PoisonedArray(DType::i32, experts)}},
             [ids, experts](ThreadPool&, const Arrays&, Arrays& out) {
               const SortedRows sorted = counting_sort(ids, experts);
               store(sorted.order, out[0]);
               store(sorted.revert, out[1]);
               store(narrowed(sorted.group_sizes), out[2]);
             },
             [ids, experts](const Arrays&, Arrays& out) {
               std::vector<std::int32_t> order(ids.size()), revert(ids.size());
               std::iota(order.begin(), order.end(), 0);
               const auto id_of = [&](std::int32_t row) { return ids[static_cast<std::size_t>(row)]; };
               std::stable_sort(order.begin(), order.end(),
                                [&](std::int32_t x, std::int32_t y) { return id_of(x) < id_of(y); });
               for (std::size_t i = 0; i < order.size(); ++i)
                 revert[static_cast<std::size_t>(order[i])] = static_cast<std::int32_t>(i);
               std::vector<std::int32_t> sizes(static_cast<std::size_t>(experts));
               for (const std::int32_t id : ids) ++sizes[static_cast<std::size_t>(id)];
               store(order, out[0]);
               store(revert, out[1]);
               store(sizes, out[2]);
             }});
      }
    }
  }
  return cases;
}

}  // namespace

std::vector<Kernel> ragged_rows_kernels() {
  return {{"counting_sort", nullptr, counting_sort_cases},
          {"ragged_gather", "ragged_gather", ragged_gather_cases},
          {"ragged_gather_reduce", "ragged_gather_reduce", ragged_gather_reduce_cases},
          {"ragged_row_dot", "ragged_row_dot", ragged_row_dot_cases}};
}

}  // namespace switchyard::selftest
