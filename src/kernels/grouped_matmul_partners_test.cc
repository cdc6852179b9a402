// Products that ranks do together are, bit for bit, those of each alone; their gradients the sum over ranks.
#include <gtest/gtest.h>

#include <barrier>
#include <numeric>
#include <optional>
#include <thread>

#include "kernels/elementwise_test_data.h"
#include "kernels/grouped_matmul.h"
#include "kernels/rank_sum.h"

namespace switchyard {
namespace {

using kernel_test::Array;
using kernel_test::every_isa;

// Threads that meet as ranks do.
class Meeting {
 public:
  explicit Meeting(int partners) : shown_(static_cast<std::size_t>(partners)), barrier_(partners) {}

  class Partner : public Partners {
   public:
    Partner(Meeting& meeting, int index) : meeting_(meeting), index_(index) {}
    void meet(const void* mine, const Work& work) override {
      meeting_.shown_[static_cast<std::size_t>(index_)] = mine;
      meeting_.barrier_.arrive_and_wait();
      if (index_ == 0) work(meeting_.shown_);
      meeting_.barrier_.arrive_and_wait();
    }

   private:
    Meeting& meeting_;
    const int index_;
  };

 private:
  std::vector<const void*> shown_;
  std::barrier<> barrier_;
};

struct Weights {
  Weights(std::int64_t groups, std::int64_t k_, std::int64_t n_, std::uint32_t seed)
      : k(k_),
        n(n_),
        rhs_0(Array::normal(DType::bf16, groups * k * n, seed)),
        rhs_1(Array::normal(DType::bf16, groups * k * n, seed + 1)) {}
  const std::int64_t k, n;
  const Array rhs_0, rhs_1;
};

struct Results {
  Array out, dlhs, drhs, out_0, out_1, hidden, dlhs_pair, drhs_0, drhs_1;
};

// All six products of one rank's rows.
Results run(const Weights& w, const std::vector<std::int64_t>& sizes, std::uint32_t seed, DType drhs_dtype,
            int threads, Partners* partners) {
  ThreadPool pool(threads);
  const auto groups = static_cast<std::int64_t>(sizes.size());
  const std::int64_t rows = std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0}),
                     stored = rows / 2 + 1, in = rows * w.k, out = rows * w.n, weights = groups * w.k * w.n;
  const auto make = [&](std::int64_t count, std::uint32_t more) {
    return Array::normal(DType::bf16, count, seed + more);
  };
  const Array lhs = make(in, 0), x = make(stored * w.k, 1), dy_0 = make(out, 2), dy_1 = make(out, 3);
  std::vector<std::int32_t> index;
  std::vector<float> row_weights;
  for (std::int64_t r = 0; r < rows; ++r) {
    index.push_back(static_cast<std::int32_t>(r * 7 % stored));
    row_weights.push_back(0.25f * static_cast<float>(r % 7));
  }
  const auto bf16 = [](std::int64_t count) { return Array(DType::bf16, count); };
  const auto gradient = [&] { return Array(drhs_dtype, weights); };
  Results r{bf16(out), bf16(in), gradient(), bf16(out), bf16(out),
            bf16(out), bf16(in), gradient(), gradient()};
  gmm(pool, DType::bf16, lhs.data(), w.rhs_0.data(), nullptr, sizes, w.k, w.n, r.out.data(), partners);
  gmm_dlhs(pool, DType::bf16, dy_0.data(), w.rhs_0.data(), sizes, w.k, w.n, r.dlhs.data(), partners);
  gmm_drhs(pool, DType::bf16, lhs.data(), dy_0.data(), sizes, w.k, w.n, r.drhs.data(), drhs_dtype, partners);
  gmm_pair(pool, DType::bf16, x.data(), index, w.rhs_0.data(), w.rhs_1.data(), sizes, w.k, w.n,
           r.out_0.data(), r.out_1.data(), row_weights.data(), r.hidden.data(), partners);
  gmm_dlhs_pair(pool, DType::bf16, dy_0.data(), dy_1.data(), w.rhs_0.data(), w.rhs_1.data(), sizes, w.k, w.n,
                r.dlhs_pair.data(), partners);
  gmm_drhs_pair(pool, DType::bf16, x.data(), index, dy_0.data(), dy_1.data(), sizes, w.k, w.n,
                r.drhs_0.data(), r.drhs_1.data(), drhs_dtype, partners);
  return r;
}

