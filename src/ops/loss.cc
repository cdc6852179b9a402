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
  // `with_gradients`: forward makes the gradients, too, as if the loss's own were 1, which it nearly always
  // is. Then logits are made once (kernels/cross_entropy.h).
  LinearCrossEntropyOp(CrossEntropyOptions options, bool vocab_major, bool with_gradients)
      : options_(options), vocab_major_(vocab_major), with_gradients_(with_gradients) {}
  std::string_view name() const override { return "linear_cross_entropy"; }

  // Outputs: loss and z loss, partial over the token axes; lse of the local tokens; with gradients those of
  // hidden and head. What comes after z loss is kept for backward.
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    ArrayInfo scalar;
    for (const auto& dim : in[0].sharding.dims)
      scalar.sharding.partial.insert(scalar.sharding.partial.end(), dim.begin(), dim.end());
    ArrayInfo lse = in[2];
    lse.dtype = DType::f32;
    if (!with_gradients_) return {scalar, scalar, lse};
    ArrayInfo dhidden = in[0], dhead = in[1];
    dhidden.dtype = DType::f32;
    dhidden.sharding.partial = vocab_axes(in[1]);
    dhead.sharding.partial = scalar.sharding.partial;
    return {scalar, scalar, lse, dhidden, dhead};
  }

  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo> infos) const override {
    const LinearCrossEntropyArgs args = arguments(c, in[0], in[1], infos[1], in[2]);
    Tensor lse(DType::f32, in[2].shape()), target(DType::f32, in[2].shape()), dhidden, dhead;
    if (with_gradients_) {
      dhidden = Tensor(DType::f32, in[0].shape());
      dhead = Tensor(in[1].dtype(), in[1].shape());
      Coefficients rows(args.rows);
      linear_cross_entropy_with_gradients(*c.pool, args,
                                          {.lse = lse.data<float>(),
                                           .target_logit = target.data<float>(),
                                           .softmax_coefficient = rows.softmax.data(),
                                           .target_coefficient = rows.target.data(),
                                           .dhidden = dhidden.data<float>(),
                                           .dweight = dhead.raw(),
                                           .summed = [&](std::int64_t begin, std::int64_t end) {
                                             combine(c, vocab_axes(infos[1]), begin, end, lse, target);
                                             if (!c.abstract()) set(rows, begin, end, 1, lse, in[3]);
                                           }});
    } else {
      switchyard::linear_cross_entropy(*c.pool, args, lse.data<float>(), target.data<float>());
      combine(c, vocab_axes(infos[1]), 0, args.rows, lse, target);
    }
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
    std::vector<Tensor> out{Tensor::of<float>({}, std::span(values, 1)),
                            Tensor::of<float>({}, std::span(values + 1, 1)), lse};
    if (with_gradients_) out.insert(out.end(), {dhidden, dhead});
    return out;
  }

  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    // The forward summed over the vocabulary's ranks; the transpose of that sum is the same sum.
    float g = call.grad(0).defined() && !c.abstract() ? call.grad(0).data<float>()[0] : 0.0f;
    const Axes& axes = vocab_axes(call.input_info(1));
    if (!axes.empty()) c.comm->all_reduce(c.group(axes), joined(axes), DType::f32, &g, 1);
    if (with_gradients_)
      return {times(c, call.output(3), g), times(c, call.output(4), g), Tensor(), Tensor()};
    const Tensor hidden = call.input(0), head = call.input(1), targets = call.input(2);
    const Tensor lse = call.output(2);
    const LinearCrossEntropyArgs args = arguments(c, hidden, head, call.input_info(1), targets);
    Coefficients rows(args.rows);
    if (!c.abstract()) set(rows, 0, args.rows, g, lse, call.input(3));
    Tensor dhidden(DType::f32, hidden.shape()), dhead(head.dtype(), head.shape());
    linear_cross_entropy_backward(*c.pool, args, lse.data<float>(), rows.softmax.data(), rows.target.data(),
                                  dhidden.data<float>(), dhead.raw());
    return {dhidden, dhead, Tensor(), Tensor()};
  }
  std::uint32_t needs_inputs() const override { return with_gradients_ ? 0 : ~0u; }
  std::uint32_t needs_outputs() const override { return with_gradients_ ? 24 : 4; }

 private:
  struct Coefficients {
    explicit Coefficients(std::int64_t rows)
        : softmax(static_cast<std::size_t>(rows)), target(softmax.size()) {}
    std::vector<float> softmax, target;
  };
  // Of the rows [begin, end), for a loss whose gradient is g.
  void set(Coefficients& rows, std::int64_t begin, std::int64_t end, float g, const Tensor& lse,
           const Tensor& segments) const {
    for (std::int64_t r = begin; r < end; ++r) {
      const bool counts = segments.data<std::int32_t>()[r] != 0;
      const double w = counts ? g / options_.count : 0.0;
      rows.target[static_cast<std::size_t>(r)] = static_cast<float>(w);
      const double z = 2 * options_.z_loss_multiplier * static_cast<double>(lse.data<float>()[r]);
      rows.softmax[static_cast<std::size_t>(r)] = static_cast<float>(w * (1 + z));
    }
  }
  static Tensor times(Context& c, const Tensor& x, float factor) {
    if (factor == 1 || c.abstract()) return x;
    Tensor out(x.dtype(), x.shape());
    switchyard::scale(*c.pool, x.view(), factor, out.view());
    return out;
  }

  const Axes& vocab_axes(const ArrayInfo& head) const { return head.sharding.dims[vocab_major_ ? 0 : 1]; }

  LinearCrossEntropyArgs arguments(const Context& c, const Tensor& hidden, const Tensor& head,
                                   const ArrayInfo& info, const Tensor& targets) const {
    LinearCrossEntropyArgs args;
    args.emb = hidden.shape().back();
    args.rows = targets.size();
    args.vocab = head.dim(vocab_major_ ? 0 : 1);
    args.whole_vocab = info.shape[vocab_major_ ? 0 : 1];
    args.vocab_begin = local_offset(*c.mesh, c.rank, info.shape, info.sharding)[vocab_major_ ? 0 : 1];
    args.dtype = hidden.dtype();
    args.hidden = hidden.raw();
    args.weight = head.raw();
    args.weight_vocab_major = vocab_major_;
    args.targets = targets.data<std::int32_t>();
    args.logit_soft_cap = options_.logit_soft_cap;
    return args;
  }

  // lse of the rows [begin, end) over the whole vocabulary from the parts, in rank order; the target's logit
  // is on one rank, 0 elsewhere.
  static void combine(Context& c, const Axes& axes, std::int64_t begin, std::int64_t end, Tensor& lse,
                      Tensor& target) {
    if (axes.empty()) return;
    const Group group = c.group(axes);
    const auto parts = static_cast<std::int64_t>(group.ranks.size());
    const std::int64_t rows = end - begin;
    c.comm->all_reduce(group, joined(axes), DType::f32, target.data<float>() + begin, rows);
    Tensor all(DType::f32, {parts, rows});
    float* const own = lse.data<float>() + begin;
    c.comm->all_gather(group, joined(axes), own, all.raw(), rows * static_cast<std::int64_t>(sizeof(float)));
    const float* part = all.data<float>();
    for (std::int64_t r = 0; r < rows && !c.abstract(); ++r) {
      float top = -std::numeric_limits<float>::infinity();
      for (std::int64_t p = 0; p < parts; ++p) top = std::max(top, part[p * rows + r]);
      double sum = 0;
      for (std::int64_t p = 0; p < parts; ++p) sum += std::exp(static_cast<double>(part[p * rows + r]) - top);
      own[r] = static_cast<float>(top + std::log(sum));
    }
  }

  CrossEntropyOptions options_;
  bool vocab_major_, with_gradients_;
};

