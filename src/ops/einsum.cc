#include "ops/einsum.h"

#include <algorithm>
#include <array>
#include <utility>

#include "kernels/moe/row_adapters.h"
#include "kernels/pointwise/elementwise.h"
#include "ops/local_einsum.h"
#include "ops/packed_operand.h"
#include "ops/reshard.h"

namespace switchyard {
namespace {

// The low-rank part of some outputs.
struct LowRankForm {
  EinsumSpec to_low, from_low;
  std::vector<std::size_t> outputs;  // that have one
  std::int64_t count = 0;            // LowRankEinsum
};

// Inputs: a, and one b or several, each of which has an output; behind them the low-rank part's `a` of each
// output that has one, then each `b`, and where there are several parts the rows' numbers.
class EinsumOp : public Op {
 public:
  EinsumOp(EinsumSpec spec, std::size_t outputs, LowRankForm low_rank)
      : spec_(std::move(spec)), outputs_(outputs), low_rank_(std::move(low_rank)) {}
  std::string_view name() const override { return "einsum"; }

  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    std::vector<ArrayInfo> results;
    for (const ArrayInfo& b : in.subspan(1, outputs_)) results.push_back(infer_one(in[0], b));
    return results;
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    const DType dtype = in[0].dtype();
    const std::size_t first = 1 + outputs_, count = low_rank_.outputs.size();
    const std::vector<Tensor> results = local_einsums(c, spec_, in[0], in.subspan(1, outputs_), dtype);
    if (count == 0) return results;
    const std::vector<Tensor> low =
        local_einsums(c, low_rank_.to_low, in[0], in.subspan(first, count), dtype);
    for (std::size_t i = 0; i < count; ++i)
      local_einsum(c, low_rank_.from_low, low_rank_.count > 0 ? own_parts(c, low[i], in.back()) : low[i],
                   in[first + count + i], dtype, results[low_rank_.outputs[i]]);
    return results;
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    std::vector<Tensor> grads(call.inputs());
    if (call.wanted(0)) grads[0] = gradient_of_a(c, call);
    add_low_rank_gradients(c, call, grads);
    std::vector<Tensor> dys;
    for (std::size_t i = 1; i <= outputs_; ++i)
      if (has_gradient(call, i)) dys.push_back(call.grad(i - 1));
    if (dys.empty()) return grads;
    const Tensor a = call.input(0);
    const std::vector<Tensor> of_weights = local_einsums(c, {spec_.a, spec_.out, spec_.b}, a, dys, a.dtype());
    auto next = of_weights.begin();
    for (std::size_t i = 1; i <= outputs_; ++i)
      if (has_gradient(call, i)) grads[i] = *next++;
    return grads;
  }
  // Weights are read for the gradient of a, which is read for theirs; the low-rank parts for both.
  std::uint32_t needs_inputs(std::uint32_t wanted) const override {
    const std::uint32_t low_rank = ~1u << outputs_;
    return ((wanted & ~1u) != 0 ? 1u : 0u) | ((wanted & 1u) != 0 ? ~1u : low_rank);
  }

 private:
  static bool has_gradient(const BackwardCall& call, std::size_t input) {
    return call.wanted(input) && call.grad(input - 1).defined();
  }

  // low with 0 in the columns of parts that are not the row's.
  Tensor own_parts(Context& c, const Tensor& low, const Tensor& numbers) const {
    const std::int64_t columns = low.shape().back();
    const Shape rows{low.size() / columns, columns};
    const Tensor own = c.empty(low.dtype(), low.shape());
    keep_adapter(*c.pool, {low.view().reshaped(rows), numbers.view().reshaped({numbers.size()}),
                           columns / low_rank_.count, own.view().reshaped(rows)});
    return own;
  }

  void add_low_rank_gradients(Context& c, const BackwardCall& call, std::vector<Tensor>& grads) const {
    const auto& [to_low, from_low, outputs_with, parts] = low_rank_;
    CHECK(parts == 0, "a gradient of {} low-rank parts", parts);
    const std::size_t count = outputs_with.size(), first = 1 + outputs_;
    std::vector<Tensor> of_a, dlow;
    std::vector<std::size_t> inputs_a;
    for (std::size_t i = 0; i < count; ++i) {
      const Tensor& dy = call.grad(outputs_with[i]);
      const std::size_t at_a = first + i, at_b = at_a + count;
      if (!dy.defined()) continue;
      if (call.wanted(at_b)) {
        const Tensor low = local_einsum(c, to_low, call.input(0), call.input(at_a), dy.dtype());
        grads[at_b] = local_einsum(c, {from_low.a, from_low.out, from_low.b}, low, dy, dy.dtype());
      }
      if (!call.wanted(0) && !call.wanted(at_a)) continue;
      const Tensor of_low =
          local_einsum(c, {from_low.out, from_low.b, from_low.a}, dy, call.input(at_b), dy.dtype());
      if (call.wanted(0))
        local_einsum(c, {to_low.out, to_low.b, to_low.a}, of_low, call.input(at_a), dy.dtype(), grads[0]);
      if (!call.wanted(at_a)) continue;
      dlow.push_back(of_low);
      inputs_a.push_back(at_a);
    }
    if (dlow.empty()) return;
    of_a = local_einsums(c, {to_low.a, to_low.out, to_low.b}, call.input(0), dlow, dlow.front().dtype());
    for (std::size_t i = 0; i < of_a.size(); ++i) grads[inputs_a[i]] = of_a[i];
  }

