// Engine::Impl: the files of the public Engine share it. engine_open.cc opens the engine, engine.cc has what
// all calls need, engine_weights.cc the tensors, engine_training.cc losses and steps, engine_train.cc runs,
// engine_texts.cc and engine_chat.cc texts, engine_adapters.cc their adapters, engine_saves.cc checkpoints
// and exports, engine_settings.cc the settings.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/changing_weights.h"
#include "engine/model.h"
#include "engine/rank_loop.h"
#include "switchyard/engine.h"
#include "texts/generate.h"
#include "train/resume.h"
#include "train/trainer.h"

namespace switchyard {

namespace serve {
struct ServedModel;
}

struct Settings::Checked {
  Config config;
};

// Error(usage) that names `what`, the call, for a batch that is not whole or has an unknown token.
void require_whole(const char* what, const TokenBatch& batch, std::int64_t vocabulary);

struct Engine::Impl {
  // A rank's own, from the first job on.
  struct RankState {
    explicit RankState(Parameters made) : parameters(std::move(made)) {}
    Parameters parameters;
    std::optional<Trainer> trainer;      // from the first step on
    std::int64_t steps = 0;              // that were trained
    std::optional<Parameters> of_texts;  // the same weights, and adapters of texts; from the first text on
    std::optional<Generator> generator;  // on them
    std::optional<texts::Loop> texts;    // on it
  };

  const std::shared_ptr<Processes> processes;
  ModelOnRanks on_ranks;
  const Config& config = on_ranks.config;
  const Mesh& mesh = on_ranks.mesh;
  const ModelConfig &model = on_ranks.model, without;  // with prediction layers, and without them
  const bool returns_experts;                          // with texts
  const std::int64_t text_rows;
  const texts::Limits limits;
  texts::Inbox inbox{limits};  // rank 0 takes from it: other processes leave theirs empty

  // The adapters of texts. Guarded by adapters_mutex.
  mutable std::mutex adapters_mutex;
  std::vector<std::shared_ptr<const texts::TextAdapter>> adapters;
  std::unique_ptr<ChangingWeights> changing;  // null: none was added or removed
  std::int64_t changes = 0;

  std::mutex texts_mutex;
  std::int64_t streams = 0;                               // guarded by texts_mutex; at most text_rows
  std::shared_ptr<const grammar::Vocabulary> vocabulary;  // from the first schema on; guarded by texts_mutex
  std::shared_ptr<const serve::ServedModel> served;       // from the first chat on; guarded by texts_mutex

  bool has_gradients = false;  // of forward_backward()
  ResumePoint resume;          // of load_full_state_path
  std::vector<std::optional<RankState>> ranks;
  std::vector<std::shared_ptr<const MemoryAccount>> accounts;  // of this process's ranks, null for others
  std::optional<RankLoop> loop;                                // ends first

  Impl(const Config& of, std::shared_ptr<Processes> with);

  // Starts the ranks and makes the weights, or what load_full_state_path names.
  void start(const LoadProgress& progress);

  // One rank of each process speaks for it.
  bool speaks(const Context& context) const {
    return context.comm->rank() % (mesh.size() / processes->count()) == 0;
  }

  std::optional<RankState>& state(Context& context) {
    return ranks[static_cast<std::size_t>(context.comm->rank())];
  }

  // Ids from here on have no text.
  std::int64_t ids_to_pick() const;
  const Tokenizer& tokenizer_for(const char* what) const;  // Error(usage) without one

  void require_layout(std::int64_t rows) const;
  void refuse_packed(const char* what, const char* advice) const;
  // Error(usage) that names `what`, the call, for a batch that the model and the mesh do not train on.
  Batch batch_to_train(const char* what, const TrainBatch& batch) const;
  void require_gradients(const char* what) const;
  Trainer& trainer(Context& context, const TrainConfig& training);  // this rank's
  // Runs a step, and counts it.
  TrainStep run_step(const std::function<StepResult(Trainer&, std::int64_t step)>& run);
  // Puts shards of a parameter's shape together, in float32. `shard` returns them on the ranks that hold the
  // parameter.
  std::vector<float> whole(const ParameterSpec& spec,
                           const std::function<Tensor(Context&, const Parameter&)>& shard);
  TrainConfig training() const;

  const ParameterSpec& spec(std::string_view name) const;
  // Adds the blocks that ranks of other processes placed in their tensors, zeros elsewhere: sums of bits,
  // which are exact.
  void add_of_other_processes(Context& context, const Tensor& whole) const;
  ParameterInfo info(const ParameterSpec& of) const;

  // Writes this rank's block of a parameter, f32 or bf16, if no other rank of the process writes it.
  void write_block(Context& context, const Parameter& parameter, const Tensor& block) const;
  void drop_derived(Context& context);

  // The loop of all texts that the engine makes.
  texts::Loop& loop_of_texts(Context& context);
  texts::TextRequest request(const char* what, const std::vector<std::int32_t>& prompt,
                             const Sampling& sampling);
  // Makes all texts side by side; Error(runtime) for logits that are no numbers.
  std::vector<GeneratedText> make_all(const char* what, const std::vector<texts::TextRequest>& requests,
                                      const std::stop_token& stop);
  std::shared_ptr<const grammar::Vocabulary> vocabulary_of_grammars();
  const serve::ServedModel& chats();  // Error(usage) without a chat template
  // Error(usage) that names `what`, the call, for an unknown name; null for "".
  std::shared_ptr<const texts::TextAdapter> adapter_of(const char* what, const std::string& name) const;
  // adapters_mutex is held.
  void change_adapters(const WeightChange& change);
  void take_stream(const char* what);
  void end_stream();
  [[noreturn]] void fail_of(const GeneratedText& made, const std::string& broken_layer) const;

  // Collective: restores this rank's weights, optimizer state and steps.
  void restore(Context& context);
  // Runs `work` on process 0; an Error of it is thrown in all processes.
  void on_first_process(const std::function<void()>& work);
  // Writes a checkpoint of the weights; `with_state`: also of the optimizer's state, if there is any.
  void write_checkpoint(const SavePlace& place, bool with_state, const std::vector<ExtraFile>& extras);
};

}  // namespace switchyard