class SoftCapOp : public Op {
 public:
  explicit SoftCapOp(float cap) : cap_(cap) {}
  std::string_view name() const override { return "soft cap"; }
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    CHECK(in[0].dtype == DType::f32 && in[0].sharding.partial.empty(), "soft cap of {}",
          name_of(in[0].dtype));
    return {in[0]};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    Tensor out(DType::f32, in[0].shape());
    const float* const x = in[0].data<float>();
    float* const y = out.data<float>();
    c.pool->for_range(in[0].size(), kElementsAtOnce, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) y[i] = cap_ * std::tanh(x[i] / cap_);
    });
    return {out};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    const Tensor y = call.output(0), grad = call.grad(0);
    Tensor out(DType::f32, y.shape());
    const float *const capped = y.data<float>(), *const g = grad.data<float>();
    float* const dx = out.data<float>();
    c.pool->for_range(y.size(), kElementsAtOnce, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) {
        const float tanh = capped[i] / cap_;
        dx[i] = g[i] * (1 - tanh * tanh);
      }
    });
    return {out};
  }
  std::uint32_t needs_inputs() const override { return 0; }
  std::uint32_t needs_outputs() const override { return 1; }

 private:
  static constexpr std::int64_t kElementsAtOnce = 4096;
  float cap_;
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
  // Not in a pipeline, whose last stage may have many forward passes before the first backward pass: each
  // would keep a gradient of the whole head.
  const bool with_gradients = context.grad_enabled && context.stage.count == 1;
  auto out = apply(context, std::make_shared<LinearCrossEntropyOp>(options, head_vocab_major, with_gradients),
                   inputs);
  const Sharding whole{};
  return {reshard(context, out[0], whole), reshard(context, out[1], whole)};
}

Array capped_logits(Context& context, const Array& logits, float cap) {
  CHECK(cap > 0, "a cap of {}", cap);
  return apply(context, std::make_shared<SoftCapOp>(cap), std::span(&logits, 1))[0];
}

}  // namespace switchyard