  // Gradients are added from the last output to the first, as autograd adds those of ops. Packed weights are
  // unpacked one at a time.
  Tensor gradient_of_a(Context& c, const BackwardCall& call) const {
    std::vector<EinsumPair> dense;
    Tensor sum;
    const auto add_product = [&](std::span<const EinsumPair> pairs) {
      const Tensor term = local_einsum_sum(c, {spec_.out, spec_.b, spec_.a}, pairs, pairs.front().a.dtype());
      if (sum.defined())
        add(*c.pool, sum.view(), term.view(), sum.view());
      else
        sum = term;
    };
    for (std::size_t i = 1 + outputs_; i-- > 1;) {
      const Tensor& dy = call.grad(i - 1);
      if (!dy.defined()) continue;
      const Tensor b = call.input(i);
      if (!is_packed(b.dtype())) {
        dense.push_back({dy, b});
        continue;
      }
      const Shape shape = label_sizes_of_b(spec_, b.dtype(), b.shape());
      const EinsumPair unpacked{dy, dense_operand(c, b, shape, dy.dtype())};
      add_product({&unpacked, 1});
    }
    if (!dense.empty()) add_product(dense);
    return sum;
  }

  ArrayInfo infer_one(const ArrayInfo& a, ArrayInfo b) const {
    ArrayInfo out;
    out.dtype = a.dtype;
    b.shape = label_sizes_of_b(spec_, b.dtype, b.shape);
    b.local = label_sizes_of_b(spec_, b.dtype, b.local);
    for (char l : spec_.out) {
      const bool from_a = spec_.a.find(l) != std::string::npos;
      const ArrayInfo& source = from_a ? a : b;
      const auto at = (from_a ? spec_.a : spec_.b).find(l);
      out.shape.push_back(source.shape[at]);
      out.local.push_back(source.local[at]);
      out.sharding.dims.push_back(source.sharding.dims[at]);
    }
    for (std::size_t i = 0; i < spec_.b.size(); ++i) {  // contracting labels split alike leave partial sums
      if (spec_.out.find(spec_.b[i]) != std::string::npos) continue;
      const Axes& axes = b.sharding.dims[i];
      out.sharding.partial.insert(out.sharding.partial.end(), axes.begin(), axes.end());
    }
    return out;
  }

  EinsumSpec spec_;
  std::size_t outputs_;
  LowRankForm low_rank_;
};

// The mesh axes assigned to each of some labels.
class LabelAxes {
 public:
  LabelAxes() = default;
  LabelAxes(const std::string& labels, const Sharding& sharding) {
    for (std::size_t i = 0; i < labels.size(); ++i) (*this)[labels[i]] = sharding.dims[i];
  }
  const Axes* find(char label) const {
    for (const Entry& entry : entries_) {
      if (entry.label == label) return &entry.axes;
    }
    return nullptr;
  }
  const Axes& at(char label) const {
    const Axes* const axes = find(label);
    CHECK(axes != nullptr, "no label {}", label);
    return *axes;
  }
  Axes& operator[](char label) {
    for (Entry& entry : entries_) {
      if (entry.label == label) return entry.axes;
    }
    entries_.push_back({label, {}});
    return entries_.back().axes;
  }

 private:
  struct Entry {
    char label;
    Axes axes;
  };
  InlineVector<Entry, 2 * kMostDims> entries_;
};

Axes common_prefix(const Axes& x, const Axes& y) {
  const auto end = std::mismatch(x.begin(), x.end(), y.begin(), y.end()).first;
  return Axes(x.begin(), end);
}

// Decides the axes of every label (see the header). `used` makes sure an axis serves one label.
class LabelPlan {
 public:
  LabelPlan(const Context& c, const EinsumSpec& spec, const Array& a, const Array& b, const Sharding* want)
      : context_(c), spec_(spec), a_(a), b_(b), in_a_(spec.a, a.sharding()), in_b_(spec.b, b.sharding()) {
    contracted_alike();
    output(want);
    contracted_on_one_side();
  }
  // A label that neither side has, which is a low-rank part's, is whole.
  Sharding sharding_for(const std::string& labels) const {
    Sharding s;
    for (char l : labels) {
      const Axes* const axes = chosen_.find(l);
      s.dims.push_back(axes == nullptr ? Axes{} : *axes);
    }
    return s;
  }

