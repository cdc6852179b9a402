#include "ops/loss.h"

#include <cmath>
#include <limits>

#include "kernels/cross_entropy.h"
#include "kernels/elementwise.h"
#include "ops/reshard.h"

namespace switchyard {
namespace {

class LinearCrossEntropyOp : public Op {
 public:
  LinearCrossEntropyOp(CrossEntropyOptions options, bool vocab_major)
      : options_(options), vocab_major_(vocab_major) {}
  std::string_view name() const override { return "linear_cross_entropy"; }

  // Outputs: loss and z loss, partial over the token axes; lse of the local tokens, kept for backward.
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    ArrayInfo scalar;
    for (const auto& dim : in[0].sharding.dims)
      scalar.sharding.partial.insert(scalar.sharding.partial.end(), dim.begin(), dim.end());
    ArrayInfo lse = in[2];
    lse.dtype = DType::f32;
    return {scalar, scalar, lse};
  }

  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo> infos) const override {
    const LinearCrossEntropyArgs args = arguments(c, in[0], in[1], infos[1], in[2]);
    Tensor lse(DType::f32, in[2].shape()), target(DType::f32, in[2].shape());
    switchyard::linear_cross_entropy(*c.pool, args, lse.data<float>(), target.data<float>());
    if (!vocab_axes(infos[1]).empty()) combine(c, vocab_axes(infos[1]), lse, target);
    double loss = 0, z_loss = 0;
    const auto* segment = in[3].data<std::int32_t>();
    for (std::int64_t r = 0; r < args.rows && !c.abstract(); ++r) {
      if (segment[r] == 0) continue;
      const double l = lse.data<float>()[r];
      loss += l - static_cast<double>(target.data<float>()[r]);
      z_loss += options_.z_loss_multiplier * l * l;
    }
    const float values[] = {static_cast<float>((loss + z_loss) / options_.count),
                            static_cast<float>(z_loss / options_.count)};
    return {Tensor::of<float>({}, std::span(values, 1)), Tensor::of<float>({}, std::span(values + 1, 1)),
            lse};
  }

  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    const Tensor hidden = call.input(0), head = call.input(1), targets = call.input(2),
                 segments = call.input(3);
    const Tensor lse = call.output(2);
    // The forward summed over the vocabulary's ranks; the transpose of that sum is the same sum.
    float g = call.grad(0).defined() && !c.abstract() ? call.grad(0).data<float>()[0] : 0.0f;
    const Axes& axes = vocab_axes(call.input_info(1));
    if (!axes.empty()) c.comm->all_reduce(c.group(axes), joined(axes), DType::f32, &g, 1);
    const LinearCrossEntropyArgs args = arguments(c, hidden, head, call.input_info(1), targets);
    std::vector<float> softmax(static_cast<std::size_t>(args.rows)), target(softmax.size());
    for (std::int64_t r = 0; r < args.rows && !c.abstract(); ++r) {
      const bool counts = segments.data<std::int32_t>()[r] != 0;
      const double w = counts ? g / options_.count : 0.0;
      target[static_cast<std::size_t>(r)] = static_cast<float>(w);
      const double z = 2 * options_.z_loss_multiplier * static_cast<double>(lse.data<float>()[r]);
      softmax[static_cast<std::size_t>(r)] = static_cast<float>(w * (1 + z));
    }
    Tensor dhidden(DType::f32, hidden.shape()), dhead(head.dtype(), head.shape());
    linear_cross_entropy_backward(*c.pool, args, lse.data<float>(), softmax.data(), target.data(),
                                  dhidden.data<float>(), dhead.raw());
    return {dhidden, dhead, Tensor(), Tensor()};
  }
  std::uint32_t needs_outputs() const override { return 4; }

 private:
  const Axes& vocab_axes(const ArrayInfo& head) const { return head.sharding.dims[vocab_major_ ? 0 : 1]; }

  LinearCrossEntropyArgs arguments(const Context& c, const Tensor& hidden, const Tensor& head,
                                   const ArrayInfo& info, const Tensor& targets) const {
    LinearCrossEntropyArgs args;
    args.emb = hidden.shape().back();
    args.rows = targets.size();
    args.vocab = head.dim(vocab_major_ ? 0 : 1);
    args.vocab_begin = local_offset(*c.mesh, c.rank, info.shape, info.sharding)[vocab_major_ ? 0 : 1];
    args.dtype = hidden.dtype();
    args.hidden = hidden.raw();
    args.weight = head.raw();
    args.weight_vocab_major = vocab_major_;
    args.targets = targets.data<std::int32_t>();
    args.logit_soft_cap = options_.logit_soft_cap;
    return args;
  }

  // lse over the whole vocabulary from the parts, in rank order; the target's logit is on one rank, 0
  // elsewhere.
  static void combine(Context& c, const Axes& axes, Tensor& lse, Tensor& target) {
    const Group group = c.group(axes);
    const auto parts = static_cast<std::int64_t>(group.ranks.size());
    const std::int64_t rows = lse.size();
    c.comm->all_reduce(group, joined(axes), DType::f32, target.raw(), rows);
    Tensor all(DType::f32, {parts, rows});
    c.comm->all_gather(group, joined(axes), lse.raw(), all.raw(), static_cast<std::int64_t>(lse.bytes()));
    const float* part = all.data<float>();
    for (std::int64_t r = 0; r < rows && !c.abstract(); ++r) {
      float top = -std::numeric_limits<float>::infinity();
      for (std::int64_t p = 0; p < parts; ++p) top = std::max(top, part[p * rows + r]);
      double sum = 0;
      for (std::int64_t p = 0; p < parts; ++p) sum += std::exp(static_cast<double>(part[p * rows + r]) - top);
      lse.data<float>()[r] = static_cast<float>(top + std::log(sum));
    }
  }

  CrossEntropyOptions options_;
  bool vocab_major_;
};

