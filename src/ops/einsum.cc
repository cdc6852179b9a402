#include "ops/einsum.h"

#include <algorithm>
#include <map>
#include <set>

#include "ops/local_einsum.h"
#include "ops/reshard.h"

namespace switchyard {
namespace {

class EinsumOp : public Op {
 public:
  explicit EinsumOp(EinsumSpec spec) : spec_(std::move(spec)) {}
  std::string_view name() const override { return "einsum"; }

  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    ArrayInfo out;
    out.dtype = in[0].dtype;
    for (char l : spec_.out) {
      const bool from_a = spec_.a.find(l) != std::string::npos;
      const ArrayInfo& source = in[from_a ? 0 : 1];
      const auto at = (from_a ? spec_.a : spec_.b).find(l);
      out.shape.push_back(source.shape[at]);
      out.local.push_back(source.local[at]);
      out.sharding.dims.push_back(source.sharding.dims[at]);
    }
    for (std::size_t i = 0; i < spec_.b.size(); ++i) {  // contracting labels split alike leave partial sums
      if (spec_.out.find(spec_.b[i]) != std::string::npos) continue;
      const Axes& axes = in[1].sharding.dims[i];
      out.sharding.partial.insert(out.sharding.partial.end(), axes.begin(), axes.end());
    }
    return {out};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    return {local_einsum(*c.pool, spec_, in[0], in[1], in[0].dtype())};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    std::vector<Tensor> grads(2);
    const Tensor& dy = call.grad(0);
    if (call.wanted(0))
      grads[0] = local_einsum(*c.pool, {spec_.out, spec_.b, spec_.a}, dy, call.input(1), dy.dtype());
    if (call.wanted(1))
      grads[1] = local_einsum(*c.pool, {spec_.a, spec_.out, spec_.b}, call.input(0), dy, dy.dtype());
    return grads;
  }

 private:
  EinsumSpec spec_;
};

using LabelAxes = std::map<char, Axes>;

LabelAxes axes_of(const std::string& labels, const Sharding& sharding) {
  LabelAxes result;
  for (std::size_t i = 0; i < labels.size(); ++i) result[labels[i]] = sharding.dims[i];
  return result;
}

Axes common_prefix(const Axes& x, const Axes& y) {
  const auto end = std::mismatch(x.begin(), x.end(), y.begin(), y.end()).first;
  return Axes(x.begin(), end);
}

// Decides the axes of every label (see the header). `used` makes sure an axis serves one label.
class LabelPlan {
 public:
  LabelPlan(const Context& c, const EinsumSpec& spec, const Array& a, const Array& b, const Sharding* want)
      : context_(c),
        spec_(spec),
        a_(a),
        b_(b),
        in_a_(axes_of(spec.a, a.sharding())),
        in_b_(axes_of(spec.b, b.sharding())) {
    contracted_alike();
    output(want);
    contracted_on_one_side();
  }
  Sharding sharding_for(const std::string& labels) const {
    Sharding s;
    for (char l : labels) s.dims.push_back(chosen_.at(l));
    return s;
  }

 private:
  bool contracted(char l) const { return spec_.out.find(l) == std::string::npos; }

  void take(char l, const Axes& axes) {
    Axes& mine = chosen_[l];
    for (const auto& axis : axes) {
      if (!used_.insert(axis).second) return;  // a prefix stays a prefix
      mine.push_back(axis);
    }
  }
  void contracted_alike() {
    for (char l : spec_.a) {
      if (contracted(l)) take(l, common_prefix(in_a_.at(l), in_b_.at(l)));
    }
  }
  void output(const Sharding* want) {
    for (std::size_t i = 0; i < spec_.out.size(); ++i) {
      const char l = spec_.out[i];
      if (want != nullptr)
        take(l, want->dims[i]);
      else
        take(l, in_a_.count(l) != 0 && !in_a_.at(l).empty() ? in_a_.at(l)
                : in_b_.count(l) != 0                       ? in_b_.at(l)
                                                            : Axes{});
    }
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
          std::none_of(extra.begin(), extra.end(), [&](const std::string& x) { return used_.count(x) != 0; });
      const Array& operand = a_longer ? a_ : b_;
      const std::int64_t gathered = num_elements(operand.info().local) * (context_.mesh->product(extra) - 1);
      if (free && 2 * output_elements() < gathered) take(l, extra);
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
  std::set<std::string> used_;
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

}  // namespace

Array einsum(Context& context, std::string_view spec_text, const Array& a, const Array& b,
             const Sharding* want) {
  const EinsumSpec spec = parse_einsum(spec_text);
  CHECK(spec.a.size() == a.shape().size() && spec.b.size() == b.shape().size(), "einsum {}: {} and {}",
        spec_text, to_string(a.shape()), to_string(b.shape()));
  const LabelPlan plan(context, spec, a, b, want);
  Array out = apply_one(context, std::make_shared<EinsumOp>(spec),
                        {aligned(context, spec_text, a, plan.sharding_for(spec.a)),
                         aligned(context, spec_text, b, plan.sharding_for(spec.b))});
  if (want != nullptr) return reshard(context, out, *want);
  Sharding whole = out.sharding();
  whole.partial.clear();
  if (context.explicit_sharding && whole != out.sharding()) {
    fail_usage(
        "[sharding] shard_mode=explicit: {} leaves {}, and nothing says how to sum it to {}; set "
        "shard_mode=auto",
        spec_text, to_string(out.sharding()), to_string(whole));
  }
  return reshard(context, out, whole);
}

Array einsum(Context& context, std::string_view spec, const Array& a, const Array& b,
             std::initializer_list<std::string> logical_dims) {
  const EinsumSpec parsed = parse_einsum(spec);
  Shape shape;
  for (char l : parsed.out) {
    const auto at = parsed.a.find(l);
    shape.push_back(at != std::string::npos ? a.shape()[at] : b.shape()[parsed.b.find(l)]);
  }
  const std::vector<std::string> dims(logical_dims);
  const Sharding want = context.rules->resolve(dims, shape).sharding;
  return einsum(context, spec, a, b, &want);
}

}  // namespace switchyard
