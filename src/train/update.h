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

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/offload.h"
#include "kernels/optimizer/update_numbers.h"
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
  // Sums of squares are a matrix f64 [places, slots]. The matrix has one row; in a pipeline it has a row for
  // the parameters outside of layers, and one a layer: so a row's sum does not depend on which layers a stage
  // has. A slot that no parameter of this rank has is 0. The sum of all rows over all ranks is the total.
  std::int64_t places() const { return places_; }
  std::int64_t slots() const { return slots_; }
  // Writes the squares of this rank's share of the reduced gradients to `to`, which is 0.
  void put_gradient_squares(const Tensor& to) const;
  // Returns the parameters whose squares are not finite. `squares`, on
  // the host: put_gradient_squares() wrote them.
  std::vector<const Parameter*> not_finite(const Tensor& squares) const;
  // The squares of this rank's share of all weights, without router biases that the optimizer does not
  // update: those of the last sum_new_weights() and of updates since.
  const Tensor& weight_squares() const { return squares_; }
  // Sums the weights that no update has summed yet. A step calls it before its update, which may be in a
  // graph, and behind what changes weights beside the update.
  void sum_new_weights();
  // Call it when something else has changed the weights.
  void forget_weight_sums();

  // Takes one step by `numbers`, UpdateNumbers where the weights are (kernels/optimizer/update_numbers.h).
  // Collective. Nothing changes where they say that the step is bad.
  void update(const TensorView& numbers);
  // The host's part of those numbers; `step` counts from 0.
  UpdateNumbers numbers_of(std::int64_t step, double learning_rate) const;
  // Moves the router bias `name`, if this rank has it, by the experts' loads in the whole run
  // (kernels/moe/router_bias.h): counts i32 [P,E] where the weights are. Skips a frozen bias.
  void balance(const std::string& name, const TensorView& counts, double rate, const TensorView& numbers);
  // Call it after the update: ranks that share no memory exchange their shares. Collective.
  void publish() const;
  // weight[.., i, j] *= factors[i, j] in f32, for the last two dims of a weight with three dims that is
  // trained here; factors [dim 1 * dim 2] f32 on host. Does nothing for
  // other weights. sum_new_weights() must follow.
  void scale_columns(const std::string& name, std::span<const float> factors);

  // State waits on the host between updates.
  bool offloads() const { return config_.state_on_host && context_.offload != nullptr; }
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
    std::int64_t slot = 0;       // of its sums of squares, among all of the matrix
    TensorView squares;          // [1] of squares_: the sum of squares of this share's weights
    bool squares_known = false;  // false: `squares` is not up to date
    bool decay = true;
    std::unique_ptr<MatrixExchange> exchange;  // muon
    Tensor matrices;                           // between gather and scatter
  };

  Range make_range(const Parameter& parameter, OwnerLoads& loads) const;
  void reduce(Range& range) const;
  static TensorView weight_of(const Range& range);  // the part of the weight in the range, where it lies
  // Runs `work` on that part where kernels reach it: of a weight that is away on a copy, which goes back if
  // `work` changes it.
  void on_weight(const Range& range, bool changes, const std::function<void(const TensorView&)>& work) const;
  bool is_away(const Range& range) const { return switchyard::is_away(context_, range.parameter->spec); }
  static TensorView square_of(const Tensor& squares, const Range& range);  // [1] of a matrix of squares
  // Starts moving state to the device, for the first range from `at`
  // on that has a gradient; empty when the state is already there.
  std::vector<ArrivingTensor> start_state(std::vector<Range>::const_iterator at) const;
  static OptimizerRange optimizer_range(const Range& range, const TensorView& weight,
                                        std::span<const Tensor> state);
  // Updates all ranges together, except Muon's, whose weights and state are on the device.
  void update_elements(const TensorView& numbers);
  void gather_matrices(Range& range, const Tensor& momentum, const TensorView& numbers) const;
  void apply_matrices(Range& range, const TensorView& numbers) const;

  Context& context_;
  UpdateConfig config_;
  std::unique_ptr<Optimizer> optimizer_;
  std::vector<Range> ranges_;  // one for each parameter, in order
  std::int64_t places_ = 1, slots_ = 0;
  Tensor squares_;  // f64 [places, slots], on the device
};

}  // namespace switchyard