struct Layout {
  Sharding tokens;
  Axes vocab;
};

// An axis cannot split both tokens and vocabulary. Where the head is split like the tokens (FSDP), either the
// tokens keep the axis and the head is gathered, or the vocabulary takes it and the tokens are; whichever has
// fewer rows.
Layout choose_layout(const Mesh& mesh, const Array& hidden, const Array& head, std::size_t vocab_dim) {
  const auto& dims = hidden.sharding().dims;
  const auto& head_dims = head.sharding().dims;
  const std::int64_t vocab = head.shape()[vocab_dim];
  Layout gathered_tokens{{{axes_before(dims[0], head.sharding()), axes_before(dims[1], head.sharding())}, {}},
                         head_dims[vocab_dim]};
  const Axes& other = head_dims[1 - vocab_dim];
  gathered_tokens.vocab.insert(gathered_tokens.vocab.end(), other.begin(), other.end());
  const Shape rows = local_shape(mesh, {hidden.shape()[0], hidden.shape()[1]}, gathered_tokens.tokens);
  if (num_elements(rows) <= vocab && vocab % mesh.product(gathered_tokens.vocab) == 0) return gathered_tokens;
  Layout gathered_head{{{dims[0], dims[1]}, {}}, head_dims[vocab_dim]};
  for (const auto& dim : gathered_head.tokens.dims) {
    erase_if(gathered_head.vocab, [&](Axis axis) { return dim.contains(axis); });
  }
  return gathered_head;
}

}  // namespace

CrossEntropy linear_cross_entropy(Context& context, const Array& hidden, const Array& head,
                                  bool head_vocab_major, const Array& targets, const Array& segments,
                                  const CrossEntropyOptions& options) {
  const auto [tokens, vocab] = choose_layout(*context.mesh, hidden, head, head_vocab_major ? 0 : 1);
  const Sharding head_layout = head_vocab_major ? Sharding{{vocab, {}}, {}} : Sharding{{{}, vocab}, {}};
  const Array inputs[] = {reshard(context, hidden, Sharding{{tokens.dims[0], tokens.dims[1], {}}, {}}),
                          reshard(context, head, head_layout), reshard(context, targets, tokens),
                          reshard(context, segments, tokens)};
  auto out = apply(context, std::make_shared<LinearCrossEntropyOp>(options, head_vocab_major), inputs);
  const Sharding whole{};
  return {reshard(context, out[0], whole), reshard(context, out[1], whole)};
}

}  // namespace switchyard
