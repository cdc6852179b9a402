// The gated activation of experts with biases and a clamp, and biases of rows: near the reference, sums by
// group the same bits on every instruction set.
#include <fmt/format.h>

#include "kernels/moe/expert_gate.h"
#include "kernels/testing/cases.h"

namespace switchyard::selftest {
namespace {

struct GateShape {
  std::vector<std::int32_t> sizes;  // rows of each group
  std::int64_t columns;
  bool biased, weighted;
  GateForm form;
  DType dtype;

  std::int64_t rows() const {
    std::int64_t sum = 0;
    for (const std::int32_t n : sizes) sum += n;
    return sum;
  }
  std::int64_t groups() const { return std::ssize(sizes); }
  Shape shape() const { return {rows(), columns}; }
  std::string text() const {
    return fmt::format("{} rows in {} groups of {} columns{}{}{}", rows(), groups(), columns,
                       biased ? ", biases" : "", weighted ? ", weights" : "",
                       form.limit > 0 ? fmt::format(", clamped in form {}", static_cast<int>(form.clamp))
                       : form.weighted_inputs ? std::string(", weights of inputs")
                                              : std::string());
  }
};

// make(shape, draw) gives a case without its name.
template <typename MakeCase>
std::vector<Case> gate_family(std::uint32_t seed, const MakeCase& make) {
  const std::pair<std::vector<std::int32_t>, std::int64_t> shapes[] = {
      {{1}, 1}, {{0, 3, 0, 2}, 33}, {{7, 1}, 16}, {{300, 0, 120}, 100}};
  const struct {
    bool biased, weighted;
    GateForm form;
  } forms[] = {{false, true, {}},
               {true, true, {1.5f, 1.702f}},
               {true, false, {}},
               {true, true, {1.5f, 1.702f}},
               {false, true, {.weighted_inputs = true}},
               {false, true, {.limit = 0.7f, .clamp = GateClamp::before}},
               {true, false, {.limit = 0.7f, .clamp = GateClamp::after}},
               {false, true, {.limit = 0.7f, .clamp = GateClamp::after}}};
  std::vector<Case> cases;
  for (const DType dtype : kFloatTypes) {
    for (const auto& [sizes, columns] : shapes) {
      for (const auto& [biased, weighted, form] : forms) {
        Draw draw(++seed * 8);
        const GateShape s{sizes, columns, biased, weighted, form, dtype};
        cases.push_back(make(s, draw));
        cases.back().what = fmt::format("{}, seed {}", s.text(), draw.seed());
      }
    }
  }
  return cases;
}

// gate, up, their biases, sizes, weights.
Arrays gate_inputs(const GateShape& s, Draw& draw) {
  const std::int64_t n = s.rows() * s.columns, biases = s.groups() * s.columns;
  Arrays in;
  in.push_back(draw.normal(s.dtype, n, 2));
  in.push_back(draw.normal(s.dtype, n, 2));
  in.push_back(draw.normal(s.dtype, biases));
  in.push_back(draw.normal(s.dtype, biases));
  in.push_back(i32_array(s.sizes));
  in.push_back(draw.normal(DType::f32, s.rows()));
  return in;
}

ExpertGateArgs gate_args(const GateShape& s, const Arrays& in) {
  const Shape biases{s.groups(), s.columns};
  return {.gate = in[0].view(s.shape()),
          .up = in[1].view(s.shape()),
          .gate_bias = s.biased ? in[2].view(biases) : TensorView(),
          .up_bias = s.biased ? in[3].view(biases) : TensorView(),
          .group_sizes = in[4].view(),
          .row_weights = s.weighted ? in[5].view() : TensorView(),
          .form = s.form,
          .hidden = {}};
}

std::vector<Case> expert_gate_cases(std::uint32_t seed) {
  return gate_family(seed, [](const GateShape& s, Draw& draw) {
    return Case{s.dtype,
                "",
                gate_inputs(s, draw),
                {{"hidden", PoisonedArray(s.dtype, s.rows() * s.columns), activation_bound(s.dtype)}},
                [s](ThreadPool& pool, const Arrays& in, Arrays& out) {
                  ExpertGateArgs args = gate_args(s, in);
                  args.hidden = out[0].view(s.shape());
                  expert_gate(pool, args);
                }};
  });
}

std::vector<Case> expert_gate_backward_cases(std::uint32_t seed) {
  return gate_family(seed, [](const GateShape& s, Draw& draw) {
    const Bound bound = activation_bound(s.dtype);
    const PoisonedArray gradient(s.dtype, s.rows() * s.columns);
    Case c{s.dtype,
           "",
           gate_inputs(s, draw),
           {{"dgate", gradient, {bound.relative, 1e-5}}, {"dup", gradient, {bound.relative, 1e-5}}},
           [s](ThreadPool& pool, const Arrays& in, Arrays& out) {
             expert_gate_backward(pool, {.forward = gate_args(s, in),
                                         .dhidden = in[6].view(s.shape()),
                                         .dgate = out[0].view(s.shape()),
                                         .dup = out[1].view(s.shape()),
                                         .drow_weights = s.weighted ? out[2].view() : TensorView()});
           }};
    c.inputs.push_back(draw.normal(s.dtype, s.rows() * s.columns));
    if (s.weighted) c.outputs.push_back({"dw", PoisonedArray(DType::f32, s.rows()), {1e-4, 1e-4}});
    return c;
  });
}

std::vector<Case> add_group_rows_cases(std::uint32_t seed) {
  return gate_family(seed, [](const GateShape& s, Draw& draw) {
    return Case{s.dtype,
                "",
                gate_inputs(s, draw),
                {{"out", PoisonedArray(s.dtype, s.rows() * s.columns), activation_bound(s.dtype)}},
                [s](ThreadPool& pool, const Arrays& in, Arrays& out) {
                  add_group_rows(pool, {.x = in[0].view(s.shape()),
                                        .bias = in[2].view({s.groups(), s.columns}),
                                        .group_sizes = in[4].view(),
                                        .row_weights = s.weighted ? in[5].view() : TensorView(),
                                        .out = out[0].view(s.shape())});
                }};
  });
}

// The rows of a group, one after the other.
template <typename Visit>
void for_rows_of_groups(const GateShape& s, const Visit& visit) {
  std::int64_t row = 0;
  for (std::int64_t g = 0; g < s.groups(); ++g) {
    for (std::int64_t end = row + s.sizes[static_cast<std::size_t>(g)]; row < end; ++row) visit(g, row);
  }
}

std::vector<Case> sum_groups_cases(std::uint32_t seed) {
  return gate_family(seed, [](const GateShape& s, Draw& draw) {
    return Case{s.dtype,
                "",
                gate_inputs(s, draw),
                {{"sums", PoisonedArray(DType::f32, s.groups() * s.columns), {1e-5, 1e-4}}},
                [s](ThreadPool& pool, const Arrays& in, Arrays& out) {
                  sum_groups(pool, {.x = in[0].view(s.shape()),
                                    .group_sizes = in[4].view(),
                                    .row_weights = s.weighted ? in[5].view() : TensorView(),
                                    .out = out[0].view({s.groups(), s.columns})});
                },
                [s](const Arrays& in, Arrays& out) {
                  for (std::int64_t i = 0; i < s.groups() * s.columns; ++i) out[0].set(i, 0);
                  for_rows_of_groups(s, [&](std::int64_t g, std::int64_t row) {
                    for (std::int64_t j = 0; j < s.columns; ++j)
                      out[0].set(g * s.columns + j,
                                 out[0].at(g * s.columns + j) +
                                     (s.weighted ? in[5].at(row) : 1.0f) * in[0].at(row * s.columns + j));
                  });
                }};
  });
}

std::vector<Case> group_row_products_cases(std::uint32_t seed) {
  return gate_family(seed, [](const GateShape& s, Draw& draw) {
    return Case{s.dtype,
                "",
                gate_inputs(s, draw),
                {{"products", PoisonedArray(DType::f32, s.rows()), {1e-4, 1e-3}}},
                [s](ThreadPool& pool, const Arrays& in, Arrays& out) {
                  group_row_products(pool, {.dy = in[0].view(s.shape()),
                                            .bias = in[2].view({s.groups(), s.columns}),
                                            .group_sizes = in[4].view(),
                                            .out = out[0].view()});
                },
                [s](const Arrays& in, Arrays& out) {
                  for_rows_of_groups(s, [&](std::int64_t g, std::int64_t row) {
                    float sum = 0;
                    for (std::int64_t j = 0; j < s.columns; ++j)
                      sum += in[0].at(row * s.columns + j) * in[2].at(g * s.columns + j);
                    out[0].set(row, sum);
                  });
                }};
  });
}

}  // namespace

std::vector<KernelCases> expert_gate_kernels() {
  return {{"expert_gate", "expert_gate", expert_gate_cases},
          {"expert_gate_backward", "expert_gate_backward", expert_gate_backward_cases},
          {"add_group_rows", "add_group_rows", add_group_rows_cases},
          {"sum_groups", "sum_groups", sum_groups_cases},
          {"group_row_products", "group_row_products", group_row_products_cases}};
}

}  // namespace switchyard::selftest
