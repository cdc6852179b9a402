#include "ops/loss.h"

#include <algorithm>
#include <functional>

#include "kernels/loss/cross_entropy.h"
#include "kernels/loss/token_loss.h"
#include "kernels/pointwise/soft_cap.h"
#include "kernels/pointwise/strided_copy.h"
#include "ops/reshard.h"

namespace switchyard {
namespace {

// Fills `there` with what `fill` makes on the host. An abstract tensor has no values.
void fill_from_host(const Context& c, const Tensor& there,
                    const std::function<void(std::span<float>)>& fill) {
  if (c.abstract()) return;
  const Tensor here(Memory(), DType::f32, there.shape());
  fill(here.span<float>());
  copy(here.view(), there.view());
}

const Axes& axes_of_vocabulary(const ArrayInfo& head, bool vocab_major) {
  return head.sharding.dims[vocab_major ? 0 : 1];
}

struct LogitForm {
  bool vocab_major;
  float soft_cap;
};

// The logits of this rank's tokens for its columns of the head, whose layout is `info`.
CrossEntropyLogits local_logits(const Context& c, const Tensor& hidden, const Tensor& head,
                                const ArrayInfo& info, const Tensor& targets, const LogitForm& form) {
  const std::size_t vocab_dim = form.vocab_major ? 0 : 1;
  return {.hidden = hidden.view(),
          .weight = head.view(),
          .weight_vocab_major = form.vocab_major,
          .targets = targets.view(),
          .vocab_begin = local_offset(*c.mesh, c.rank, info.shape, info.sharding)[vocab_dim],
          .whole_vocab = info.shape[vocab_dim],
          .logit_soft_cap = form.soft_cap};
}

// lse over the whole vocabulary from the parts, in rank order; the target's logit is
// on one rank, 0 elsewhere.
void combine(Context& c, const Axes& axes, const TensorView& lse, const TensorView& target) {
  if (axes.empty()) return;
  const ProcessGroup& group = c.group(axes);
  c.comm->all_reduce(group, target);
  const Tensor parts = c.empty(DType::f32, {static_cast<std::int64_t>(group.ranks.size()), lse.size()});
  c.comm->all_gather(group, lse, parts.view());
  combine_log_sums(*c.pool, parts.view(), lse);
}

class LinearCrossEntropyOp : public Op {
 public:
  // `with_gradients`: forward makes the gradients, too, as if the loss's own were 1, which it nearly always
  // is. Then logits are made once (kernels/loss/cross_entropy.h). A head that is not `trained` has none.
  LinearCrossEntropyOp(CrossEntropyOptions options, bool vocab_major, bool with_gradients, bool trained)
      : options_(options), vocab_major_(vocab_major), with_gradients_(with_gradients), trained_(trained) {}
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
    if (!trained_) return {scalar, scalar, lse, dhidden};
    return {scalar, scalar, lse, dhidden, dhead};
  }

  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo> infos) const override {
    const CrossEntropyLogits logits = logits_of(c, in[0], in[1], infos[1], in[2]);
    const Axes& axes = vocab_axes(infos[1]);
    const std::int64_t rows = in[2].size();
    const Tensor lse = c.empty(DType::f32, in[2].shape()), target = c.empty(DType::f32, {rows}),
                 loss = c.empty(DType::f32, {}), z_loss = c.empty(DType::f32, {});
    const TensorView lse_rows = lse.view().reshaped({rows}), segments = in[3].view().reshaped({rows}),
                     weights = weights_in(in);
    std::vector<Tensor> out{loss, z_loss, lse};
    if (with_gradients_) {
      const Tensor dhidden = c.empty(DType::f32, in[0].shape()),
                   dhead = trained_ ? c.empty(in[1].dtype(), in[1].shape()) : Tensor();
      const Tensor softmax = c.empty(DType::f32, {rows}), target_share = c.empty(DType::f32, {rows});
      linear_cross_entropy_with_gradients(
          *c.pool, {.logits = logits,
                    .lse = lse_rows,
                    .target_logit = target.view(),
                    .softmax_coefficient = softmax.view(),
                    .target_coefficient = target_share.view(),
                    .dhidden = dhidden.view(),
                    .dweight = dhead.view(),
                    .summed = [&](std::int64_t begin, std::int64_t end) {
                      combine(c, axes, lse_rows.rows(begin, end), target.view().rows(begin, end));
                      loss_coefficients(*c.pool, {.lse = lse_rows.rows(begin, end),
                                                  .segments = segments.rows(begin, end),
                                                  .weights = rows_of(weights, begin, end),
                                                  .gradient = TensorView(),
                                                  .softmax_coefficient = softmax.view().rows(begin, end),
                                                  .target_coefficient = target_share.view().rows(begin, end),
                                                  .count = options_.count,
                                                  .count_there = options_.count_there.view(),
                                                  .z_loss_multiplier = options_.z_loss_multiplier});
                    }});
      out.push_back(dhidden);
      if (trained_) out.push_back(dhead);
    } else {
      switchyard::linear_cross_entropy(*c.pool, {logits, lse_rows, target.view()});
      combine(c, axes, lse_rows, target.view());
    }
    sum_token_loss(*c.pool, {.lse = lse_rows,
                             .target_logit = target.view(),
                             .segments = segments,
                             .weights = weights,
                             .loss = loss.view(),
                             .z_loss = z_loss.view(),
                             .count = options_.count,
                             .count_there = options_.count_there.view(),
                             .z_loss_multiplier = options_.z_loss_multiplier});
    return out;
  }

  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    const Tensor g = whole_gradient(c, call.grad(0), vocab_axes(call.input_info(1)));
    if (with_gradients_) {
      // They belong to this node alone, which is walked once.
      const Tensor dhidden = call.output(3), dhead = trained_ ? call.output(4) : Tensor();
      scale_in_place(*c.pool, dhidden.view(), g.view());
      if (trained_) scale_in_place(*c.pool, dhead.view(), g.view());
      return gradients_of(call, dhidden, dhead);
    }
    const Tensor hidden = call.input(0), head = call.input(1), targets = call.input(2);
    const Tensor lse = call.output(2), segments = call.input(3);
    const Tensor softmax = c.empty(DType::f32, lse.shape()), target = c.empty(DType::f32, lse.shape()),
                 dhidden = c.empty(DType::f32, hidden.shape()),
                 dhead = trained_ ? c.empty(head.dtype(), head.shape()) : Tensor();
    loss_coefficients(*c.pool, {.lse = lse.view(),
                                .segments = segments.view(),
                                .weights = call.inputs() > 4 ? call.input(4).view() : TensorView(),
                                .gradient = g.view(),
                                .softmax_coefficient = softmax.view(),
                                .target_coefficient = target.view(),
                                .count = options_.count,
                                .count_there = options_.count_there.view(),
                                .z_loss_multiplier = options_.z_loss_multiplier});
    linear_cross_entropy_backward(*c.pool, {.logits = logits_of(c, hidden, head, call.input_info(1), targets),
                                            .lse = lse.view(),
                                            .softmax_coefficient = softmax.view(),
                                            .target_coefficient = target.view(),
                                            .dhidden = dhidden.view(),
                                            .dweight = dhead.view()});
    return gradients_of(call, dhidden, dhead);
  }
  std::uint32_t needs_inputs(std::uint32_t) const override { return with_gradients_ ? 0 : ~0u; }
  std::uint32_t needs_outputs() const override { return with_gradients_ ? (trained_ ? 24 : 8) : 4; }

 private:
  // The gradient of the loss, [] f32. The forward summed over the vocabulary's ranks; the transpose of that
  // sum is the same sum.
  static Tensor whole_gradient(Context& c, const Tensor& gradient, const Axes& axes) {
    if (axes.empty()) return gradient.defined() ? gradient : c.zeros(DType::f32, {});
    const Tensor g = c.zeros(DType::f32, {});
    if (gradient.defined()) strided_copy(*c.pool, gradient.view(), g.view());
    c.comm->all_reduce(c.group(axes), g.view());
    return g;
  }

  // [rows], of the fifth input, which may be missing.
  static TensorView weights_in(std::span<const Tensor> in) {
    return in.size() > 4 ? in[4].view().reshaped({in[4].size()}) : TensorView();
  }
  static TensorView rows_of(const TensorView& weights, std::int64_t begin, std::int64_t end) {
    return weights.defined() ? weights.rows(begin, end) : TensorView();
  }

  // Tokens and their weights have none.
  static std::vector<Tensor> gradients_of(const BackwardCall& call, const Tensor& hidden,
                                          const Tensor& head) {
    std::vector<Tensor> gradients(call.inputs());
    gradients[0] = hidden, gradients[1] = head;
    return gradients;
  }

  const Axes& vocab_axes(const ArrayInfo& head) const { return axes_of_vocabulary(head, vocab_major_); }

  CrossEntropyLogits logits_of(const Context& c, const Tensor& hidden, const Tensor& head,
                               const ArrayInfo& info, const Tensor& targets) const {
    return local_logits(c, hidden, head, info, targets, {vocab_major_, options_.logit_soft_cap});
  }

  CrossEntropyOptions options_;
  bool vocab_major_, with_gradients_, trained_;
};

