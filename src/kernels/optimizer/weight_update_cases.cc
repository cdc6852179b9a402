// Optimizers and sums over ranks: the reference's bits.
#include <fmt/format.h>

#include <cstring>

#include "kernels/optimizer/weight_update.h"
#include "kernels/pointwise/rank_sum.h"
#include "kernels/testing/cases.h"
#include "kernels/testing/example_numbers.h"

namespace switchyard::selftest {
namespace {

constexpr std::int64_t kUpdateSizes[] = {0, 1, 15, 32, 33, 1000, 70001};

PoisonedArray numbers_of_step() {
  PoisonedArray array(DType::f32, kUpdateNumbers);
  std::memcpy(array.data(), &kExampleNumbers, sizeof(kExampleNumbers));
  return array;
}

// Arrays of a list, one behind the other in the case's arrays, some of them at odd addresses.
class Pieces {
 public:
  void add(std::int64_t size) { ends_.push_back(elements() + size); }
  std::int64_t count() const { return std::ssize(ends_); }
  std::int64_t elements() const { return ends_.empty() ? 0 : ends_.back(); }
  TensorView of(const PoisonedArray& array, std::int64_t piece) const {
    const auto p = static_cast<std::size_t>(piece);
    return array.view().rows(p == 0 ? 0 : ends_[p - 1], ends_[p]);
  }