 private:
  bool contracted(char l) const { return spec_.out.find(l) == std::string::npos; }

  // Whether a packed b can be split so along a label: into whole blocks.
  bool cuts_no_block(char l, const Axes& mine, Axis axis) const {
    if (!is_packed(b_.dtype())) return true;
    const auto at = spec_.b.find(l);
    return at == std::string::npos ||
           b_.shape()[at] % (context_.mesh->product(mine) * context_.mesh->product(Axes{axis})) == 0;
  }

  void take(char l, const Axes& axes) {
    Axes& mine = chosen_[l];
    for (const Axis axis : axes) {
      if (used_.contains(axis) || !cuts_no_block(l, mine, axis)) return;  // a prefix stays a prefix
      used_.push_back(axis);
      mine.push_back(axis);
    }
  }
  // Where the two sides disagree, a weight moves rather than an activation.
  void contracted_alike() {
    const bool weight_a = a_.value()->weight, weight_b = b_.value()->weight;
    for (char l : spec_.a) {
      if (!contracted(l)) continue;
      const Axes &a = in_a_.at(l), &b = in_b_.at(l), common = common_prefix(a, b);
      const bool disagree = common.size() < std::min(a.size(), b.size());
      take(l, disagree && weight_a != weight_b ? (weight_a ? b : a) : common);
    }
  }
  void output(const Sharding* want) {
    for (std::size_t i = 0; i < spec_.out.size(); ++i) {
      const char l = spec_.out[i];
      if (want != nullptr)
        take_wanted(l, want->dims[i]);
      else if (const Axes* const in_a = in_a_.find(l); in_a != nullptr && !in_a->empty())
        take(l, *in_a);
      else
        take(l, in_b_.find(l) != nullptr ? in_b_.at(l) : Axes{});
    }
  }
  // Where another label has an axis that the output wants first, an activation stays as it is rather than be
  // gathered: the result is moved, it has to be anyway.
  void take_wanted(char l, const Axes& wanted) {
    take(l, wanted);
    if (chosen_[l] == wanted) return;
    const bool in_a = in_a_.find(l) != nullptr;
    if ((in_a ? a_ : b_).value()->weight || (in_a && in_b_.find(l) != nullptr)) return;
    const Axes& own = (in_a ? in_a_ : in_b_).at(l);
    const Axes taken = std::exchange(chosen_[l], {});
    erase_if(used_, [&](Axis axis) { return taken.contains(axis); });
    const bool is_free =
        std::none_of(own.begin(), own.end(), [&](Axis axis) { return used_.contains(axis); });
    take(l, is_free && own.size() > taken.size() ? own : taken);
  }
  // An axis that splits the contraction on one side only: slice the other side (free) and reduce the output,
  // or gather this side; whichever moves fewer bytes.
  void contracted_on_one_side() {
    for (char l : spec_.a) {
      if (!contracted(l)) continue;
      const bool a_longer = in_a_.at(l).size() > in_b_.at(l).size();
      const Axes& longer = a_longer ? in_a_.at(l) : in_b_.at(l);
      const Axes& shorter = a_longer ? in_b_.at(l) : in_a_.at(l);
      if (chosen_[l] != shorter || longer.size() == shorter.size()) continue;
      const Axes extra(longer.begin() + static_cast<std::ptrdiff_t>(shorter.size()), longer.end());
      const bool free =
          std::none_of(extra.begin(), extra.end(), [&](Axis axis) { return used_.contains(axis); });
      const Array& operand = a_longer ? a_ : b_;
      const std::int64_t gathered = num_elements(operand.info().local) * (context_.mesh->product(extra) - 1);
      // A weight is sliced for an activation also where that moves more: the product is shared.
      const bool slices_weight = (a_longer ? b_ : a_).value()->weight && !operand.value()->weight;
      if (free && (slices_weight || 2 * output_elements() < gathered)) take(l, extra);
    }
  }
  std::int64_t output_elements() const {
    std::int64_t n = 1;
    for (char l : spec_.out) {
      const auto at = spec_.a.find(l);
      n *= at != std::string::npos ? a_.shape()[at] : b_.shape()[spec_.b.find(l)];
      n /= context_.mesh->product(chosen_.at(l));
    }
    return n;
  }

