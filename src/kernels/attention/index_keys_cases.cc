// Sparse attention: an indexer's scores, its choice of keys, and its loss. The references compute in double;
// the choice and the gradient of the loss are the reference's own: by sorting, and by differences.
#include <fmt/format.h>

#include <cmath>
#include <limits>

#include "kernels/attention/index_keys.h"
#include "kernels/attention/index_loss.h"
#include "kernels/attention/reference/index_reference.h"
#include "kernels/testing/cases.h"

namespace switchyard::selftest {
namespace {

struct IndexShape {
  IndexSizes sizes;
  int segments = 0;         // 0: one
  std::int64_t ahead = -1;  // places of the queries given, so many before the first; -1: not given
};

constexpr IndexShape kIndexShapes[] = {
    {{0, 3, 3, 2, 4}},       {{1, 1, 1, 1, 1}},          {{2, 7, 7, 3, 8}},
    {{1, 40, 40, 4, 24}, 3}, {{2, 5, 70, 2, 17}, 0, 65}, {{1, 1, 150, 16, 33}, 2, 149},
    {{1, 70, 70, 5, 130}},
};

// Places and segments of a case, which is given them as inputs.
struct IndexMasks {
  std::vector<std::int32_t> q_index, q_segment, kv_segment;

  explicit IndexMasks(const IndexShape& shape) {
    const IndexSizes& s = shape.sizes;
    const std::int64_t first = std::max<std::int64_t>(0, shape.ahead);
    for (std::int64_t i = 0; i < s.batch * s.queries; ++i)
      q_index.push_back(static_cast<std::int32_t>(first + i % s.queries));
    const auto segment = [&](std::int64_t place) {
      return static_cast<std::int32_t>(place * std::max(1, shape.segments) /
                                       std::max<std::int64_t>(1, s.keys));
    };
    for (const std::int32_t place : q_index) q_segment.push_back(segment(place));
    for (std::int64_t i = 0; i < s.batch * s.keys; ++i) kv_segment.push_back(segment(i % s.keys));
  }
  Arrays arrays() const { return {i32_array(q_index), i32_array(q_segment), i32_array(kv_segment)}; }
};

// The masks of a case, from place `at` of its inputs on.
template <typename Args>
void set_masks(const IndexShape& shape, const Arrays& in, std::size_t at, Args& args) {
  const IndexSizes& s = shape.sizes;
  if (shape.ahead >= 0) args.q_index = in[at].view({s.batch, s.queries});
  if (shape.segments == 0) return;
  args.q_segment = in[at + 1].view({s.batch, s.queries});
  args.kv_segment = in[at + 2].view({s.batch, s.keys});
}
SeenKeys seen_of(const IndexShape& shape, const Arrays& in, std::size_t at) {
  const auto numbers = [&](std::size_t i) { return static_cast<const std::int32_t*>(in[i].data()); };
  SeenKeys seen{shape.sizes.queries, shape.sizes.keys};
  if (shape.ahead >= 0) seen.q_index = numbers(at);
  if (shape.segments > 0) seen.q_segment = numbers(at + 1), seen.kv_segment = numbers(at + 2);
  return seen;
}

Arrays with(Arrays some, const Arrays& more) {
  some.insert(some.end(), more.begin(), more.end());
  return some;
}

template <typename Body>
void with_type(DType dtype, const Body& body) {
  dtype == DType::f32 ? body(float()) : body(bfloat16());
}
template <typename T>
const T* data_of(const PoisonedArray& x) {
  return static_cast<const T*>(x.data());
}
template <typename T>
T* data_of(PoisonedArray& x) {
  return static_cast<T*>(x.data());
}

std::string name_of_case(const IndexShape& shape, std::uint32_t seed) {
  const IndexSizes& s = shape.sizes;
  return fmt::format("batch {}, {} queries of {} heads of {}, {} keys{}{}, seed {}", s.batch, s.queries,
                     s.heads, s.width, s.keys,
                     shape.segments > 0 ? fmt::format(", {} segments", shape.segments) : "",
                     shape.ahead >= 0 ? ", positions given" : "", seed);
}

// make(shape, dtype, draw) gives a case without its name.
template <typename MakeCase>
std::vector<Case> index_family(std::uint32_t seed, const MakeCase& make) {
  std::vector<Case> cases;
  for (const DType dtype : kFloatTypes) {
    for (const IndexShape& shape : kIndexShapes) {
      Draw draw(++seed * 8);
      cases.push_back(make(shape, dtype, draw));
      cases.back().what = name_of_case(shape, draw.seed());
    }
  }
  return cases;
}

std::int64_t pairs_of(const IndexSizes& s) {
  return s.batch * s.queries * s.keys;
}

// q, k and weights, then what the masks are.
Arrays index_inputs(const IndexShape& shape, DType dtype, Draw& draw) {
  const IndexSizes& s = shape.sizes;
  return with({draw.normal(dtype, s.batch * s.queries * s.heads * s.width),
               draw.normal(dtype, s.batch * s.keys * s.width),
               draw.normal(DType::f32, s.batch * s.queries * s.heads)},
              IndexMasks(shape).arrays());
}

std::vector<Case> index_scores_cases(std::uint32_t seed) {
  return index_family(seed, [](const IndexShape& shape, DType dtype, Draw& draw) {
    const IndexSizes& s = shape.sizes;
    return Case{dtype,
                "",
                index_inputs(shape, dtype, draw),
                {{"scores", PoisonedArray(DType::f32, pairs_of(s)), {3e-6, 1e-5}}},
                [shape](ThreadPool& pool, const Arrays& in, Arrays& out) {
                  const IndexSizes& of = shape.sizes;
                  IndexScoresArgs args{.q = in[0].view({of.batch, of.queries, of.heads, of.width}),
                                       .k = in[1].view({of.batch, of.keys, of.width}),
                                       .weights = in[2].view({of.batch, of.queries, of.heads}),
                                       .factor = 0.25f,
                                       .scores = out[0].view({of.batch, of.queries, of.keys})};
                  set_masks(shape, in, 3, args);
                  index_scores(pool, args);
                },
                [shape, dtype](const Arrays& in, Arrays& out) {
                  with_type(dtype, [&]<typename T>(T) {
                    reference::index_scores(shape.sizes, seen_of(shape, in, 3), data_of<T>(in[0]),
                                            data_of<T>(in[1]), in[2].floats(), 0.25, out[0].floats());
                  });
                }};
  });
}

std::vector<Case> index_scores_backward_cases(std::uint32_t seed) {
  return index_family(seed, [](const IndexShape& shape, DType dtype, Draw& draw) {
    const IndexSizes& s = shape.sizes;
    Arrays inputs = index_inputs(shape, dtype, draw);
    PoisonedArray dscores = draw.normal(DType::f32, pairs_of(s));
    const SeenKeys seen = seen_of(shape, inputs, 3);
    for (std::int64_t i = 0; i < dscores.size(); ++i) {
      const std::int64_t row = i / s.keys;
      if (!reference::sees(seen, row / s.queries, row % s.queries, i % s.keys)) dscores.set(i, 0);
    }
    inputs.push_back(dscores);
    // In bf16 the products' gradients are rounded before they are multiplied.
    const Bound bound = dtype == DType::f32 ? Bound{1e-5, 1e-4} : Bound{0x1p-6, 0.06};
    return Case{dtype,
                "",
                inputs,
                {{"dq", PoisonedArray(dtype, inputs[0].size()), bound, dtype == DType::f32 ? 0 : 0x1p-8},
                 {"dk", PoisonedArray(dtype, inputs[1].size()), bound, dtype == DType::f32 ? 0 : 0x1p-8},
                 {"dweights", PoisonedArray(DType::f32, inputs[2].size()), {1e-5, 1e-4}}},
                [shape](ThreadPool& pool, const Arrays& in, Arrays& out) {
                  const IndexSizes& of = shape.sizes;
                  const Shape q{of.batch, of.queries, of.heads, of.width}, k{of.batch, of.keys, of.width},
                      weights{of.batch, of.queries, of.heads};
                  index_scores_backward(pool, {.q = in[0].view(q),
                                               .k = in[1].view(k),
                                               .weights = in[2].view(weights),
                                               .factor = 0.25f,
                                               .dscores = in[6].view({of.batch, of.queries, of.keys}),
                                               .dq = out[0].view(q),
                                               .dk = out[1].view(k),
                                               .dweights = out[2].view(weights)});
                },
                [shape, dtype](const Arrays& in, Arrays& out) {
                  with_type(dtype, [&]<typename T>(T) {
                    reference::index_scores_backward(shape.sizes, data_of<T>(in[0]), data_of<T>(in[1]),
                                                     in[2].floats(), 0.25, in[6].floats(), data_of<T>(out[0]),
                                                     data_of<T>(out[1]), out[2].floats());
                  });
                }};
  });
}

// Rows of numbers of which many are equal, with zeros of both signs, NaNs and keys that are not seen.
PoisonedArray scores_with_ties(std::int64_t rows, std::int64_t keys, std::uint32_t seed) {
  PoisonedArray scores = PoisonedArray::integers(DType::f32, rows * keys, seed, 4);
  for (std::int64_t i = 0; i < rows * keys; ++i) {
    const std::int64_t row = i / keys, t = i % keys;
    if (scores.at(i) == 0 && i % 3 == 0) scores.set(i, -0.0f);
    if (row % 4 == 1 && t > row) scores.set(i, -std::numeric_limits<float>::infinity());
    if (row % 4 == 2 && t % 5 == 0) scores.set(i, std::numeric_limits<float>::quiet_NaN());
    if (row % 4 == 3) scores.set(i, -std::numeric_limits<float>::infinity());
  }
  return scores;
}

struct ChoiceShape {
  std::int64_t rows, keys, count;
};
constexpr ChoiceShape kChoices[] = {{0, 5, 2},   {1, 1, 1},     {9, 31, 4},    {9, 64, 64},
                                    {9, 33, 40}, {13, 300, 64}, {4, 1000, 100}};

std::vector<Case> choose_keys_cases(std::uint32_t seed) {
  std::vector<Case> cases;
  for (const ChoiceShape& s : kChoices) {
    for (const bool ties : {false, true}) {
      ++seed;
      const std::int64_t words = words_of_keys(s.keys);
      cases.push_back({DType::f32,
                       fmt::format("{} of {} keys of {} rows{}, seed {}", s.count, s.keys, s.rows,
                                   ties ? ", with ties" : "", seed),
                       {ties ? scores_with_ties(s.rows, s.keys, seed)
                             : PoisonedArray::normal(DType::f32, s.rows * s.keys, seed)},
                       {{"bits", PoisonedArray(DType::i32, s.rows * words)},
                        {"ids", PoisonedArray(DType::i32, s.rows * s.count)}},
                       [s, words](ThreadPool& pool, const Arrays& in, Arrays& out) {
                         choose_keys(pool, {.scores = in[0].view({s.rows, s.keys}),
                                            .count = s.count,
                                            .bits = out[0].view({s.rows, words}),
                                            .ids = out[1].view({s.rows, s.count}),
                                            .first_id = 7});
                       },
                       [s, words](const Arrays& in, Arrays& out) {
                         auto *const bits = data_of<std::int32_t>(out[0]), *const ids =
                                                                               data_of<std::int32_t>(out[1]);
                         std::fill_n(bits, s.rows * words, 0);
                         std::fill_n(ids, s.rows * s.count, 7);
                         for (std::int64_t row = 0; row < s.rows; ++row) {
                           std::int64_t at = row * s.count;
                           for (const std::int64_t t :
                                reference::chosen_keys(in[0].floats() + row * s.keys, s.keys, s.count)) {
                             std::int32_t& word = bits[row * words + t / 32];
                             word =
                                 static_cast<std::int32_t>(static_cast<std::uint32_t>(word) | 1u << (t % 32));
                             ids[at++] = static_cast<std::int32_t>(7 + t);
                           }
                         }
                       }});
    }
  }
  return cases;
}

// Bits of chosen keys, one at least of those that each query sees.
PoisonedArray chosen_bits(const IndexShape& shape, const SeenKeys& seen, std::uint32_t seed) {
  const IndexSizes& s = shape.sizes;
  const std::int64_t words = words_of_keys(s.keys);
  PoisonedArray random = PoisonedArray::integers(DType::f32, pairs_of(s), seed, 1),
                bits(DType::i32, s.batch * s.queries * words);
  auto* const to = data_of<std::int32_t>(bits);
  std::fill_n(to, bits.size(), 0);
  for (std::int64_t row = 0; row < s.batch * s.queries; ++row) {
    bool any = false;
    for (std::int64_t t = s.keys; t-- > 0;) {
      if (!reference::sees(seen, row / s.queries, row % s.queries, t)) continue;
      if (any && random.at(row * s.keys + t) < 0) continue;
      any = true;
      std::int32_t& word = to[row * words + t / 32];
      word = static_cast<std::int32_t>(static_cast<std::uint32_t>(word) | 1u << (t % 32));
    }
  }
  return bits;
}

template <bool chooses>
std::vector<Case> head_shares_cases(std::uint32_t seed) {
  return index_family(seed, [](const IndexShape& shape, DType dtype, Draw& draw) {
    const IndexSizes& s = shape.sizes;
    Arrays inputs = with({draw.normal(dtype, s.batch * s.queries * s.heads * s.width),
                          draw.normal(dtype, s.batch * s.keys * s.heads * s.width)},
                         IndexMasks(shape).arrays());
    inputs.push_back(chosen_bits(shape, seen_of(shape, inputs, 2), draw.seed()));
    return Case{dtype,
                "",
                inputs,
                {{"shares", PoisonedArray(DType::f32, pairs_of(s)), {1e-5, 1e-6}}},
                [shape](ThreadPool& pool, const Arrays& in, Arrays& out) {
                  const IndexSizes& of = shape.sizes;
                  HeadSharesArgs args{.q = in[0].view({of.batch, of.queries, of.heads, of.width}),
                                      .k = in[1].view({of.batch, of.keys, of.heads, of.width}),
                                      .scale = 0.3f,
                                      .shares = out[0].view({of.batch, of.queries, of.keys})};
                  set_masks(shape, in, 2, args);
                  if (chooses) args.chosen = in[5].view({of.batch, of.queries, words_of_keys(of.keys)});
                  head_shares(pool, args);
                },
                [shape, dtype](const Arrays& in, Arrays& out) {
                  with_type(dtype, [&]<typename T>(T) {
                    reference::head_shares(shape.sizes, seen_of(shape, in, 2), data_of<T>(in[0]),
                                           data_of<T>(in[1]),
                                           chooses ? data_of<std::int32_t>(in[5]) : nullptr,
                                           static_cast<double>(0.3f), out[0].floats());
                  });
                }};
  });
}

// Scores, shares that sum to the number of heads, and bits.
Arrays loss_inputs(const IndexShape& shape, Draw& draw) {
  const IndexSizes& s = shape.sizes;
  const Arrays masks = IndexMasks(shape).arrays();
  const SeenKeys seen = seen_of(shape, masks, 0);
  Arrays inputs{draw.normal(DType::f32, pairs_of(s)), draw.normal(DType::f32, pairs_of(s)),
                chosen_bits(shape, seen, draw.seed())};
  for (std::int64_t i = 0; i < pairs_of(s); ++i) {
    const std::int64_t row = i / s.keys;
    const bool visible = reference::sees(seen, row / s.queries, row % s.queries, i % s.keys);
    const bool chosen = is_chosen(data_of<std::int32_t>(inputs[2]) + row * words_of_keys(s.keys), i % s.keys);
    if (!visible) inputs[0].set(i, -std::numeric_limits<float>::infinity());
    inputs[1].set(i, chosen ? std::abs(inputs[1].at(i)) : 0.0f);
  }
  return inputs;
}

template <bool chooses>
std::vector<Case> index_loss_cases(std::uint32_t seed) {
  std::vector<Case> cases;
  for (const IndexShape& shape : kIndexShapes) {
    Draw draw(++seed * 8);
    const IndexSizes s = shape.sizes;
    cases.push_back(
        {DType::f32,
         name_of_case(shape, draw.seed()),
         loss_inputs(shape, draw),
         {{"loss", PoisonedArray(DType::f32, 1), {1e-5, 1e-5}}},
         [s](ThreadPool& pool, const Arrays& in, Arrays& out) {
           const Shape pairs{s.batch, s.queries, s.keys};
           index_loss(pool, {.scores = in[0].view(pairs),
                             .shares = in[1].view(pairs),
                             .chosen = chooses ? in[2].view() : TensorView(),
                             .factor = 0.25,
                             .loss = out[0].view({})});
         },
         [s](const Arrays& in, Arrays& out) {
           out[0].set(
               0, static_cast<float>(0.25 * reference::index_loss(
                                                s.batch * s.queries, s.keys, in[0].floats(), in[1].floats(),
                                                chooses ? data_of<std::int32_t>(in[2]) : nullptr)));
         }});
  }
  return cases;
}

template <bool chooses>
std::vector<Case> index_loss_backward_cases(std::uint32_t seed) {
  std::vector<Case> cases;
  for (const IndexShape& shape : kIndexShapes) {
    Draw draw(++seed * 8);
    const IndexSizes s = shape.sizes;
    cases.push_back(
        {DType::f32,
         name_of_case(shape, draw.seed()),
         loss_inputs(shape, draw),
         {{"dscores", PoisonedArray(DType::f32, pairs_of(s)), {1e-4, 1e-6}}},
         [s](ThreadPool& pool, const Arrays& in, Arrays& out) {
           const Shape pairs{s.batch, s.queries, s.keys};
           const float two = 2;
           const Tensor gradient = beside(in[0], TensorView::of_host(&two, Shape{}));
           index_loss_backward(pool, {.scores = in[0].view(pairs),
                                      .shares = in[1].view(pairs),
                                      .chosen = chooses ? in[2].view() : TensorView(),
                                      .factor = 0.25,
                                      .gradient = gradient.view(),
                                      .dscores = out[0].view(pairs)});
         },
         [s](const Arrays& in, Arrays& out) {
           constexpr double kStep = 1e-5;
           for (std::int64_t row = 0; row < s.batch * s.queries; ++row) {
             std::vector<double> scores, shares;
             for (std::int64_t t = 0; t < s.keys; ++t) {
               scores.push_back(static_cast<double>(in[0].at(row * s.keys + t)));
               shares.push_back(static_cast<double>(in[1].at(row * s.keys + t)));
             }
             const std::int32_t* const bits =
                 chooses ? data_of<std::int32_t>(in[2]) + row * words_of_keys(s.keys) : nullptr;
             const auto loss_at = [&](std::size_t t, double step) {
               std::vector<double> moved = scores;
               moved[t] += step;
               return reference::index_loss(1, s.keys, moved.data(), shares.data(), bits);
             };
             for (std::size_t t = 0; t < scores.size(); ++t)
               out[0].set(row * s.keys + static_cast<std::int64_t>(t),
                          static_cast<float>(0.5 * (loss_at(t, kStep) - loss_at(t, -kStep)) / (2 * kStep)));
           }
         }});
  }
  return cases;
}

std::vector<Case> subtract_mean_cases(std::uint32_t seed) {
  std::vector<Case> cases;
  for (const DType dtype : kFloatTypes) {
    for (const Shape& shape : {Shape{0, 4}, Shape{3, 1}, Shape{70, 33}, Shape{2, 128}}) {
      const std::int64_t count = num_elements(shape), width = shape[1];
      cases.push_back({dtype,
                       fmt::format("{} rows of {}, seed {}", shape[0], width, ++seed),
                       {PoisonedArray::normal(dtype, count, seed)},
                       {{"y", PoisonedArray(dtype, count), {dtype == DType::bf16 ? 0x1p-7 : 1e-6, 1e-6}}},
                       [shape](ThreadPool& pool, const Arrays& in, Arrays& out) {
                         subtract_mean(pool, in[0].view(shape), out[0].view(shape));
                       },
                       [count, width](const Arrays& in, Arrays& out) {
                         for (std::int64_t i = 0; i < count; ++i) {
                           double sum = 0;
                           for (std::int64_t j = 0; j < width; ++j) sum += in[0].value(i / width * width + j);
                           out[0].set(i,
                                      static_cast<float>(in[0].value(i) - sum / static_cast<double>(width)));
                         }
                       }});
    }
  }
  return cases;
}

}  // namespace

std::vector<KernelCases> index_kernels() {
  return {{"index_scores", "index_scores", index_scores_cases},
          {"index_scores_backward", "index_scores_backward", index_scores_backward_cases},
          {"choose_keys", "choose_keys", choose_keys_cases},
          {"head_shares", "head_shares", head_shares_cases<false>},
          {"head_shares_of_chosen", "head_shares", head_shares_cases<true>},
          {"index_loss", "index_loss", index_loss_cases<false>},
          {"index_loss_of_chosen", "index_loss", index_loss_cases<true>},
          {"index_loss_backward", "index_loss_backward", index_loss_backward_cases<false>},
          {"index_loss_backward_of_chosen", "index_loss_backward", index_loss_backward_cases<true>},
          {"subtract_mean", "subtract_mean", subtract_mean_cases}};
}

}  // namespace switchyard::selftest
