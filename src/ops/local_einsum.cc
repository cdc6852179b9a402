#include "ops/local_einsum.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>

#include "kernels/elementwise.h"
#include "kernels/gemm.h"

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

// Elements between neighbours along the peeled label `l`, 0 when the operand does not have it.
std::int64_t stride_of(const std::string& labels, char l, const Sizes& sizes) {
  const auto at = labels.find(l);
  return at == std::string::npos ? 0 : product(labels.substr(at + 1), sizes);
}

struct Loop {
  std::int64_t count, a, b, c;
};

void run_loops(ThreadPool& pool, std::span<const Loop> loops, GemmArgs args, std::size_t element_a,
               std::size_t element_c) {
  if (loops.empty()) {
    gemm(pool, args);
    return;
  }
  if (loops.size() == 1) {  // the innermost output loop is the GEMM's batch
    args.batch = loops[0].count;
    args.stride_a = loops[0].a;
    args.stride_b = loops[0].b;
    args.stride_c = loops[0].c;
    gemm(pool, args);
    return;
  }
  for (std::int64_t i = 0; i < loops[0].count; ++i) {
    GemmArgs at = args;
    at.a = static_cast<const std::byte*>(args.a) + static_cast<std::size_t>(i * loops[0].a) * element_a;
    at.b = static_cast<const std::byte*>(args.b) + static_cast<std::size_t>(i * loops[0].b) * element_a;
    at.c = static_cast<std::byte*>(args.c) + static_cast<std::size_t>(i * loops[0].c) * element_c;
    run_loops(pool, loops.subspan(1), at, element_a, element_c);
  }
}

void run_plan(ThreadPool& pool, const Plan& plan, const Operand& a, const Operand& b,
              const std::string& out_labels, const Sizes& sizes, const Tensor& out) {
  GemmArgs args;
  args.m = product(plan.m, sizes);
  args.n = product(plan.n, sizes);
  args.k = product(plan.k, sizes);
  args.dtype = a.data.dtype();
  args.transpose_a = plan.transpose_a;
  args.transpose_b = plan.transpose_b;
  args.lda = plan.transpose_a ? args.m : args.k;
  args.ldb = plan.transpose_b ? args.k : args.n;
  args.ldc = args.n;
  args.c_dtype = out.dtype();
  args.a = a.data.raw();
  args.b = b.data.raw();
  args.c = out.raw();
  if (plan.loops.empty() && plan.sum_loops.empty()) return gemm(pool, args);
  std::vector<Loop> loops;
  for (char l : plan.loops) {
    loops.push_back({sizes.at(l), stride_of(a.labels, l, sizes), stride_of(b.labels, l, sizes),
                     stride_of(out_labels, l, sizes)});
  }
  std::vector<Loop> sums;
  std::int64_t terms = 1;
  for (char l : plan.sum_loops) {
    sums.push_back({sizes.at(l), stride_of(a.labels, l, sizes), stride_of(b.labels, l, sizes), 0});
    terms *= sizes.at(l);
  }
  const std::size_t element = size_of(args.dtype);
  for (std::int64_t t = 0; t < terms; ++t) {
    GemmArgs term = args;
    std::int64_t rest = t, at_a = 0, at_b = 0;
    for (auto it = sums.rbegin(); it != sums.rend(); ++it) {
      at_a += rest % it->count * it->a;
      at_b += rest % it->count * it->b;
      rest /= it->count;
    }
    term.a = static_cast<const std::byte*>(args.a) + static_cast<std::size_t>(at_a) * element;
    term.b = static_cast<const std::byte*>(args.b) + static_cast<std::size_t>(at_b) * element;
    term.accumulate = t > 0;
    run_loops(pool, loops, term, element, size_of(args.c_dtype));
  }
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

Tensor permute(ThreadPool& pool, const Tensor& x, const std::vector<std::size_t>& order) {
  // Merge dims that stay neighbours, then swap blocks or walk an odometer over the result.
  Shape shape;
  for (auto i : order) shape.push_back(x.dim(i));
  Tensor out(x.dtype(), shape);
  const std::size_t rank = order.size();
  std::vector<std::int64_t> stride(rank, 1);
  for (std::size_t i = rank - 1; i-- > 0;) stride[i] = stride[i + 1] * x.dim(i + 1);
  std::size_t kept = rank;  // dims from `kept` on are contiguous in both
  while (kept > 0 && order[kept - 1] == kept - 1) --kept;
  std::int64_t inner = 1;
  for (std::size_t i = kept; i < rank; ++i) inner *= x.dim(i);
  if (kept == 0) return x;
  const std::size_t bytes = static_cast<std::size_t>(inner) * size_of(x.dtype());
  std::int64_t outer = 1;
  for (std::size_t i = 0; i < kept; ++i) outer *= shape[i];
  const std::int64_t grain =
      std::max<std::int64_t>(1, 65536 / std::max<std::int64_t>(1, static_cast<std::int64_t>(bytes)));
  pool.for_range(outer, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      std::int64_t rest = i, at = 0;
      for (std::size_t d = kept; d-- > 0;) {
        at += rest % shape[d] * stride[order[d]];
        rest /= shape[d];
      }
      std::memcpy(out.raw() + static_cast<std::size_t>(i) * bytes,
                  x.raw() + static_cast<std::size_t>(at) * size_of(x.dtype()), bytes);
    }
  });
  return out;
}

