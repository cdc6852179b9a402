// Updater: turns this rank's gradients into updated weights.
//
// Ranks that hold the same shard of a parameter split its update: each reduces, keeps
// optimizer state for, and updates one flat range of the shard, its share. So gradients
// are summed once, no rank repeats another's arithmetic, and optimizer state is split over
// every mesh axis that the weight itself does not use, `data` included (ZeRO-1). A weight
// that Muon updates is gathered matrix by matrix in between (train/matrix_exchange.h).
//
// State on the host moves to the device for its update: a weight's state arrives during the update of the
// previous weight, and then goes back. Between updates the host may read and write it.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/offload.h"
#include "kernels/optimizer/step_judge.h"
#include "models/name_patterns.h"
#include "models/parameters.h"
#include "optim/muon.h"
#include "optim/optimizer.h"
#include "train/matrix_exchange.h"

namespace switchyard {

struct UpdateConfig {
  OptimizerConfig optimizer;       // with muon: for parameters that are not matrices
  std::optional<MuonConfig> muon;  // opt_type=muon
  bool muon_routers = true;        // Muon also updates the routers' weights
  DType grad_dtype = DType::f32;
  std::int64_t layers = 0;     // of the model, prediction layers included
  bool state_on_host = false;  // optimizer_memory_host_offload: state is on the host if the context offloads
  std::vector<std::string> decay_exclude;  // patterns of parameter names (glob)
  NamePatterns decay_mask;                 // adamw_mask: further parameters without weight decay
};

// The tensors of a parameter's optimizer state: the suffix of the name, and the dtype.
struct StateTensor {
  std::string suffix;
  DType dtype;
};
std::vector<StateTensor> state_tensors(const UpdateConfig& config, const ParameterSpec& spec);

class Updater {
 public:
  // Creates zero state for this rank's shares. Error(usage) for
  // values that no optimizer accepts. `parameters` must outlive it.
  Updater(Context& context, const UpdateConfig& config, const Parameters& parameters);

  // Moves the gradients off the parameters and sums them over ranks with the same shard. Collective.
  void reduce_gradients();
  // Squared norms of this rank's share of the reduced gradients: summed over all
  // ranks they give the total. In a pipeline one number for each layer and one
  // for all else, so that the sum does not depend on which layers a stage has.
  std::vector<double> gradient_squares();
  // Those parameters whose sums of squares, in the order of the last gradient_squares() or
  // put_gradient_squares(), are not finite on this rank.
  std::vector<const Parameter*> not_finite(std::span<const double> squares) const;
  // This rank's sums of squares of the last gradient_squares(), one a parameter.
  std::span<const double> own_gradient_squares() const { return own_squares_; }
  // Frees the reduced gradients; their step is skipped.
  void drop_gradients();
  // L2 norm over all parameters, the same on all ranks, without router biases that the optimizer does not
  // update. Collective; it sums over all ranks, so no rank reads a weight before all are written.
  double weight_norm();
  // For a step without the host (one rank on a GPU), which reads no norm: writes the sums of squares of the
  // gradients, and of all weights, to f64 [parameters()] each. The norm is the root of their sum, term by
  // term. Call know_weights() before the step: it sums the weights that no update has summed yet.
  void put_gradient_squares(const Tensor& to);
  void put_weight_squares(const Tensor& to) const;
  void know_weights();
  std::int64_t parameters() const { return std::ssize(ranges_); }

  // Takes one step on gradients times `factor`; `step` counts from 0. Collective.
  void update(std::int64_t step, double learning_rate, double factor);
  // Likewise, with the numbers that are in a GPU's memory (kernels/optimizer/step_judge.h). For one rank,
  // with its state on the device: see works_by_numbers().
  void update_by_numbers(const TensorView& numbers);
  // Why update_by_numbers() cannot be called; empty when it can.
  std::string works_by_numbers() const;
  // The host's part of those numbers, for a step.
  UpdateNumbers numbers_of(std::int64_t step, double learning_rate) const;
  // Moves the router bias `name` by the experts' loads (kernels/moe/router_bias.h): counts i32 [P,E] on the
  // GPU. Not where the numbers say that the step is bad. Skips a frozen bias. For one rank.
  void balance_by_numbers(const std::string& name, const TensorView& counts, double rate,
                          const TensorView& numbers);
  // Call it after updates and additions: ranks that share no memory exchange their shares. Collective.
  void publish() const;
  // weight[i] += increments[i], for a float32 parameter that every rank holds whole; skips a frozen one.
  void add(const std::string& name, const std::vector<float>& increments);

  // weight[.., i, j] *= factors[i, j] in f32, for the last two dims of a weight with three dims that is
  // trained here; factors [dim 1 * dim 2] f32 on host. Does nothing for other weights.
  void scale_columns(const std::string& name, std::span<const float> factors);

  std::int64_t state_bytes() const;  // for this rank, on its device

  // The part that this rank updates: elements [begin, begin + count) of its shard of a parameter, and their
  // state, in the order of state_tensors(). All ranks' shares together have every element exactly once.
  struct Share {
    const Parameter* parameter;
    std::int64_t begin, count;
    std::span<const Tensor> state;
  };
  std::vector<Share> shares() const;

 private:
  // This rank's share of one parameter.
  struct Range {
    const Parameter* parameter = nullptr;
    const ProcessGroup* group = nullptr;  // the ranks with the same shard, each with one share
    std::int64_t begin = 0, count = 0, padded = 0;
    Tensor grad;  // reduced, [count]
    std::vector<Tensor> state;
    TensorView squares;          // [1] of squares_: the sum of squares of this share's weights
    bool squares_known = false;  // false: `squares` is not up to date
    bool decay = true;
    std::unique_ptr<MatrixExchange> exchange;  // muon
    Tensor matrices;                           // between gather and scatter
  };

  // Sums of squares for gradient_squares(), given one for each parameter in the order of `parameters`.
  std::vector<double> by_layer(std::span<const double> squares,
                               std::span<const Parameter* const> parameters) const;
  // The sums of squares of the gradients, in the order of `with_gradients_`.
  void sum_gradients(const Tensor& to);
  Range make_range(const Parameter& parameter, OwnerLoads& loads) const;
  void reduce(Range& range) const;
  static TensorView weight_of(const Range& range);  // the part of the weight in the range
  bool offloads() const { return config_.state_on_host && context_.offload != nullptr; }
  // Starts moving state to the device, for the first range from `at`
  // on that has a gradient; empty when the state is already there.
  std::vector<ArrivingTensor> start_state(std::vector<Range>::const_iterator at) const;
  static OptimizerRange optimizer_range(const Range& range, std::span<const Tensor> state);
  void take_step(const OptimizerStep& how);
  // Updates all ranges together, except Muon's; their state is on the device.
  void update_elements(const OptimizerStep& step);
  void gather_matrices(Range& range, const Tensor& momentum, const OptimizerStep& step) const;
  void apply_matrices(Range& range, const OptimizerStep& how) const;

  std::vector<double> on_host(const Tensor& squares, const char* what) const;

  Context& context_;
  UpdateConfig config_;
  std::unique_ptr<Optimizer> optimizer_;
  std::vector<Range> ranges_;                     // one for each parameter, in order
  Tensor squares_;                                // f64, one for each range, on the device
  std::vector<const Parameter*> with_gradients_;  // in the order of the last sums of their squares
  std::vector<double> own_squares_;               // those sums, where gradient_squares() made them
};

}  // namespace switchyard
