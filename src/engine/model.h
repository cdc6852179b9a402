// A model that settings describe. ModelOnMesh: its configuration, the shapes of its weights and its mesh,
// without device and weights. ModelOnRanks adds the ranks and their device, the origin of the weights and the
// tokenizer. Every command and the public Engine start from one of the two.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "autograd/context.h"
#include "config/config.h"
#include "engine/text_adapters.h"
#include "models/families/peft.h"
#include "models/model_config.h"
#include "models/parameters.h"
#include "parallel/comm/processes.h"
#include "parallel/mesh.h"
#include "tokenizer/tokenizer.h"

namespace switchyard {

enum class ModelUse {
  train,         // dense weights that change, and the prediction layers
  run,           // weights do not change and may be packed; prediction layers only with mtp_draft=true
  train_or_run,  // with prediction layers; weights change unless they are packed
};

struct ModelOnMesh {
  // Uses the config's mesh, unless a mesh is given. Error(usage) for keys that contradict each other, and for
  // packed weights that would be trained.
  ModelOnMesh(Config config, ModelUse use);
  ModelOnMesh(Config config, Mesh mesh, ModelUse use);

  // Creates this rank's weights: blocks of `fill`, or random draws when it is null. Collective. Warnings
  // about dims that lost axes go to `warnings`.
  Parameters create(Context& context, const Parameters::FillBlock& fill = nullptr,
                    std::vector<std::string>* warnings = nullptr) const;

  // True when some weights are stored in few bits.
  bool is_packed() const;

  Config config;
  Mesh mesh;
  ModelUse use;
  ModelConfig model;
  std::vector<std::string> notes;              // for people
  std::vector<NamedAdapter> named;             // adapters of texts, by number; else one, or none
  std::shared_ptr<const PeftAdapter> adapter;  // null: none
  std::vector<ParameterSpec> specs;            // the weights of all stages
};

// Receives how many bytes of the weights, as ranks hold them, the first rank has read so far, of how many.
using LoadProgress = std::function<void(std::int64_t read, std::int64_t all)>;

struct ModelOnRanks : ModelOnMesh {
  // Checks that `processes` can hold the ranks and that their device exists, and finds the weights that
  // load_parameters_path names, or takes `weights` instead. Error(usage). `processes` must outlive the
  // object; null: all ranks are in this process.
  explicit ModelOnRanks(ModelOnMesh model, Processes* processes = nullptr,
                        std::optional<Parameters::FillBlock> weights = std::nullopt);

  // Runs `body` on every rank, as run_session() does. One body may load several models.
  void run(const std::function<void(Context&)>& body) const;
  // Creates this rank's weights. Collective. Rank 0 calls `progress` while weights are read.
  Parameters load(Context& context, const LoadProgress& progress = nullptr,
                  std::vector<std::string>* warnings = nullptr) const;

  std::unique_ptr<Processes> own_process;  // null when the caller gave `processes`
  Processes* processes;
  Parameters::FillBlock fill;            // null: random draws
  std::unique_ptr<Tokenizer> tokenizer;  // null until make_tokenizer_of() returned one
};

// The tokenizer that the config names; null when it names none.
std::unique_ptr<Tokenizer> make_tokenizer_of(const Config& config);

// Takes the adapter's parameters from the adapter, and all others from `base` (null: random draws).
Parameters::FillBlock with_adapter_weights(Parameters::FillBlock base,
                                           std::shared_ptr<const PeftAdapter> adapter);

// Returns `fill` with a way to stop: it throws Error(runtime) that names `what` when `stop` is asked for
// before all weights are read or drawn.
Parameters::FillBlock stoppable(Parameters::FillBlock fill, const std::stop_token& stop, const char* what);

// Cuts blocks, in the parameters' dtype, out of the whole tensors that `fill` returns.
Parameters::FillBlock blocks_of(Parameters::Fill fill);

}  // namespace switchyard