Tensor local_einsum(ThreadPool& pool, const EinsumSpec& spec, const Tensor& a, const Tensor& b,
                    DType out_dtype) {
  CHECK(a.dtype() == b.dtype() && is_float(a.dtype()), "einsum {},{}: {} and {}", spec.a, spec.b,
        name_of(a.dtype()), name_of(b.dtype()));
  Sizes sizes;
  for (std::size_t i = 0; i < spec.a.size(); ++i) sizes[spec.a[i]] = a.dim(i);
  for (std::size_t i = 0; i < spec.b.size(); ++i) {
    const auto [at, fresh] = sizes.emplace(spec.b[i], b.dim(i));
    CHECK(fresh || at->second == b.dim(i), "einsum {},{}: label {} is {} and {}", spec.a, spec.b, spec.b[i],
          at->second, b.dim(i));
  }
  Shape shape;
  for (char l : spec.out) shape.push_back(sizes.at(l));

  Operand x{spec.a, a}, y{spec.b, b};
  std::string out_labels = spec.out;
  Plan plan;
  if (!find_plan(x.labels, y.labels, out_labels, plan)) {
    if (find_plan(y.labels, x.labels, out_labels, plan)) {
      std::swap(x, y);
    } else {  // copy both into batch, m, k and batch, k, n
      const std::string batch = filter(spec.out, [&](char l) { return has(spec.a, l) && has(spec.b, l); });
      const std::string m = filter(spec.a, [&](char l) { return has(spec.out, l) && !has(batch, l); });
      const std::string n = filter(spec.b, [&](char l) { return has(spec.out, l) && !has(batch, l); });
      const std::string k = filter(spec.b, [&](char l) { return !has(spec.out, l); });
      x = {batch + m + k, permute(pool, a, order_for(spec.a, batch + m + k))};
      y = {batch + k + n, permute(pool, b, order_for(spec.b, batch + k + n))};
      out_labels = batch + m + n;
      CHECK(find_plan(x.labels, y.labels, out_labels, plan), "einsum {},{}->{}", spec.a, spec.b, spec.out);
    }
  }
  Shape raw_shape;
  for (char l : out_labels) raw_shape.push_back(sizes.at(l));
  const DType raw_dtype = plan.sum_loops.empty() ? out_dtype : DType::f32;  // terms add up in fp32
  Tensor out(raw_dtype, raw_shape);
  run_plan(pool, plan, x, y, out_labels, sizes, out);
  if (out_labels != spec.out) out = permute(pool, out, order_for(out_labels, spec.out));
  if (raw_dtype != out_dtype) {
    Tensor rounded(out_dtype, shape);
    convert(pool, raw_dtype, out.raw(), out_dtype, rounded.raw(), out.size());
    return rounded;
  }
  return out;
}

}  // namespace switchyard