Tensor log_probs_on_host(Context& c, const Tensor& x) {
  return read_back(c, x, "log-probabilities", [] { return Tensor(); });
}

// The two numbers of each token are subtracted on the host: a GPU waits for it.
class TokenLogProbsOp : public Op {
 public:
  TokenLogProbsOp(LogitForm form, bool trained) : form_(form), trained_(trained) {}
  std::string_view name() const override { return "token_log_probs"; }

  // Outputs: the log-probabilities, and lse of the local tokens for backward.
  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    ArrayInfo numbers = in[2];
    numbers.dtype = DType::f32;
    return {numbers, numbers};
  }

  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo> infos) const override {
    const std::int64_t rows = in[2].size();
    const Tensor lse = c.empty(DType::f32, in[2].shape()), target = c.empty(DType::f32, {rows}),
                 log_probs = c.empty(DType::f32, in[2].shape());
    const TensorView lse_rows = lse.view().reshaped({rows});
    switchyard::linear_cross_entropy(
        *c.pool, {local_logits(c, in[0], in[1], infos[1], in[2], form_), lse_rows, target.view()});
    combine(c, axes_of_vocabulary(infos[1], form_.vocab_major), lse_rows, target.view());
    fill_from_host(c, log_probs, [&](std::span<float> out) {
      const Tensor sums = log_probs_on_host(c, lse), logits = log_probs_on_host(c, target),
                   segments = log_probs_on_host(c, in[3]);
      for (std::size_t i = 0; i < out.size(); ++i)
        out[i] = segments.span<std::int32_t>()[i] == 0 ? 0 : logits.span<float>()[i] - sums.span<float>()[i];
    });
    return {log_probs, lse};
  }

  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    const Tensor hidden = call.input(0), head = call.input(1), targets = call.input(2),
                 segments = call.input(3), lse = call.output(1);
    const Axes& axes = axes_of_vocabulary(call.input_info(1), form_.vocab_major);
    const Tensor coefficients = c.empty(DType::f32, lse.shape());
    fill_from_host(c, coefficients, [&](std::span<float> out) {
      std::ranges::fill(out, 0.0f);
      if (!call.grad(0).defined()) return;
      const Tensor gradient = log_probs_on_host(c, call.grad(0)), counts = log_probs_on_host(c, segments);
      for (std::size_t i = 0; i < out.size(); ++i)
        if (counts.span<std::int32_t>()[i] != 0) out[i] = -gradient.span<float>()[i];
    });
    // The forward summed over the vocabulary's ranks; the transpose of that sum is the same sum.
    if (!axes.empty()) c.comm->all_reduce(c.group(axes), coefficients.view());
    const Tensor dhidden = c.empty(DType::f32, hidden.shape()),
                 dhead = trained_ ? c.empty(head.dtype(), head.shape()) : Tensor();
    linear_cross_entropy_backward(
        *c.pool, {.logits = local_logits(c, hidden, head, call.input_info(1), targets, form_),
                  .lse = lse.view(),
                  .softmax_coefficient = coefficients.view(),
                  .target_coefficient = coefficients.view(),
                  .dhidden = dhidden.view(),
                  .dweight = dhead.view()});
    return {dhidden, dhead, Tensor(), Tensor()};
  }
  std::uint32_t needs_outputs() const override { return 2; }

 private:
  LogitForm form_;
  bool trained_;
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
    const Tensor out = c.empty(DType::f32, in[0].shape());
    switchyard::soft_cap(*c.pool, cap_, in[0].view(), out.view());
    return {out};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    const Tensor y = call.output(0), dx = c.empty(DType::f32, y.shape());
    soft_cap_backward(*c.pool, cap_, y.view(), call.grad(0).view(), dx.view());
    return {dx};
  }
  std::uint32_t needs_inputs(std::uint32_t) const override { return 0; }
  std::uint32_t needs_outputs() const override { return 1; }

 private:
  float cap_;
};

