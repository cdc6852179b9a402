// Switchyard as a library: a Mixture-of-Experts model with its weights on a mesh of ranks, to be called.
//
//   Engine engine = Engine::open(Settings::parse({"model_name=deepseek3-tiny", "ranks=4"}));
//   const Logits logits = engine.forward({1, 5, {3, 1, 4, 1, 5}});
//   for (std::int32_t token : engine.generate({3, 1, 4}, {.most_tokens = 20})) ...
//
// The settings are those of the command line. Every function throws Error (switchyard/error.h); nothing that
// a caller passes ends the process.
//
// Under mpirun the ranks are spread over the processes, as many in each. Every process then calls the same
// functions of Engine and TokenStream with the same arguments in the same order, and gets the same results.
// One engine may be open at a time. A failure while ranks work, and calls that differ, end all processes with
// one line, as those that wait for each other in MPI cannot be brought back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "switchyard/error.h"

namespace switchyard {

// Checked settings of a model, its mesh and its training.
class Settings {
 public:
  // `key=value` texts as on the command line of `switchyard train`. The first one may be a YAML file, or a
  // folder or file with weights (a Hugging Face folder, a checkpoint, a run, a GGUF file), which then says
  // what the model is. Error(usage) that names the key, its value and the nearest legal one.
  static Settings parse(const std::vector<std::string>& arguments);

  // A key's value as text, with defaults and what the keys before it derive. Error(usage) for an unknown key.
  std::string value(std::string_view key) const;

  struct Checked;
  const Checked& checked() const { return *checked_; }

 private:
  std::shared_ptr<const Checked> checked_;
};

// Sequences of one length. `tokens` has rows * length ids, one sequence after the other.
struct TokenBatch {
  std::int64_t rows = 0, length = 0;
  std::vector<std::int32_t> tokens;
};

// float32 [rows, positions, vocabulary], the last dim fastest.
struct Logits {
  std::int64_t rows = 0, positions = 0, vocabulary = 0;
  std::vector<float> values;
};

enum class Positions { all, last };  // of which the logits are wanted

// A batch to train on. Without `targets`, the target of a token is the next token of its sequence, and the
// last token has none. A negative target is none.
struct TrainBatch {
  TokenBatch inputs;
  std::vector<std::int32_t> targets = {};  // as inputs.tokens
};

// The result of one optimizer step. Losses are means over the targets of the step.
struct TrainStep {
  std::int64_t step = 0;  // from 0
  double loss = 0;        // all that is minimised
  double cross_entropy = 0, balance_loss = 0;
  double gradient_norm = 0;  // before clipping
  double learning_rate = 0;
  double targets = 0;
  std::string skipped;  // why the weights were left as they were; empty: they were not
};

// How tokens are drawn, in place of the decode_* keys. With all defaults the most probable one is taken.
struct Sampling {
  std::int64_t most_tokens = 128;
  double temperature = 0;               // 0: the most probable token
  std::int64_t top_k = 0;               // 0: of all tokens
  double top_p = 1, min_p = 0;          // as in `serve`
  std::uint32_t seed = 0;               // the same seed, the same text
  std::vector<std::int32_t> ends = {};  // tokens that end a text, beside the model's own
  bool ends_by_model = true;            // whether the model's own end tokens end it
};

struct ParameterInfo {
  std::string name;                 // "layers.3.moe.wi_0"
  std::vector<std::int64_t> shape;  // of the whole parameter
  std::string dtype;                // "float32", "bfloat16", or a packed type such as "int4"
  std::vector<std::string> axes;    // of each dim: the mesh axes that split it, "expert+fsdp"; "" for none
  std::vector<std::int64_t> block;  // shape of a rank's block
  bool trained = true;
};

// One rank's block of a parameter.
struct Shard {
  int rank = 0;
  std::vector<std::int64_t> offset, shape;  // in the whole parameter
  const void* data = nullptr;  // the weights themselves, in their dtype, the last dim fastest; null on a GPU
  std::size_t bytes = 0;
};

// A parameter and the shards of this process's ranks. `data` is valid until the next train_step() or the end
// of the engine. Ranks that hold the same block may share it.
struct ParameterView : ParameterInfo {
  std::vector<Shard> shards;
};

class Engine;

// The tokens of one text as they are made. The text holds a row of the engine until its end, or until the
// stream is destroyed.
class TokenStream {
 public:
  TokenStream(TokenStream&&) noexcept;
  TokenStream& operator=(TokenStream&&) = delete;
  ~TokenStream();

  // The next token, or nothing at the end of the text.
  std::optional<std::int32_t> next();

  class Iterator {
   public:
    using value_type = std::int32_t;
    using difference_type = std::ptrdiff_t;
    std::int32_t operator*() const { return *token_; }
    Iterator& operator++() {
      token_ = stream_->next();
      return *this;
    }
    void operator++(int) { ++*this; }
    bool operator==(std::default_sentinel_t) const { return !token_; }

   private:
    friend class TokenStream;
    explicit Iterator(TokenStream& stream) : stream_(&stream), token_(stream.next()) {}
    TokenStream* stream_;
    std::optional<std::int32_t> token_;
  };
  Iterator begin() { return Iterator(*this); }
  std::default_sentinel_t end() const { return {}; }

 private:
  friend class Engine;
  struct State;
  explicit TokenStream(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Calls from several threads are carried out one after the other. Several engines may be in one process;
// their ranks share its cores. After an Error(runtime) or Error(internal) of a mesh of several ranks an
// engine throws at every further call: ranks that wait for each other cannot be brought back.
class Engine {
 public:
  // Makes the mesh and the weights: random ones, or those of the settings' folder or load_parameters_path.
  static Engine open(const Settings& settings);
  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) = delete;
  ~Engine();  // ends the ranks

  // Remarks on the start, for a user: "random weights: load_parameters_path is not set".
  const std::vector<std::string>& notes() const;
  std::int64_t vocabulary() const;
  int ranks() const;

  // Logits of the token after each position, or after the last.
  Logits forward(const TokenBatch& batch, Positions positions = Positions::all);

  // One optimizer step. The batch has per_device_batch_size * ranks * gradient_accumulation_steps sequences.
  TrainStep train_step(const TrainBatch& batch);

  // Goes on from a prompt of one token or more, with the weights of the moment. The prompt and the new tokens
  // together are at most max_target_length. Texts that can be made side by side: one, or where
  // per_device_batch_size is given, that times the mesh's ranks.
  TokenStream generate(const std::vector<std::int32_t>& prompt, const Sampling& sampling = {});

  // With the model's tokenizer. Error(usage) where the settings name none.
  std::vector<std::int32_t> encode(std::string_view text) const;
  std::string decode(const std::vector<std::int32_t>& tokens) const;

  std::vector<ParameterInfo> parameters();
  ParameterView parameter(std::string_view name);
  // The whole parameter in float32, the last dim fastest. Error(usage) for one that is packed.
  std::vector<float> read_parameter(std::string_view name);

 private:
  friend class TokenStream;
  struct Impl;
  explicit Engine(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

}  // namespace switchyard