  const Context& context_;
  const EinsumSpec& spec_;
  const Array& a_;
  const Array& b_;
  LabelAxes in_a_, in_b_, chosen_;
  Axes used_;
};

bool communicates(const Sharding& from, const Sharding& to) {
  const auto steps = plan_reshard(from, to);
  return std::any_of(steps.begin(), steps.end(),
                     [](const ReshardStep& step) { return step.kind != ReshardStep::Kind::slice; });
}

// Weights are gathered when used: that is what their layout means. Any other operand has its layout from the
// model or from the operation that made it.
Array aligned(Context& context, std::string_view spec, const Array& x, const Sharding& to) {
  if (context.explicit_sharding && !x.value()->weight && communicates(x.sharding(), to)) {
    fail_usage(
        "[sharding] shard_mode=explicit: expected operands of {} that need no move, got one {} in {} that "
        "would be moved to {}; make the logical_axis_rules of its dims agree, or set shard_mode=auto",
        spec, to_string(x.shape()), to_string(x.sharding()), to_string(to));
  }
  return reshard(context, x, to);
}

// The product in the layout `want`, or with partial sums reduced to whole.
Array laid_out(Context& context, std::string_view spec, const Array& out, const Sharding* want) {
  if (want != nullptr) return reshard(context, out, *want);
  Sharding whole = out.sharding();
  whole.partial.clear();
  if (context.explicit_sharding && whole != out.sharding()) {
    fail_usage(
        "[sharding] shard_mode=explicit: {} leaves {}, and nothing says how to sum it to {}; set "
        "shard_mode=auto",
        spec, to_string(out.sharding()), to_string(whole));
  }
  return reshard(context, out, whole);
}

}  // namespace

Array einsum(Context& context, std::string_view spec, const Array& a, const Array& b, const Sharding* want) {
  return einsums(context, spec, a, {&b, 1}, {&want, 1}).front();
}

std::vector<Array> einsums(Context& context, std::string_view spec_text, const Array& a,
                           std::span<const Array> b, std::span<const Sharding* const> want,
                           const LowRankEinsum* low_rank) {
  const EinsumSpec spec = parse_einsum(spec_text);
  LowRankForm form;
  if (low_rank != nullptr)
    form = {parse_einsum(low_rank->to_low), parse_einsum(low_rank->from_low), {}, low_rank->count};
  std::vector<std::array<Sharding, 2>> parts;
  CHECK(!b.empty() && b.size() == want.size(), "einsum {}: {} weights, {} layouts", spec_text, b.size(),
        want.size());
  std::vector<Sharding> of_a, of_b;
  for (std::size_t i = 0; i < b.size(); ++i) {
    CHECK(spec.a.size() == a.shape().size() && spec.b.size() == b[i].shape().size(), "einsum {}: {} and {}",
          spec_text, to_string(a.shape()), to_string(b[i].shape()));
    const LabelPlan plan(context, spec, a, b[i], want[i]);
    of_a.push_back(plan.sharding_for(spec.a));
    of_b.push_back(plan.sharding_for(spec.b));
    if (low_rank == nullptr || !low_rank->a[i].defined()) continue;
    form.outputs.push_back(i);
    parts.push_back({plan.sharding_for(form.to_low.b), plan.sharding_for(form.from_low.b)});
  }
  std::vector<Array> results;
  if (std::ranges::any_of(of_a, [&](const Sharding& s) { return s != of_a.front(); })) {
    for (std::size_t i = 0; i < b.size(); ++i) {
      LowRankEinsum one;
      if (low_rank != nullptr)
        one = {low_rank->to_low, low_rank->from_low, {low_rank->a[i]},
               {low_rank->b[i]}, low_rank->numbers,  low_rank->count};
      results.push_back(einsums(context, spec_text, a, b.subspan(i, 1), want.subspan(i, 1),
                                low_rank == nullptr ? nullptr : &one)
                            .front());
    }
    return results;
  }
  std::vector<Array> inputs{aligned(context, spec_text, a, of_a.front())};
  for (std::size_t i = 0; i < b.size(); ++i) inputs.push_back(aligned(context, spec_text, b[i], of_b[i]));
  for (const std::size_t part : {0, 1}) {
    for (std::size_t i = 0; i < form.outputs.size(); ++i) {
      const std::vector<Array>& of_weights = part == 0 ? low_rank->a : low_rank->b;
      inputs.push_back(aligned(context, spec_text, of_weights[form.outputs[i]], parts[i][part]));
    }
  }
  if (form.count > 0 && !form.outputs.empty()) {
    const Sharding& of_rows = of_a.front();
    inputs.push_back(reshard(context, low_rank->numbers, Sharding{{of_rows.dims[0], of_rows.dims[1]}, {}}));
  }
  const auto op = std::make_shared<EinsumOp>(spec, b.size(), std::move(form));
  const std::vector<Array> products = apply(context, op, inputs);
  for (std::size_t i = 0; i < b.size(); ++i)
    results.push_back(laid_out(context, spec_text, products[i], want[i]));
  return results;
}

}  // namespace switchyard
