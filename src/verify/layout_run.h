// Runs one layout of a model, to compare layouts: its
// forward values, gradients and some training steps.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "config/config.h"
#include "train/trainer.h"
#include "verify/gather.h"

namespace switchyard {

// A wrong layout to be found: one rank's contribution to one parameter's gradient is scaled.
struct GradientFault {
  int rank = 0;
  std::string gradient;  // name of a parameter
  double scale = 1;
};
// Parses "rank=3 gradient=layers.1.moe.wo scale=1.5"; Error(usage) for anything else.
GradientFault parse_fault(const std::string& text);

// The results of a layout, as whole tensors under these names:
//   hidden.<i>, logits, loss, balance_loss, router.<layer>.weights, grad.<parameter>   first pass, batch 0
//   ties.<layer>       f32 [B,S]: how close to a tie a replayed choice is that the router would not make
//   choices.<...>      i32 [B,S,K]: every choice of experts, in the first pass and in every microbatch
//   final.<parameter>  after the last step
struct LayoutRun {
  std::string mesh;
  std::map<std::string, Tensor> tensors;
  std::set<std::string> disagreements;  // names for which ranks that should agree held different bits
  std::vector<StepResult> steps;
  std::vector<std::vector<Tensor>> biases;  // the routers', after each step
  bool dropped_rows() const;
};

// Random tokens in documents of random lengths; every second
// row ends in padding. Depends only on its arguments.
Batch layout_batch(std::int64_t rows, std::int64_t sequence, std::int64_t vocab, std::int64_t step);

// Runs the config's model on `mesh` from random weights: a pass on batch 0, then `steps` training steps on
// batches 0, 1, … of `rows` rows. Replays the choices of experts in `recorded`, where given.
LayoutRun run_layout(const Config& config, const Mesh& mesh, std::int64_t rows, std::int64_t steps,
                     const LayoutRun* recorded, const std::optional<GradientFault>& fault);

// How far the router was from the choice `replayed`: the least change of single logits that leads to it, as a
// share of the largest logit. 0 when the router chooses the same experts (in any order), and for padding,
// which chooses none (-1); at most 1.
double tie_width(const MoeConfig& config, std::span<const float> logits, std::span<const float> bias,
                 std::span<const std::int32_t> replayed);

// Puts ties.<layer> in the gather, f32 [B,S]: tie_width() of the experts of `routing`.
void put_tie_widths(Context& context, Gather& gather, const MoeConfig& config, std::int64_t layer,
                    const Array& logits, const Array& bias, const Routing& routing);

}  // namespace switchyard
