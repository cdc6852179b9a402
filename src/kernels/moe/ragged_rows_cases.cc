// Moves between tokens and rows sorted by expert: products and sums of fractions that are exact in fp32.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <random>

#include "kernels/moe/dense_weights.h"
#include "kernels/moe/plan_rows.h"
#include "kernels/moe/ragged_rows.h"
#include "kernels/testing/cases.h"
#include "kernels/testing/exact_operands.h"

namespace switchyard::selftest {
namespace {

using Indices = std::vector<std::int32_t>;

Indices indices_in(const PoisonedArray& array) {
  Indices result(static_cast<std::size_t>(array.size()));
  if (!result.empty()) std::memcpy(result.data(), array.data(), result.size() * sizeof(result[0]));
  return result;
}

// The assignments sorted by expert, and their positions.
struct Sorted {
  explicit Sorted(const Indices& ids) : order(ids.size()), position(ids.size()) {
    std::iota(order.begin(), order.end(), 0);
    const auto id_of = [&](std::int32_t row) { return ids[static_cast<std::size_t>(row)]; };
    std::stable_sort(order.begin(), order.end(),
                     [&](std::int32_t x, std::int32_t y) { return id_of(x) < id_of(y); });
    for (std::size_t i = 0; i < order.size(); ++i)
      position[static_cast<std::size_t>(order[i])] = static_cast<std::int32_t>(i);
  }
  Indices order, position;
};

// Tokens of `per_token` assignments each, sorted by expert. Of the sorted positions those in [start, end)
// have rows; the others are below 0 or too large.
struct RaggedShape {
  std::int64_t tokens, per_token, m, start, end;
  DType dtype;
  std::uint32_t seed;
  Sorted sorted;

