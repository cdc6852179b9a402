// A model as settings describe it. ModelOnMesh: its numbers, the shapes of its weights and its mesh, with no
// device and no weights. ModelOnRanks adds the ranks and their device, the origin of the weights and the
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
#include "models/model_config.h"
#include "models/parameters.h"
#include "parallel/comm/processes.h"
#include "parallel/mesh.h"
#include "tokenizer/tokenizer.h"

namespace switchyard {

enum class ModelUse {
  train,         // dense weights, which change, and the prediction layers
  run,           // weights stay as they are and may be packed; prediction layers only with mtp_draft=true
  train_or_run,  // with the prediction layers; weights change unless they are packed
};

struct ModelOnMesh {
  // The mesh is that of the config, unless given. Error(usage) for keys that contradict each other, and for
  // packed weights that are to be trained.
  ModelOnMesh(Config config, ModelUse use);
  ModelOnMesh(Config config, Mesh mesh, ModelUse use);

  // Makes this rank's weights: blocks of `fill`, or random draws where it is null. Collective. Warnings about
  // dims that lost axes go to `warnings`.
  Parameters create(Context& context, const Parameters::FillBlock& fill = nullptr,
                    std::vector<std::string>* warnings = nullptr) const;

  // Whether some weights are stored in few bits.
  bool is_packed() const;

  Config config;
  Mesh mesh;
  ModelUse use;
  ModelConfig model;
  std::vector<std::string> notes;    // for people
  std::vector<ParameterSpec> specs;  // of the weights of all stages
};

// Told how many of the weights are read so far, and how many there are.
using LoadProgress = std::function<void(std::int64_t read, std::int64_t all)>;

struct ModelOnRanks : ModelOnMesh {
  // Checks that `processes` can have the ranks and that their device is there, and finds the weights that
  // load_parameters_path names, or takes `weights` in place of them. Error(usage). `processes` must live as
  // long; null: all ranks are in this process.
  explicit ModelOnRanks(ModelOnMesh model, Processes* processes = nullptr,
                        std::optional<Parameters::FillBlock> weights = std::nullopt);

  // Runs `body` on every rank, as run_session() does. Several models may be loaded in one body.
  void run(const std::function<void(Context&)>& body) const;
  // Makes this rank's weights. Collective. Rank 0 calls `progress` while weights are packed.
  Parameters load(Context& context, const LoadProgress& progress = nullptr,
                  std::vector<std::string>* warnings = nullptr) const;

  std::unique_ptr<Processes> own_process;  // null where `processes` are the caller's
  Processes* processes;
  Parameters::FillBlock fill;            // null: random draws
  std::unique_ptr<Tokenizer> tokenizer;  // null until make_tokenizer_of() gave it one
};

// The tokenizer that the config names; null where it names none.
std::unique_ptr<Tokenizer> make_tokenizer_of(const Config& config);

// Blocks of the whole tensors that `fill` gives, in the parameters' dtype.
Parameters::FillBlock blocks_of(Parameters::Fill fill);

}  // namespace switchyard