// `own_weights`: partners hold copies, as after gathers that were started ahead.
void expect_same_bits(const std::vector<std::vector<std::int64_t>>& sizes, std::int64_t k, std::int64_t n,
                      int threads, DType drhs_dtype = DType::bf16, bool own_weights = false) {
  const auto groups = static_cast<std::int64_t>(sizes.front().size());
  const auto partners = static_cast<int>(sizes.size());
  const Weights shared(groups, k, n, 1), copy(groups, k, n, 1);
  Meeting meeting(partners);
  std::vector<std::optional<Results>> alone(sizes.size()), together(sizes.size());
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < partners; ++rank) {
    ranks.emplace_back([&, rank, isa = active_isa()] {
      const ScopedIsa same(isa);
      const auto i = static_cast<std::size_t>(rank);
      const std::uint32_t seed = 100 * static_cast<std::uint32_t>(rank + 1);
      Meeting::Partner partner(meeting, rank);
      alone[i] = run(shared, sizes[i], seed, DType::bf16, 1, nullptr);
      together[i] =
          run(own_weights && rank % 2 == 1 ? copy : shared, sizes[i], seed, drhs_dtype, threads, &partner);
    });
  }
  for (auto& rank : ranks) rank.join();
  const std::string what = fmt::format("{} k {} n {} threads {}", name_of(active_isa()), k, n, threads);
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const Results &found = *together[i], &expected = *alone[i];
    EXPECT_TRUE(found.out == expected.out && found.dlhs == expected.dlhs) << what << " rank " << i;
    EXPECT_TRUE(found.out_0 == expected.out_0 && found.out_1 == expected.out_1 &&
                found.hidden == expected.hidden && found.dlhs_pair == expected.dlhs_pair)
        << what << " rank " << i;
  }
  const auto expect_sum = [&](Array Results::*gradient) {
    std::vector<const void*> parts;
    for (const auto& one : alone) parts.push_back((*one.*gradient).data());
    Array sum(drhs_dtype, groups * k * n);
    rank_sum(DType::bf16, parts, drhs_dtype, sum.data(), sum.size());
    EXPECT_TRUE(*together.front().*gradient == sum) << what;
  };
  expect_sum(&Results::drhs);
  expect_sum(&Results::drhs_0);
  expect_sum(&Results::drhs_1);
}

// Rows that all partners have, and what each makes of them with weights of its own.
struct Rows {
  Rows(std::vector<std::int64_t> group_sizes, std::int64_t k, std::int64_t n)
      : sizes(std::move(group_sizes)),
        count(std::accumulate(sizes.begin(), sizes.end(), std::int64_t{0})),
        x(Array::normal(DType::bf16, count * k, 11)),
        dy(Array::normal(DType::bf16, count * n, 12)) {
    for (std::int64_t r = 0; r < count; ++r)
      index.push_back(static_cast<std::int32_t>(r * 5 % std::max<std::int64_t>(1, count / 2)));
  }
  const std::vector<std::int64_t> sizes;
  const std::int64_t count;
  const Array x, dy;
  std::vector<std::int32_t> index;
};

// The products that take the shared rows, and drhs, whose own operand is the left one.
std::vector<Array> run(const Weights& w, const Rows& rows, std::uint32_t seed, int threads,
                       Partners* partners) {
  ThreadPool pool(threads);
  const std::int64_t in = rows.count * w.k, out = rows.count * w.n,
                     weights = std::ssize(rows.sizes) * w.k * w.n;
  const Array mine = Array::normal(DType::bf16, in, seed), dy_0 = Array::normal(DType::bf16, out, seed + 1),
              dy_1 = Array::normal(DType::bf16, out, seed + 2);
  const std::vector<std::int32_t> index = rows.index;  // every partner has its own
  std::vector<Array> made;
  for (const std::int64_t count : {out, in, weights, weights, out, out, out, weights, weights})
    made.emplace_back(DType::bf16, count);
  const auto to = [&](std::size_t i) { return made[i].data(); };
  gmm(pool, DType::bf16, rows.x.data(), w.rhs_0.data(), nullptr, rows.sizes, w.k, w.n, to(0), partners);
  gmm_dlhs(pool, DType::bf16, rows.dy.data(), w.rhs_0.data(), rows.sizes, w.k, w.n, to(1), partners);
  gmm_drhs(pool, DType::bf16, mine.data(), rows.dy.data(), rows.sizes, w.k, w.n, to(2), DType::bf16, nullptr,
           partners);
  gmm_drhs(pool, DType::bf16, rows.x.data(), dy_0.data(), rows.sizes, w.k, w.n, to(3), DType::bf16, nullptr,
           partners);
  gmm_pair(pool, DType::bf16, rows.x.data(), index, w.rhs_0.data(), w.rhs_1.data(), rows.sizes, w.k, w.n,
           to(4), to(5), nullptr, to(6), partners);
  gmm_drhs_pair(pool, DType::bf16, rows.x.data(), index, dy_0.data(), dy_1.data(), rows.sizes, w.k, w.n,
                to(7), to(8), DType::bf16, nullptr, partners);
  return made;
}

