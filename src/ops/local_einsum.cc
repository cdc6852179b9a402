#include "ops/local_einsum.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "kernels/pointwise/elementwise.h"
#include "kernels/pointwise/strided_copy.h"
#include "kernels/product/gemm.h"

namespace switchyard {
namespace {

using Sizes = std::map<char, std::int64_t>;

bool has(const std::string& labels, char l) {
  return labels.find(l) != std::string::npos;
}

std::int64_t product(const std::string& labels, const Sizes& sizes) {
  std::int64_t n = 1;
  for (char l : labels) n *= sizes.at(l);
  return n;
}

// Labels of `from` that pass `keep`, in order.
template <typename Keep>
std::string filter(const std::string& from, Keep keep) {
  std::string result;
  std::copy_if(from.begin(), from.end(), std::back_inserter(result), keep);
  return result;
}

struct Operand {
  std::string labels;
  Tensor data;
};

// One GEMM shape after `loops` (leading labels of out and of the operands that have them) are peeled off.
struct Plan {
  std::string loops;      // loops over output positions
  std::string sum_loops;  // loops that accumulate
  std::string m, n, k;
  bool transpose_a = false, transpose_b = false;
};

bool fits(const std::string& a, const std::string& b, const std::string& out, Plan& plan) {
  auto contracted = [&](char l) { return !has(out, l); };
  plan.m = filter(a, [&](char l) { return !contracted(l); });
  plan.n = filter(b, [&](char l) { return !contracted(l); });
  plan.k = filter(b, contracted);
  if (out != plan.m + plan.n) return false;
  if (a == plan.m + plan.k)
    plan.transpose_a = false;
  else if (a == plan.k + plan.m)
    plan.transpose_a = true;
  else
    return false;
  if (b == plan.k + plan.n)
    plan.transpose_b = false;
  else if (b == plan.n + plan.k)
    plan.transpose_b = true;
  else
    return false;
  return filter(plan.m, [&](char l) { return has(plan.n, l); }).empty();
}

std::string without_front(const std::string& labels, char l) {
  return !labels.empty() && labels.front() == l ? labels.substr(1) : labels;
}

// Peels labels off the front until a GEMM fits.
bool find_plan(std::string a, std::string b, std::string out, Plan& plan) {
  plan = Plan{};
  while (true) {
    if (fits(a, b, out, plan)) return true;
    const char l = out.empty() ? '\0' : out.front();
    auto front_or_absent = [l](const std::string& s) { return !has(s, l) || s.front() == l; };
    if (l != '\0' && plan.sum_loops.empty() && front_or_absent(a) && front_or_absent(b)) {
      plan.loops += l;
      out = out.substr(1);
      a = without_front(a, l);
      b = without_front(b, l);
    } else if (!a.empty() && !b.empty() && a.front() == b.front() && !has(out, a.front())) {
      plan.sum_loops += a.front();
      b = b.substr(1);
      a = a.substr(1);
    } else {
      return false;
    }
  }
}

std::vector<std::size_t> order_for(const std::string& from, const std::string& to) {
  std::vector<std::size_t> order;
  for (char l : to) order.push_back(from.find(l));
  return order;
}

// A view with a dim for each label.
struct Labelled {
  std::string labels;
  TensorView view;
  // At element i of a label, and without it; the same where it has no such label.
  Labelled at(char label, std::int64_t i) const {
    const auto dim = labels.find(label);
    if (dim == std::string::npos) return *this;
    Shape shape = view.shape(), strides = view.strides();
    shape.erase(shape.begin() + dim, shape.begin() + dim + 1);
    strides.erase(strides.begin() + dim, strides.begin() + dim + 1);
    std::string others = labels;
    others.erase(dim, 1);
    return {others, view.block(i * view.stride(dim), shape, strides)};
  }
};

// The dims of x as [batch, rows, columns], its first label being the batch's or absent. Only of dims without
// gaps.
TensorView as_matrices(const Labelled& x, char batch, std::int64_t batches, std::int64_t rows,
                       std::int64_t columns) {
  const bool has_batch = !x.labels.empty() && x.labels.front() == batch;
  return x.view.block(0, {batches, rows, columns}, {has_batch ? x.view.stride(0) : 0, columns, 1});
}

// The blocks of packed weights [.., in, out] as [batch, rows of blocks, blocks of a row].
TensorView as_block_matrices(const Labelled& x, char batch, std::int64_t batches, std::int64_t inputs,
                             std::int64_t outputs) {
  return as_matrices(x, batch, batches, inputs / block_inputs(x.view.dtype()), outputs / kBlockOutputs);
}

// out = the product of `plan` whose loops from the how-manieth on are still to run.
void run_loops(ThreadPool& pool, const Plan& plan, std::size_t loop, const Sizes& sizes, const Labelled& a,
               const Labelled& b, const Labelled& out, bool accumulate) {
  if (loop + 1 < plan.loops.size()) {
    const char label = plan.loops[loop];
    for (std::int64_t i = 0; i < sizes.at(label); ++i)
      run_loops(pool, plan, loop + 1, sizes, a.at(label, i), b.at(label, i), out.at(label, i), accumulate);
    return;
  }
  // The innermost output loop is the product's batch.
  const bool batched = loop < plan.loops.size();
  const char batch = batched ? plan.loops[loop] : '\0';
  const std::int64_t batches = batched ? sizes.at(batch) : 1;
  const std::int64_t m = product(plan.m, sizes), n = product(plan.n, sizes), k = product(plan.k, sizes);
  gemm(pool,
       {.a = plan.transpose_a ? as_matrices(a, batch, batches, k, m) : as_matrices(a, batch, batches, m, k),
        .b = is_packed(b.view.dtype()) ? as_block_matrices(b, batch, batches, k, n)
             : plan.transpose_b        ? as_matrices(b, batch, batches, n, k)
                                       : as_matrices(b, batch, batches, k, n),
        .c = as_matrices(out, batch, batches, m, n),
        .transpose_a = plan.transpose_a,
        .transpose_b = plan.transpose_b,
        .accumulate = accumulate});
}

// The same for loops that add up: plan.sum_loops from the how-manieth on are still to run; `first`: nothing
// is in `out` yet.
void run_sums(ThreadPool& pool, const Plan& plan, std::size_t sum, const Sizes& sizes, const Labelled& a,
              const Labelled& b, const Labelled& out, bool& first) {
  if (sum == plan.sum_loops.size()) {
    run_loops(pool, plan, 0, sizes, a, b, out, !std::exchange(first, false));
    return;
  }
  const char label = plan.sum_loops[sum];
  for (std::int64_t i = 0; i < sizes.at(label); ++i)
    run_sums(pool, plan, sum + 1, sizes, a.at(label, i), b.at(label, i), out, first);
}

}  // namespace

EinsumSpec parse_einsum(std::string_view spec) {
  const auto comma = spec.find(',');
  const auto arrow = spec.find("->");
  CHECK(comma != std::string_view::npos && arrow != std::string_view::npos && comma < arrow, "einsum {}",
        spec);
  EinsumSpec s{std::string(spec.substr(0, comma)), std::string(spec.substr(comma + 1, arrow - comma - 1)),
               std::string(spec.substr(arrow + 2))};
  for (char l : s.a + s.b)
    CHECK(has(s.out, l) || (has(s.a, l) && has(s.b, l)), "einsum {}: label {}", spec, l);
  for (char l : s.out) CHECK(has(s.a, l) || has(s.b, l), "einsum {}: label {}", spec, l);
  return s;
}

Shape label_sizes_of_b(const EinsumSpec& spec, DType dtype, const Shape& b) {
  Shape sizes = b;
  if (!is_packed(dtype)) return sizes;
  bool inputs = false, outputs = false;  // found
  for (std::size_t i = spec.b.size(); i-- > 0;) {
    const bool contracted = !has(spec.out, spec.b[i]);
    bool& found = contracted ? inputs : outputs;
    if (!std::exchange(found, true)) sizes[i] *= contracted ? block_inputs(dtype) : kBlockOutputs;
  }
  return sizes;
}

Tensor local_einsum(Context& context, const EinsumSpec& spec, const Tensor& a, const Tensor& b,
                    DType out_dtype) {
  ThreadPool& pool = *context.pool;
  const bool packed = is_packed(b.dtype());
  CHECK((a.dtype() == b.dtype() || packed) && is_float(a.dtype()), "einsum {},{}: {} and {}", spec.a, spec.b,
        name_of(a.dtype()), name_of(b.dtype()));
  Sizes sizes;
  for (std::size_t i = 0; i < spec.a.size(); ++i) sizes[spec.a[i]] = a.dim(i);
  const Shape sizes_of_b = label_sizes_of_b(spec, b.dtype(), b.shape());
  for (std::size_t i = 0; i < spec.b.size(); ++i) {
    const auto [at, fresh] = sizes.emplace(spec.b[i], sizes_of_b[i]);
    CHECK(fresh || at->second == sizes_of_b[i], "einsum {},{}: label {} is {} and {}", spec.a, spec.b,
          spec.b[i], at->second, sizes_of_b[i]);
  }
  const auto shape_of = [&](const std::string& labels) {
    Shape shape;
    for (char l : labels) shape.push_back(sizes.at(l));
    return shape;
  };
  // x with its dims in the order of `labels`.
  const auto permuted = [&](const Tensor& x, const std::string& from, const std::string& labels) {
    if (from == labels) return x;
    const Tensor out = context.empty(x.dtype(), shape_of(labels));
    strided_copy(pool, x.view().permuted(order_for(from, labels)), out.view());
    return out;
  };

  Operand x{spec.a, a}, y{spec.b, b};
  std::string out_labels = spec.out;
  Plan plan;
  if (!find_plan(x.labels, y.labels, out_labels, plan)) {
    CHECK(!packed, "einsum {},{}->{} of packed weights", spec.a, spec.b, spec.out);
    if (find_plan(y.labels, x.labels, out_labels, plan)) {
      std::swap(x, y);
    } else {  // copy both into batch, m, k and batch, k, n
      const std::string batch = filter(spec.out, [&](char l) { return has(spec.a, l) && has(spec.b, l); });
      const std::string m = filter(spec.a, [&](char l) { return has(spec.out, l) && !has(batch, l); });
      const std::string n = filter(spec.b, [&](char l) { return has(spec.out, l) && !has(batch, l); });
      const std::string k = filter(spec.b, [&](char l) { return !has(spec.out, l); });
      x = {batch + m + k, permuted(a, spec.a, batch + m + k)};
      y = {batch + k + n, permuted(b, spec.b, batch + k + n)};
      out_labels = batch + m + n;
      CHECK(find_plan(x.labels, y.labels, out_labels, plan), "einsum {},{}->{}", spec.a, spec.b, spec.out);
    }
  }
  const DType raw_dtype = plan.sum_loops.empty() ? out_dtype : DType::f32;  // terms add up in fp32
  Tensor out = context.empty(raw_dtype, shape_of(out_labels));
  bool first = true;
  run_sums(pool, plan, 0, sizes, {x.labels, x.data.view()}, {y.labels, y.data.view()},
           {out_labels, out.view()}, first);
  out = permuted(out, out_labels, spec.out);
  if (raw_dtype == out_dtype) return out;
  const Tensor rounded = context.empty(out_dtype, out.shape());
  convert(pool, out.view(), rounded.view());
  return rounded;
}

}  // namespace switchyard
