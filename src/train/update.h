// Updater: from this rank's gradients to updated weights.
//
// Ranks that hold the same block of a parameter share its update: each reduces, keeps optimizer state for,
// and updates one flat range of the block, its share. So gradients are summed once, nobody repeats another's
// arithmetic, and optimizer state is split over every axis of the mesh that the weight itself does not use,
// `data` included (ZeRO-1). A weight that Muon updates is brought together matrix by matrix in between
// (train/matrix_exchange.h).
//
// State on the host visits the device: a weight's comes while the weight before is updated, is updated, and
// goes back. Between updates the host may read and write it.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/offload.h"
#include "models/name_patterns.h"
#include "models/parameters.h"
#include "optim/muon.h"
#include "optim/optimizer.h"
#include "train/matrix_exchange.h"

namespace switchyard {

struct UpdateConfig {
  OptimizerConfig optimizer;       // with muon: of the parameters that are no matrix
  std::optional<MuonConfig> muon;  // opt_type=muon
  bool muon_routers = true;        // whether Muon updates the routers' weights, too
  DType grad_dtype = DType::f32;
  std::int64_t layers = 0;     // of the model, prediction layers among them
  bool state_on_host = false;  // optimizer_memory_host_offload: where the context offloads, state lies there
  std::vector<std::string> decay_exclude;  // patterns of parameter names (glob)
  NamePatterns decay_mask;                 // adamw_mask: of those that do not decay, either
};

// The tensors of a parameter's optimizer state: what is appended to its name, and their dtype.
struct StateTensor {
  std::string suffix;
  DType dtype;
};
std::vector<StateTensor> state_tensors(const UpdateConfig& config, const ParameterSpec& spec);

class Updater {
 public:
  // Zero state for this rank's shares. Error(usage) for values no optimizer takes. `parameters` must outlive
  // it.
  Updater(Context& context, const UpdateConfig& config, const Parameters& parameters);

  // Takes the gradients off the parameters and sums them over the ranks that hold the same block. Collective.
  void reduce_gradients();
  // Of this rank's share of the reduced gradients: numbers whose sums over all ranks add up to the sum of
  // squares. In a pipeline one for each layer and one for what is in none, so that the sum does not depend on
  // which layers a stage has.
  std::vector<double> gradient_squares();
  // Lets go of reduced gradients: their step is left out.
  void drop_gradients();
  // L2 norm over all parameters, alike on all ranks; a router's bias that the optimizer does not update is none.
  // Collective; sums over all ranks, so nobody reads a weight before all are written.
  double weight_norm();
  // One step on gradients times `factor`; `step` counts from 0. Collective.
  void update(std::int64_t step, double learning_rate, double factor);
  // After updates and additions: ranks that do not share memory tell each other their shares. Collective.
  void publish() const;
  // weight[i] += increments[i], for a float32 parameter that is whole on every rank; a frozen one stays.
  void add(const std::string& name, const std::vector<float>& increments);

  // weight[.., i, j] *= factors[i, j] in f32, for the last two dims of a weight with three that trains here;
  // factors [dim 1 * dim 2] f32 of the host. Without effect on another.
  void scale_columns(const std::string& name, std::span<const float> factors);

  std::int64_t state_bytes() const;  // of this rank, on its device

  // What this rank updates: elements [begin, begin + count) of its block of a parameter, and their state, in
  // the order of state_tensors(). The shares of all ranks have every element of every parameter once.
  struct Share {
    const Parameter* parameter;
    std::int64_t begin, count;
    std::span<const Tensor> state;
  };
  std::vector<Share> shares() const;

 private:
  // One parameter's share.
  struct Range {
    const Parameter* parameter = nullptr;
    const ProcessGroup* group = nullptr;  // the ranks that have the same block, each with one share
    std::int64_t begin = 0, count = 0, padded = 0;
    Tensor grad;  // reduced, [count]
    std::vector<Tensor> state;
    TensorView squares;          // [1] of squares_: their sum over this share's weights
    bool squares_known = false;  // false: it is not that of the weights as they are
    bool decay = true;
    std::unique_ptr<MatrixExchange> exchange;  // muon
    Tensor matrices;                           // between its gather and its scatter
  };

  // Sums of squares, one a parameter in the order of `parameters`, as of gradient_squares().
  std::vector<double> by_layer(const Tensor& squares, std::span<const Parameter* const> parameters,
                               const char* what) const;
  Range make_range(const Parameter& parameter, OwnerLoads& loads) const;
  void reduce(Range& range) const;
  static TensorView weight_of(const Range& range);  // the share of it that the range is
  bool offloads() const { return config_.state_on_host && context_.offload != nullptr; }
  // The way of state to the device, of the first range from `at` on that has a gradient; empty where state
  // lies there.
  std::vector<ArrivingTensor> start_state(std::vector<Range>::const_iterator at) const;
  static OptimizerRange optimizer_range(const Range& range, std::span<const Tensor> state);
  // Updates all ranges but those of Muon at once; their state is on the device.
  void update_elements(const OptimizerStep& step);
  void gather_matrices(Range& range, const Tensor& momentum, const OptimizerStep& step) const;
  void apply_matrices(Range& range, double learning_rate) const;

  Context& context_;
  UpdateConfig config_;
  std::unique_ptr<Optimizer> optimizer_;
  std::vector<Range> ranges_;  // one a parameter, in their order
  Tensor squares_;             // f64, one a range, on the device
};

}  // namespace switchyard