struct Layout {
  Sharding tokens;
  Axes vocab;
};

// An axis cannot split both tokens and vocabulary. Where the head is split like the tokens (FSDP), either the
// tokens keep the axis and the head is gathered, or the vocabulary takes it and the tokens
// are; whichever has fewer rows.
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

// The inputs of a loss, laid out so that each rank has some tokens and some columns.
std::vector<Array> loss_inputs(Context& context, const Array& hidden, const Array& head,
                               bool head_vocab_major, const Array& targets, const Array& segments,
                               const Array& weights = {}) {
  const auto [tokens, vocab] = choose_layout(*context.mesh, hidden, head, head_vocab_major ? 0 : 1);
  const Sharding head_layout = head_vocab_major ? Sharding{{vocab, {}}, {}} : Sharding{{{}, vocab}, {}};
  std::vector<Array> inputs{reshard(context, hidden, Sharding{{tokens.dims[0], tokens.dims[1], {}}, {}}),
                            reshard(context, head, head_layout), reshard(context, targets, tokens),
                            reshard(context, segments, tokens)};
  if (weights.defined()) inputs.push_back(reshard(context, weights, tokens));
  return inputs;
}

}  // namespace

Array token_log_probs(Context& context, const Array& hidden, const Array& head, bool head_vocab_major,
                      const Array& targets, const Array& segments, float logit_soft_cap) {
  const auto inputs = loss_inputs(context, hidden, head, head_vocab_major, targets, segments);
  const auto op = std::make_shared<TokenLogProbsOp>(LogitForm{head_vocab_major, logit_soft_cap},
                                                    inputs[1].value()->requires_grad);
  return apply(context, op, inputs)[0];
}

CrossEntropy linear_cross_entropy(Context& context, const Array& hidden, const Array& head,
                                  bool head_vocab_major, const Array& targets, const Array& segments,
                                  const CrossEntropyOptions& options) {
  const auto inputs =
      loss_inputs(context, hidden, head, head_vocab_major, targets, segments, options.weights);
  // Not in a pipeline, whose last stage may have many forward passes before the first backward pass: each
  // would keep a gradient of the whole head.
  const bool with_gradients = context.grad_enabled && context.stage.count == 1;
  const auto op = std::make_shared<LinearCrossEntropyOp>(options, head_vocab_major, with_gradients,
                                                         inputs[1].value()->requires_grad);
  auto out = apply(context, op, inputs);
  const Sharding whole{};
  return {reshard(context, out[0], whole), reshard(context, out[1], whole)};
}

Array capped_logits(Context& context, const Array& logits, float cap) {
  CHECK(cap > 0, "a cap of {}", cap);
  return apply(context, std::make_shared<SoftCapOp>(cap), std::span(&logits, 1))[0];
}

}  // namespace switchyard