 private:
  std::vector<std::int64_t> ends_;
};

std::vector<Pieces> update_lists() {
  std::vector<Pieces> lists;
  for (const std::int64_t size : kUpdateSizes) lists.emplace_back().add(size);
  // More than a GPU's kernel takes at once.
  constexpr std::int64_t kSizes[] = {0, 1, 4096, 4097, 3, 0, 0, 8200, 64};
  Pieces& many = lists.emplace_back();
  for (int i = 0; i < 90; ++i) many.add(kSizes[i % 9]);
  return lists;
}

// The sums of squares of new weights, which are near the old ones, one a piece.
Output weight_sums(const PoisonedArray& weight, const Pieces& pieces) {
  return square_sums_output(pieces.count(), 2 * squares_of(weight) + 1);
}
TensorView sum_of(const PoisonedArray& sums, std::int64_t piece) {
  return sums.view().rows(piece, piece + 1);
}

PoisonedArray squared(PoisonedArray x) {
  for (std::int64_t i = 0; i < x.size(); ++i) x.set(i, x.at(i) * x.at(i));
  return x;
}

// make(type, pieces, draw) for every choice of dtypes of `arrays` arrays; type(0) is that of the weights.
template <typename MakeCase>
std::vector<Case> update_cases(std::uint32_t seed, int arrays, const MakeCase& make) {
  std::vector<Case> cases;
  for (int types = 0; types < 1 << arrays; ++types) {
    const auto type = [&](int array) { return kFloatTypes[types >> array & 1]; };
    for (const Pieces& pieces : update_lists()) {
      Draw draw(++seed * 4);
      std::string what = fmt::format("{} elements in {} arrays of", pieces.elements(), pieces.count());
      for (int array = 0; array < arrays; ++array) what += fmt::format(" {}", name_of(type(array)));
      what += fmt::format(", seed {}", draw.seed());
      cases.push_back(make(type, pieces, draw));
      cases.back().what = what;
    }
  }
  return cases;
}

std::vector<Case> adam_cases(std::uint32_t seed) {
  return update_cases(seed, 4, [](const auto& type, const Pieces& pieces, Draw& draw) {
    const std::int64_t n = pieces.elements();
    const PoisonedArray weight = draw.normal(type(0), n);
    return Case{type(0),
                "",
                {draw.normal(type(1), n), numbers_of_step()},
                {{"weight", weight},
                 {"mu", draw.normal(type(2), n, 0.1f)},
                 {"nu", squared(draw.normal(type(3), n, 0.1f))},
                 weight_sums(weight, pieces)},
                [pieces](ThreadPool& pool, const Arrays& in, Arrays& out) {
                  std::vector<AdamArrays> updates;
                  for (std::int64_t i = 0; i < pieces.count(); ++i)
                    updates.push_back({pieces.of(out[0], i), pieces.of(in[0], i), pieces.of(out[1], i),
                                       pieces.of(out[2], i), sum_of(out[3], i), i % 3 != 1});
                  adam_update(pool, in[1].view(), updates);
                }};
  });
}

std::vector<Case> descent_cases(std::uint32_t seed) {
  return update_cases(seed, 2, [](const auto& type, const Pieces& pieces, Draw& draw) {
    const std::int64_t n = pieces.elements();
    const PoisonedArray weight = draw.normal(type(0), n);
    return Case{type(0),
                "",
                {draw.normal(type(1), n), numbers_of_step()},
                {{"weight", weight}, weight_sums(weight, pieces)},
                [pieces](ThreadPool& pool, const Arrays& in, Arrays& out) {
                  std::vector<DescentArrays> updates;
                  for (std::int64_t i = 0; i < pieces.count(); ++i)
                    updates.push_back({pieces.of(out[0], i), pieces.of(in[0], i), sum_of(out[1], i)});
                  descent_update(pool, in[1].view(), updates);
                }};
  });
}

std::vector<Case> momentum_cases(std::uint32_t seed) {
  return update_cases(seed, 2, [](const auto& type, const Pieces& pieces, Draw& draw) {
    const std::int64_t n = pieces.elements();
    return Case{type(0),
                "",
                {draw.normal(type(1), n), numbers_of_step()},
                {{"momentum", draw.normal(type(0), n)}, {"direction", PoisonedArray(DType::f32, n)}},
                [](ThreadPool& pool, const Arrays& in, Arrays& out) {
                  momentum_update(pool, in[1].view(), {in[0].view(), out[0].view(), out[1].view()});
                }};
  });
}

std::vector<Case> direction_cases(std::uint32_t seed) {
  return update_cases(seed, 1, [](const auto& type, const Pieces& pieces, Draw& draw) {
    const std::int64_t n = pieces.elements();
    const PoisonedArray weight = draw.normal(type(0), n);
    return Case{type(0),
                "",
                {draw.normal(DType::f32, n), numbers_of_step()},
                {{"weight", weight}, weight_sums(weight, pieces)},
                [pieces](ThreadPool& pool, const Arrays& in, Arrays& out) {
                  for (std::int64_t i = 0; i < pieces.count(); ++i)
                    direction_update(pool, in[1].view(), {.scale = 2, .decay = 0.3},
                                     {pieces.of(in[0], i), pieces.of(out[0], i), sum_of(out[1], i)});
                }};
  });
}

std::vector<Case> rank_sum_cases(std::uint32_t seed) {
  const std::pair<DType, DType> types[] = {
      {DType::f32, DType::f32}, {DType::bf16, DType::bf16}, {DType::bf16, DType::f32}};
  std::vector<Case> cases;
  for (const auto& [dtype, out_dtype] : types) {
    for (const int ranks : {1, 2, 3, 8}) {
      for (const std::int64_t n : kUpdateSizes) {
        Draw draw(++seed * 8);
        Case c{dtype, fmt::format("{} ranks, {} elements into {}, seed {}", ranks, n, name_of(out_dtype),
                                  draw.seed())};
        for (int r = 0; r < ranks; ++r) c.inputs.push_back(draw.normal(dtype, n));
        c.outputs.push_back({"out", PoisonedArray(out_dtype, n)});
        c.run = [dtype = dtype, out_dtype = out_dtype, n](ThreadPool&, const Arrays& in, Arrays& out) {
          std::vector<const void*> inputs;
          for (const PoisonedArray& x : in) inputs.push_back(x.view().device_address());
          const TensorView sum = out[0].view();
          if (!sum.on_gpu()) return rank_sum(dtype, inputs, out_dtype, sum.device_address(), n);
          gpu::sum_in_order({.type = dtype == DType::f32       ? "float32"
                                     : out_dtype == DType::f32 ? "bfloat16 as float32"
                                                               : "bfloat16",
                             .inputs = inputs,
                             .run = n,
                             .stride = n,
                             .count = n,
                             .out = sum.device_address()});
        };
        cases.push_back(std::move(c));
      }
    }
  }
  return cases;
}

}  // namespace

std::vector<KernelCases> weight_update_kernels() {
  return {{"adam_update", "adam", adam_cases},
          {"descent_update", "sgd", descent_cases},
          {"momentum_update", "momentum", momentum_cases},
          {"direction_update", "direction", direction_cases},
          {"rank_sum", "rank_sum", rank_sum_cases}};
}

}  // namespace switchyard::selftest