// Partners 0 and 1 have the same weights: their products are the same.
void expect_same_bits_of_same_rows(const std::vector<std::int64_t>& sizes, std::int64_t k, std::int64_t n,
                                   int threads) {
  constexpr int kPartners = 4;
  const Rows rows(sizes, k, n);
  std::vector<Weights> weights;
  for (std::uint32_t i = 0; i < kPartners; ++i) weights.emplace_back(std::ssize(sizes), k, n, 20 + 2 * i);
  Meeting meeting(kPartners);
  std::vector<std::vector<Array>> alone(kPartners), together(kPartners);
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kPartners; ++rank) {
    ranks.emplace_back([&, rank, isa = active_isa()] {
      const ScopedIsa same(isa);
      const auto i = static_cast<std::size_t>(rank);
      const Weights& mine = weights[std::max<std::size_t>(1, i)];
      Meeting::Partner partner(meeting, rank);
      alone[i] = run(mine, rows, 100 + 10 * static_cast<std::uint32_t>(rank), 1, nullptr);
      together[i] = run(mine, rows, 100 + 10 * static_cast<std::uint32_t>(rank), threads, &partner);
    });
  }
  for (auto& rank : ranks) rank.join();
  for (std::size_t i = 0; i < alone.size(); ++i) {
    for (std::size_t product = 0; product < alone[i].size(); ++product) {
      EXPECT_TRUE(together[i][product] == alone[i][product]) << fmt::format(
          "{} k {} n {} threads {} rank {} result {}", name_of(active_isa()), k, n, threads, i, product);
    }
  }
}

std::vector<Isa> isas_with_partners() {
  std::vector<Isa> isas;
  for (const Isa isa : every_isa()) {
    const ScopedIsa cap(isa);
    if (takes_partners(DType::bf16)) isas.push_back(isa);
  }
  return isas;
}

// Groups that a partner, or all, have no rows for; so few rows that they go another way; rows of one panel
// and of many; depths that end within a step.
TEST(GroupedMatmulPartners, GiveTheBitsOfEachAlone) {
  const std::vector<std::vector<std::int64_t>> sizes{
      {40, 0, 33, 0, 9}, {0, 0, 100, 0, 31}, {64, 0, 3, 0, 12}, {1, 0, 0, 0, 70}};
  for (const Isa isa : isas_with_partners()) {
    const ScopedIsa cap(isa);
    for (const auto& [k, n] : {std::pair<std::int64_t, std::int64_t>{64, 96}, {35, 37}, {1, 1}, {0, 5}}) {
      for (const int threads : {1, 3}) expect_same_bits(sizes, k, n, threads);
      expect_same_bits(sizes, k, n, 2, DType::f32);
      expect_same_bits(sizes, k, n, 2, DType::bf16, true);
    }
  }
}

// Depths of more chunks, sections and passes than one, and rows of more blocks than one.
TEST(GroupedMatmulPartners, LargeProducts) {
  for (const Isa isa : isas_with_partners()) {
    const ScopedIsa cap(isa);
    expect_same_bits({{2500, 10}, {700, 0}, {1300, 40}}, 72, 40, 2);
    expect_same_bits({{60, 10}, {35, 0}}, 2600, 70, 2);
  }
}

// Columns of whole strips and with rests, depths of some sections, enough rows that all threads pack them,
// and so few that each partner is alone.
TEST(GroupedMatmulPartners, OfTheSameRowsGiveTheBitsOfEachAlone) {
  for (const Isa isa : isas_with_partners()) {
    const ScopedIsa cap(isa);
    for (const auto& [k, n] :
         {std::pair<std::int64_t, std::int64_t>{64, 96}, {96, 40}, {35, 37}, {1, 1}, {0, 5}, {2600, 70}}) {
      for (const int threads : {1, 3}) expect_same_bits_of_same_rows({40, 0, 33, 2, 70}, k, n, threads);
    }
    expect_same_bits_of_same_rows({2500}, 264, 130, 3);
  }
}

}  // namespace
}  // namespace switchyard