  std::int64_t rows() const { return end - start; }
  Shape of_tokens() const { return {tokens, m}; }
  Shape of_rows() const { return {rows(), m}; }
  Shape of_assignments() const { return {tokens, per_token}; }
  std::string text() const {
    return fmt::format("{} tokens of {} assignments of {}, positions [{}, {}), seed {}", tokens, per_token, m,
                       start, end, seed);
  }
  // The token of each row.
  PoisonedArray token_of() const {
    Indices result(sorted.order.begin() + start, sorted.order.begin() + end);
    for (std::int32_t& row : result) row /= static_cast<std::int32_t>(per_token);
    return i32_array(result);
  }
  PoisonedArray position() const {
    Indices result = sorted.position;
    for (std::int32_t& at : result) at -= static_cast<std::int32_t>(start);
    return i32_array(result);
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
    const auto add = [&](std::int64_t tokens, std::int64_t per_token, std::int64_t m, std::int64_t start,
                         std::int64_t end) {
      seed += kSeedsOfCase;
      make(RaggedShape{tokens, per_token, m, start, end, dtype, seed,
                       Sorted(expert_ids(tokens * per_token, 5, m == 33, seed))},
           cases);
    };
    add(0, 2, 7, 0, 0);
    for (const std::int64_t m : {0, 1, 7, 16, 33, 100}) {
      for (const std::int64_t per_token : {1, 3}) {
        add(11, per_token, m, 0, 11 * per_token);
        add(11, per_token, m, 2, 9);
        add(11, per_token, m, 4, 4);
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
                       {draw.left(s.tokens * s.m), draw.addend(DType::f32, s.rows()), s.token_of()},
                       {{"out", PoisonedArray(s.dtype, s.rows() * s.m)}},
                       [s, weighted](ThreadPool& pool, const Arrays& in, Arrays& out) {
                         ragged_gather(pool,
                                       {in[0].view(s.of_tokens()), in[2].view(),
                                        weighted ? in[1].view() : TensorView(), out[0].view(s.of_rows())});
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
             {draw.left(s.rows() * s.m), draw.addend(DType::f32, s.tokens * s.per_token), s.position()},
             {{"out", PoisonedArray(out_dtype, s.tokens * s.m)}},
             [s, weighted](ThreadPool& pool, const Arrays& in, Arrays& out) {
               ragged_gather_reduce(pool, {in[0].view(s.of_rows()), in[2].view(s.of_assignments()),
                                           weighted ? in[1].view(s.of_assignments()) : TensorView(),
                                           out[0].view(s.of_tokens())});
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
                     {draw.left(s.tokens * s.m), draw.right(s.rows() * s.m), s.position()},
                     {{"dw", PoisonedArray(DType::f32, s.tokens * s.per_token)}},
                     [s](ThreadPool& pool, const Arrays& in, Arrays& out) {
                       ragged_row_dot(pool,
                                      {in[0].view(s.of_tokens()), in[1].view(s.of_rows()),
                                       in[2].view(s.of_assignments()), out[0].view(s.of_assignments())});
                     }});
  });
}

// Experts [first, first + here) of `experts`; each passes over `passed_over` assignments, or as many as it
// has, and keeps the others but `left_out`.
std::vector<Case> plan_rows_cases(std::uint32_t seed) {
  std::vector<Case> cases;
  constexpr std::int64_t kPerToken = 2;
  for (const std::int64_t count : {0, 2, 100, 10000}) {
    for (const auto& [experts, first, here] :
         {std::array<std::int32_t, 3>{1, 0, 1}, {3, 0, 3}, {200, 0, 200}, {200, 50, 25}, {3, 2, 1}}) {
      for (const auto& [left_out, passed_over] :
           {std::pair<std::int32_t, std::int32_t>{0, 0}, {3, 0}, {0, 2}, {3, 40}}) {
        const Indices ids = expert_ids(count, experts, left_out == 3 && experts == 3, ++seed);
        Indices kept(static_cast<std::size_t>(here), 0);
        for (const std::int32_t id : ids) {
          if (id >= first && id < first + here) ++kept[static_cast<std::size_t>(id - first)];
        }
        Indices skipped;
        for (std::int32_t& n : kept) {
          skipped.push_back(std::min(n, passed_over));
          n = std::max(0, n - skipped.back() - left_out);
        }
        const std::int64_t rows = std::accumulate(kept.begin(), kept.end(), std::int64_t{0});
        const PoisonedArray of_rows(DType::i32, rows);
        cases.push_back(
            {DType::i32,
             fmt::format(
                 "{} assignments, experts [{}, {}) of {}, {} passed over and {} left out of each, seed {}",
                 count, first, first + here, experts, passed_over, left_out, seed),
             {i32_array(ids), i32_array(kept), i32_array(skipped)},
             {{"assignments", of_rows}, {"tokens", of_rows}, {"position", PoisonedArray(DType::i32, count)}},
             [=](ThreadPool& pool, const Arrays& in, Arrays& out) {
               plan_rows(pool, {.ids = in[0].view({count / kPerToken, kPerToken}),
                                .first = first,
                                .kept = in[1].view(),
                                .assignments = out[0].view(),
                                .tokens = out[1].view(),
                                .position = out[2].view(),
                                .skipped = passed_over > 0 ? in[2].view() : TensorView()});
             },
             [=](const Arrays&, Arrays& out) {
               Indices order, tokens, position(ids.size(), -1), left = kept, over = skipped;
               for (const std::int32_t row : Sorted(ids).order) {
                 const std::int32_t e = ids[static_cast<std::size_t>(row)] - first;
                 if (e < 0 || e >= here || over[static_cast<std::size_t>(e)]-- > 0 ||
                     left[static_cast<std::size_t>(e)]-- <= 0)
                   continue;
                 position[static_cast<std::size_t>(row)] = static_cast<std::int32_t>(order.size());
                 order.push_back(row);
                 tokens.push_back(row / static_cast<std::int32_t>(kPerToken));
               }
               out = {i32_array(order), i32_array(tokens), i32_array(position)};
             }});
      }
    }
  }
  return cases;
}

std::vector<Case> count_ids_cases(std::uint32_t seed) {
  std::vector<Case> cases;
  for (const std::int64_t count : {0, 1, 100, 10000}) {
    for (const std::int32_t first : {0, 4}) {
      const Indices ids = expert_ids(count, 9, first == 4 && count == 100, ++seed);
      cases.push_back(
          {DType::i32,
           fmt::format("{} assignments, experts [{}, {}) of 9, seed {}", count, first, first + 5, seed),
           {i32_array(ids)},
           {{"counts", PoisonedArray(DType::i32, 5)}},
           [=](ThreadPool& pool, const Arrays& in, Arrays& out) {
             count_ids(pool, in[0].view(), first, out[0].view());
           },
           [=](const Arrays&, Arrays& out) {
             Indices counts;
             for (std::int32_t e = first; e < first + 5; ++e)
               counts.push_back(static_cast<std::int32_t>(std::count(ids.begin(), ids.end(), e)));
             out = {i32_array(counts)};
           }});
    }
  }
  return cases;
}

// Sequences of six tokens of two assignments, five experts.
std::vector<Case> plan_places_cases(std::uint32_t seed) {
  std::vector<Case> cases;
  constexpr std::int64_t kLength = 6, kPerToken = 2, kExperts = 5;
  for (const std::int64_t batch : {0, 1, 7}) {
    for (const std::int64_t capacity : {1, 3, 12}) {
      const Indices ids =
          expert_ids(batch * kLength * kPerToken, kExperts, batch == 7 && capacity == 3, ++seed);
      const PoisonedArray places(DType::i32, kExperts * batch * capacity);
      cases.push_back({DType::i32,
                       fmt::format("{} sequences, {} places, seed {}", batch, capacity, seed),
                       {i32_array(ids)},
                       {{"assignments", places},
                        {"tokens", places},
                        {"position", PoisonedArray(DType::i32, batch * kLength * kPerToken)},
                        {"dropped", PoisonedArray(DType::i32, kExperts)}},
                       [=](ThreadPool& pool, const Arrays& in, Arrays& out) {
                         const Shape of_places{kExperts, batch, capacity}, of_ids{batch, kLength, kPerToken};
                         plan_places(pool, {.ids = in[0].view(of_ids),
                                            .assignments = out[0].view(of_places),
                                            .tokens = out[1].view(of_places),
                                            .position = out[2].view(of_ids),
                                            .dropped = out[3].view()});
                       },
                       // Expert by expert, where the kernel goes through the assignments.
                       [=](const Arrays&, Arrays& out) {
                         Indices rows, tokens, position(ids.size(), -1), dropped(kExperts, 0);
                         for (std::int32_t e = 0; e < kExperts; ++e) {
                           for (std::int64_t b = 0; b < batch; ++b) {
                             std::int64_t free = capacity;
                             for (std::int64_t i = 0; i < kLength * kPerToken; ++i) {
                               const std::int64_t row = b * kLength * kPerToken + i;
                               if (ids[static_cast<std::size_t>(row)] != e) continue;
                               if (free == 0) {
                                 ++dropped[static_cast<std::size_t>(e)];
                                 continue;
                               }
                               --free;
                               position[static_cast<std::size_t>(row)] =
                                   static_cast<std::int32_t>(rows.size());
                               rows.push_back(static_cast<std::int32_t>(row));
                               tokens.push_back(static_cast<std::int32_t>(row / kPerToken));
                             }
                             rows.insert(rows.end(), static_cast<std::size_t>(free), -1);
                             tokens.insert(tokens.end(), static_cast<std::size_t>(free), -1);
                           }
                         }
                         out = {i32_array(rows), i32_array(tokens), i32_array(position), i32_array(dropped)};
                       }});
    }
  }
  return cases;
}

// Eleven and two thousand tokens of three assignments, which may choose an expert twice.
template <typename MakeCase>
std::vector<Case> dense_weights_family(std::uint32_t seed, const MakeCase& make) {
  std::vector<Case> cases;
  for (const std::int64_t tokens : {0, 11, 2000}) {
    for (const std::int64_t experts : {1, 5}) {
      seed += kSeedsOfCase;
      const Indices ids = expert_ids(tokens * 3, static_cast<std::int32_t>(experts), false, seed);
      cases.push_back(make(tokens, experts, ids, seed));
      cases.back().what = fmt::format("{} tokens, {} experts, seed {}", tokens, experts, seed);
    }
  }
  return cases;
}

std::vector<Case> dense_weights_cases(std::uint32_t seed) {
  return dense_weights_family(
      seed, [](std::int64_t tokens, std::int64_t experts, const Indices& ids, std::uint32_t its_seed) {
        ExactOperands draw(DType::f32, its_seed);
        return Case{DType::f32,
                    "",
                    {i32_array(ids), draw.addend(DType::f32, tokens * 3)},
                    {{"out", PoisonedArray(DType::f32, experts * tokens)}},
                    [=](ThreadPool& pool, const Arrays& in, Arrays& out) {
                      dense_weights(pool, {in[0].view({tokens, 3}), in[1].view({tokens, 3}),
                                           out[0].view({experts, tokens})});
                    },
                    [=](const Arrays& in, Arrays& out) {
                      const Indices expert = indices_in(in[0]);
                      for (std::int64_t e = 0; e < experts; ++e) {
                        for (std::int64_t t = 0; t < tokens; ++t) {
                          float sum = 0;
                          for (std::int64_t r = 3 * t; r < 3 * t + 3; ++r)
                            sum += expert[static_cast<std::size_t>(r)] == e ? in[1].at(r) : 0;
                          out[0].set(e * tokens + t, sum);
                        }
                      }
                    }};
      });
}

std::vector<Case> dense_weights_backward_cases(std::uint32_t seed) {
  return dense_weights_family(
      seed, [](std::int64_t tokens, std::int64_t experts, const Indices& ids, std::uint32_t its_seed) {
        ExactOperands draw(DType::f32, its_seed);
        return Case{
            DType::f32,
            "",
            {i32_array(ids), draw.addend(DType::f32, experts * tokens)},
            {{"dweights", PoisonedArray(DType::f32, tokens * 3)}},
            [=](ThreadPool& pool, const Arrays& in, Arrays& out) {
              dense_weights_backward(
                  pool, {in[0].view({tokens, 3}), in[1].view({experts, tokens}), out[0].view({tokens, 3})});
            },
            [=](const Arrays& in, Arrays& out) {
              const Indices expert = indices_in(in[0]);
              for (std::int64_t t = 0; t < tokens; ++t) {
                for (std::int64_t k = 0; k < 3; ++k)
                  out[0].set(3 * t + k, in[1].at(expert[static_cast<std::size_t>(3 * t + k)] * tokens + t));
              }
            }};
      });
}

}  // namespace

std::vector<KernelCases> ragged_rows_kernels() {
  return {{"count_ids", "count_ids", count_ids_cases},
          {"plan_rows", "plan_rows", plan_rows_cases},
          {"plan_places", "plan_places", plan_places_cases},
          {"dense_weights", "dense_weights", dense_weights_cases},
          {"dense_weights_backward", "dense_weights_backward", dense_weights_backward_cases},
          {"ragged_gather", "ragged_gather", ragged_gather_cases},
          {"ragged_gather_reduce", "ragged_gather_reduce", ragged_gather_reduce_cases},
          {"ragged_row_dot", "ragged_row_dot", ragged_row_dot_cases}};
}

}  // namespace switchyard::selftest
