// Rows of several adapters. Everything is a copy or a sum of integers: exact.
#include <fmt/format.h>

#include <cstring>
#include <random>

#include "kernels/moe/row_adapters.h"
#include "kernels/testing/cases.h"

namespace switchyard::selftest {
namespace {

using Numbers = std::vector<std::int32_t>;

Numbers numbers_below(std::int64_t count, std::int32_t least, std::int32_t end, std::uint32_t seed) {
  std::mt19937 random(seed);
  Numbers result(static_cast<std::size_t>(count));
  for (std::int32_t& x : result)
    x = least + static_cast<std::int32_t>(random() % static_cast<std::uint32_t>(end - least));
  return result;
}

Numbers numbers_in(const PoisonedArray& array) {
  Numbers result(static_cast<std::size_t>(array.size()));
  if (!result.empty()) std::memcpy(result.data(), array.data(), result.size() * sizeof(result[0]));
  return result;
}

void set_numbers(PoisonedArray& array, const Numbers& numbers) {
  if (!numbers.empty()) std::memcpy(array.data(), numbers.data(), numbers.size() * sizeof(numbers[0]));
}

std::vector<Case> keep_adapter_cases(std::uint32_t seed) {
  std::vector<Case> cases;
  for (const DType dtype : kFloatTypes) {
    for (const std::int64_t tokens : {0, 1, 7, 300}) {
      for (const auto& [adapters, rank] : {std::pair<std::int64_t, std::int64_t>{1, 16}, {3, 5}, {4, 8}}) {
        for (const std::int64_t heads : {1, 3}) {
          Draw draw(++seed);
          const std::int64_t columns = adapters * rank, rows = tokens * heads;
          const Numbers of_tokens = numbers_below(tokens, 0, static_cast<std::int32_t>(adapters + 1), seed);
          cases.push_back({dtype,
                           fmt::format("{} tokens of {} rows, {} adapters of rank {}, seed {}", tokens, heads,
                                       adapters, rank, seed),
                           {draw.normal(dtype, rows * columns), i32_array(of_tokens)},
                           {{"out", PoisonedArray(dtype, rows * columns)}},
                           [=](ThreadPool& pool, const Arrays& in, Arrays& out) {
                             keep_adapter(pool, {in[0].view({rows, columns}), in[1].view(), rank,
                                                 out[0].view({rows, columns})});
                           },
                           [=](const Arrays& in, Arrays& out) {
                             const Numbers number = numbers_in(in[1]);
                             for (std::int64_t i = 0; i < rows * columns; ++i) {
                               const std::int64_t own =
                                   number[static_cast<std::size_t>(i / columns / heads)] - 1;
                               out[0].set(i, i % columns / rank == own ? in[0].at(i) : 0.0f);
                             }
                           }});
        }
      }
    }
  }
  return cases;
}

std::vector<Case> part_experts_cases(std::uint32_t seed) {
  std::vector<Case> cases;
  for (const std::int64_t tokens : {0, 1, 9, 1000}) {
    constexpr std::int32_t kExperts = 6, kNumbers = 4;
    constexpr std::int64_t kPerToken = 3;
    ++seed;
    cases.push_back({DType::i32,
                     fmt::format("{} tokens, seed {}", tokens, seed),
                     {i32_array(numbers_below(tokens * kPerToken, -1, kExperts, seed)),
                      i32_array(numbers_below(tokens, 0, kNumbers, seed + 1))},
                     {{"out", PoisonedArray(DType::i32, tokens * kPerToken)}},
                     [=](ThreadPool& pool, const Arrays& in, Arrays& out) {
                       part_experts(pool, {in[0].view({tokens, kPerToken}), in[1].view(), kNumbers,
                                           out[0].view({tokens, kPerToken})});
                     },
                     [=](const Arrays& in, Arrays& out) {
                       Numbers parts = numbers_in(in[0]);
                       const Numbers number = numbers_in(in[1]);
                       for (std::size_t i = 0; i < parts.size(); ++i) {
                         if (parts[i] >= 0) parts[i] = parts[i] * kNumbers + number[i / kPerToken];
                       }
                       set_numbers(out[0], parts);
                     }});
  }
  return cases;
}

std::vector<Case> join_experts_cases(std::uint32_t seed) {
  std::vector<Case> cases;
  for (const std::int64_t experts : {1, 8, 700}) {
    for (const std::int64_t numbers : {1, 5}) {
      ++seed;
      cases.push_back({DType::i32,
                       fmt::format("{} experts in {} parts, seed {}", experts, numbers, seed),
                       {i32_array(numbers_below(experts * numbers, 0, 50, seed))},
                       {{"out", PoisonedArray(DType::i32, experts)}},
                       [=](ThreadPool& pool, const Arrays& in, Arrays& out) {
                         join_experts(pool, {in[0].view({experts, numbers}), out[0].view()});
                       },
                       [=](const Arrays& in, Arrays& out) {
                         const Numbers sizes = numbers_in(in[0]);
                         Numbers sums(static_cast<std::size_t>(experts));
                         for (std::size_t i = 0; i < sizes.size(); ++i)
                           sums[i / static_cast<std::size_t>(numbers)] += sizes[i];
                         set_numbers(out[0], sums);
                       }});
    }
  }
  return cases;
}

}  // namespace

std::vector<KernelCases> row_adapters_kernels() {
  return {{"keep_adapter", "keep_adapter", keep_adapter_cases},
          {"part_experts", "part_experts", part_experts_cases},
          {"join_experts", "join_experts", join_experts_cases}};
}

}  // namespace switchyard::selftest
