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

// The dims of x as [batch, rows, columns], its first label being the batch's or absent.
// Only of dims without gaps.
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

// True where the einsum is one GEMM of its operands as they are.
bool is_one_gemm(const EinsumSpec& spec) {
  Plan plan;
  return find_plan(spec.a, spec.b, spec.out, plan) && plan.loops.empty() && plan.sum_loops.empty();
}

Shape shape_of(const std::string& labels, const Sizes& sizes) {
  Shape shape;
  for (char l : labels) shape.push_back(sizes.at(l));
  return shape;
}

// x with its dims in the order of `labels`.
Tensor permuted(Context& context, const Tensor& x, const std::string& from, const std::string& labels) {
  if (from == labels) return x;
  const std::vector<std::size_t> order = order_for(from, labels);
  Shape shape;
  for (const std::size_t i : order) shape.push_back(x.dim(i));
  const Tensor out = context.empty(x.dtype(), shape);
  strided_copy(*context.pool, x.view().permuted(order), out.view());
  return out;
}

// An einsum of two tensors as products: its operands, the second one first or copied where no loop of
// products fits them as they are.
struct Products {
  Products(Context& context, const EinsumSpec& spec, const Tensor& a, const Tensor& b)
      : x{spec.a, a}, y{spec.b, b}, out(spec.out) {
    const bool packed = is_packed(b.dtype());
    CHECK((a.dtype() == b.dtype() || packed) && is_float(a.dtype()), "einsum {},{}: {} and {}", spec.a,
          spec.b, name_of(a.dtype()), name_of(b.dtype()));
    for (std::size_t i = 0; i < spec.a.size(); ++i) sizes[spec.a[i]] = a.dim(i);
    const Shape sizes_of_b = label_sizes_of_b(spec, b.dtype(), b.shape());
    for (std::size_t i = 0; i < spec.b.size(); ++i) {
      const auto [at, fresh] = sizes.emplace(spec.b[i], sizes_of_b[i]);
      CHECK(fresh || at->second == sizes_of_b[i], "einsum {},{}: label {} is {} and {}", spec.a, spec.b,
            spec.b[i], at->second, sizes_of_b[i]);
    }
    if (find_plan(x.labels, y.labels, out, plan)) return;
    CHECK(!packed, "einsum {},{}->{} of packed weights", spec.a, spec.b, spec.out);
    if (find_plan(y.labels, x.labels, out, plan)) {
      std::swap(x, y);
      return;
    }
    // Both are copied into batch, m, k and batch, k, n.
    const std::string batch = filter(spec.out, [&](char l) { return has(spec.a, l) && has(spec.b, l); });
    const std::string m = filter(spec.a, [&](char l) { return has(spec.out, l) && !has(batch, l); });
    const std::string n = filter(spec.b, [&](char l) { return has(spec.out, l) && !has(batch, l); });
    const std::string k = filter(spec.b, [&](char l) { return !has(spec.out, l); });
    x = {batch + m + k, permuted(context, a, spec.a, batch + m + k)};
    y = {batch + k + n, permuted(context, b, spec.b, batch + k + n)};
    out = batch + m + n;
    CHECK(find_plan(x.labels, y.labels, out, plan), "einsum {},{}->{}", spec.a, spec.b, spec.out);
  }

  // The matrices of an einsum that is one GEMM.
  TensorView left() const {
    const std::int64_t m = product(plan.m, sizes), k = product(plan.k, sizes);
    return matrix(x.data, plan.transpose_a ? k : m, plan.transpose_a ? m : k);
  }
  TensorView right() const {
    const std::int64_t n = product(plan.n, sizes), k = product(plan.k, sizes);
    const DType dtype = y.data.dtype();
    if (is_packed(dtype)) return matrix(y.data, k / block_inputs(dtype), n / kBlockOutputs);
    return matrix(y.data, plan.transpose_b ? n : k, plan.transpose_b ? k : n);
  }
  TensorView result(const Tensor& c) const {
    return matrix(c, product(plan.m, sizes), product(plan.n, sizes));
  }

  Operand x, y;
  std::string out;
  Sizes sizes;
  Plan plan;

 private:
  static TensorView matrix(const Tensor& of, std::int64_t rows, std::int64_t columns) {
    return of.view().block(0, {rows, columns}, {columns, 1});
  }
};

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
                    DType out_dtype, const Tensor& onto) {
  ThreadPool& pool = *context.pool;
  const Products of(context, spec, a, b);
  const DType raw_dtype = of.plan.sum_loops.empty() ? out_dtype : DType::f32;  // terms add up in fp32
  const bool in_place = onto.defined() && of.out == spec.out && raw_dtype == out_dtype;
  const Tensor out = in_place ? onto : context.empty(raw_dtype, shape_of(of.out, of.sizes));
  bool first = !in_place;
  run_sums(pool, of.plan, 0, of.sizes, {of.x.labels, of.x.data.view()}, {of.y.labels, of.y.data.view()},
           {of.out, out.view()}, first);
  const Tensor result = converted(pool, permuted(context, out, of.out, spec.out), out_dtype);
  if (!onto.defined() || in_place) return result;
  add(pool, onto.view(), result.view(), onto.view());
  return onto;
}

std::vector<Tensor> local_einsums(Context& context, const EinsumSpec& spec, const Tensor& a,
                                  std::span<const Tensor> b, DType out_dtype) {
  std::vector<Tensor> results;
  if (b.size() == 1 || !is_one_gemm(spec)) {
    for (const Tensor& of_b : b) results.push_back(local_einsum(context, spec, a, of_b, out_dtype));
    return results;
  }
  GemmEachArgs together;
  std::vector<GemmEachArgs::Right> right;
  for (const Tensor& of_b : b) {
    const Products of(context, spec, a, of_b);
    together.a = of.left();
    together.transpose_a = of.plan.transpose_a;
    together.transpose_b = of.plan.transpose_b;
    results.push_back(context.empty(out_dtype, shape_of(spec.out, of.sizes)));
    right.push_back({of.right(), of.result(results.back())});
  }
  together.right = right;
  gemm_each(*context.pool, together);
  return results;
}

Tensor local_einsum_sum(Context& context, const EinsumSpec& spec, std::span<const EinsumPair> pairs,
                        DType out_dtype) {
  Tensor out;
  if (pairs.size() == 1 || !is_one_gemm(spec)) {
    for (const auto& [a, b] : pairs) {
      const Tensor term = local_einsum(context, spec, a, b, out_dtype);
      if (out.defined())
        add(*context.pool, out.view(), term.view(), out.view());
      else
        out = term;
    }
    return out;
  }
  GemmSumArgs sum;
  std::vector<GemmSumArgs::Term> terms;
  for (const auto& [a, b] : pairs) {
    const Products of(context, spec, a, b);
    if (!out.defined()) out = context.empty(out_dtype, shape_of(spec.out, of.sizes));
    sum.c = of.result(out);
    sum.transpose_a = of.plan.transpose_a;
    sum.transpose_b = of.plan.transpose_b;
    terms.push_back({of.left(), of.right()});
  }
  sum.terms = terms;
  gemm_sum(*context.pool, sum);
  return out;
}

}  // namespace switchyard
