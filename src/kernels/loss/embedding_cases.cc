// Rows of a table by token ids, sums of their gradients, and the last
// tokens of sequences: the bits of plain loops.
#include <fmt/format.h>

#include <algorithm>

#include "kernels/loss/embedding.h"
#include "kernels/loss/last_tokens.h"
#include "kernels/testing/cases.h"

namespace switchyard::selftest {
namespace {

struct TableShape {
  std::int64_t rows, first, tokens, width;
  DType dtype;
  // Some in the table, some on each side of it.
  std::vector<std::int32_t> ids() const {
    std::vector<std::int32_t> result;
    for (std::int64_t t = 0; t < tokens; ++t)
      result.push_back(static_cast<std::int32_t>(first - 3 + t * 11 % (rows + 6)));
    return result;
  }
  bool has(std::int32_t id) const { return id >= first && id < first + rows; }
};

template <typename MakeCase>
std::vector<Case> table_cases(std::uint32_t seed, const MakeCase& make) {
  std::vector<Case> cases;
  for (const DType dtype : kFloatTypes) {
    for (const std::int64_t rows : {0, 1, 50}) {
      for (const std::int64_t tokens : {0, 1, 300}) {
        for (const std::int64_t width : {1, 64, 67}) {
          Draw draw(++seed * 2);
          const std::string what =
              fmt::format("{} tokens of {} rows of {}, seed {}", tokens, rows, width, draw.seed());
          cases.push_back(make(TableShape{rows, 40, tokens, width, dtype}, draw));
          cases.back().what = what;
        }
      }
    }
  }
  return cases;
}

std::vector<Case> embedding_lookup_cases(std::uint32_t seed) {
  return table_cases(seed, [](const TableShape& s, Draw& draw) {
    return Case{s.dtype,
                "",
                {draw.normal(s.dtype, s.rows * s.width), i32_array(s.ids())},
                {{"out", PoisonedArray(s.dtype, s.tokens * s.width)}},
                [s](ThreadPool& pool, const Arrays& in, Arrays& out) {
                  embedding_lookup(pool, {in[0].view({s.rows, s.width}), in[1].view(),
                                          out[0].view({s.tokens, s.width}), s.first});
                },
                [s](const Arrays& in, Arrays& out) {
                  const auto ids = s.ids();
                  for (std::int64_t i = 0; i < out[0].size(); ++i) {
                    const std::int32_t id = ids[static_cast<std::size_t>(i / s.width)];
                    out[0].set(i, s.has(id) ? in[0].at((id - s.first) * s.width + i % s.width) : 0);
                  }
                }};
  });
}

std::vector<Case> embedding_backward_cases(std::uint32_t seed) {
  return table_cases(seed, [](const TableShape& s, Draw& draw) {
    return Case{s.dtype,
                "",
                {draw.normal(s.dtype, s.tokens * s.width), i32_array(s.ids())},
                {{"dtable", draw.normal(DType::f32, s.rows * s.width)}},
                [s](ThreadPool& pool, const Arrays& in, Arrays& out) {
                  embedding_backward(pool, {in[0].view({s.tokens, s.width}), in[1].view(),
                                            out[0].view({s.rows, s.width}), s.first});
                },
                [s](const Arrays& in, Arrays& out) {
                  const auto ids = s.ids();
                  for (std::int64_t i = 0; i < in[0].size(); ++i) {
                    const std::int32_t id = ids[static_cast<std::size_t>(i / s.width)];
                    const std::int64_t at = (id - s.first) * s.width + i % s.width;
                    if (s.has(id)) out[0].set(at, out[0].at(at) + in[0].at(i));
                  }
                }};
  });
}

std::vector<Case> last_tokens_cases(std::uint32_t seed) {
  std::vector<Case> cases;
  for (const DType dtype : kFloatTypes) {
    for (const std::int64_t rows : {0, 1, 40}) {
      const std::int64_t length = 7, width = 33;
      Draw draw(++seed * 4);
      // Row r has r % (length + 1) tokens, then padding.
      PoisonedArray segments(DType::i32, rows * length);
      auto* const segment = static_cast<std::int32_t*>(segments.data());
      for (std::int64_t i = 0; i < rows * length; ++i)
        segment[i] = i % length < i / length % (length + 1) ? 1 : 0;
      cases.push_back({dtype,
                       fmt::format("{} rows of {} tokens of {}, seed {}", rows, length, width, draw.seed()),
                       {draw.normal(dtype, rows * length * width), std::move(segments)},
                       {{"out", PoisonedArray(dtype, rows * width)}},
                       [=](ThreadPool& pool, const Arrays& in, Arrays& out) {
                         last_tokens(pool, {in[0].view({rows, length, width}), in[1].view({rows, length}),
                                            out[0].view({rows, 1, width})});
                       },
                       [=](const Arrays& in, Arrays& out) {
                         for (std::int64_t i = 0; i < rows * width; ++i) {
                           const std::int64_t row = i / width, tokens = row % (length + 1);
                           const std::int64_t at = std::max<std::int64_t>(tokens - 1, 0);
                           out[0].set(i, in[0].at((row * length + at) * width + i % width));
                         }
                       }});
    }
  }
  return cases;
}

}  // namespace

std::vector<KernelCases> embedding_kernels() {
  return {{"embedding_lookup", "embedding_lookup", embedding_lookup_cases},
          {"embedding_backward", "embedding_backward", embedding_backward_cases},
          {"last_tokens", "last_tokens", last_tokens_cases}};
}

}  // namespace switchyard::selftest
