// Switchyard as a library: a Mixture-of-Experts model with its weights on a mesh of ranks.
//
//   Engine engine = Engine::open(Settings::parse({"model_name=deepseek3-tiny", "ranks=4"}));
//   const Logits logits = engine.forward({1, 5, {3, 1, 4, 1, 5}});
//   for (std::int32_t token : engine.generate({3, 1, 4}, {.most_tokens = 20})) ...
//
// Settings are those of the command line. Every function throws Error (switchyard/error.h); no argument that
// a caller passes ends the process.
//
// Under mpirun the ranks are divided evenly over the processes. Every process then calls the same functions
// of Engine and TokenStream with the same arguments in the same order, and gets the same results. One engine
// may be open at a time. A failure while ranks work, and calls that differ, end all processes with one line,
// because processes that wait for each other in MPI cannot recover.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <stop_token>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "switchyard/error.h"
#include "switchyard/routing.h"
#include "switchyard/setting_error.h"

namespace switchyard {

// The checked settings of a model, its mesh and its training.
class Settings {
 public:
  // Parses `key=value` texts as on the command line of `switchyard train`. The first text may be a YAML file,
  // or a folder or file with weights (a Hugging Face folder, a checkpoint, a run, a GGUF file), which then
  // defines the model. Error(usage) that names the key, its value and the nearest legal one; SettingError for
  // an unknown key and for a value that its key does not take.
  static Settings parse(const std::vector<std::string>& arguments);

  // A key's value as text, defaults and derived values included. Error(usage) for an unknown key.
  std::string value(std::string_view key) const;
  // Every key with its value, typed, as a JSON object.
  std::string json() const;

  struct Checked;
  const Checked& checked() const { return *checked_; }

 private:
  std::shared_ptr<const Checked> checked_;
};

// Sequences of equal length. `tokens` has rows * length ids, one sequence after the other.
struct TokenBatch {
  std::int64_t rows = 0, length = 0;
  std::vector<std::int32_t> tokens;
};

// float32 [rows, positions, vocabulary], with the last dim contiguous.
struct Logits {
  std::int64_t rows = 0, positions = 0, vocabulary = 0;
  std::vector<float> values;
  std::vector<RoutedText> routing = {};  // of each row, where wanted
};

enum class Positions { all, last };  // the positions to return logits for

// A batch to train on or to score. What follows `inputs` is laid out as inputs.tokens, or empty.
struct TrainBatch {
  TokenBatch inputs;
  // Empty: the target of a token is the next token of its document, and a document's last token has none. A
  // negative target means none.
  std::vector<std::int32_t> targets = {};
  // The number of each token's document within its row, from 1; tokens see those of their document alone. 0
  // is padding. Empty: a row is one document. With use_dpo, documents 2p + 1 and 2p + 2 are a pair: the
  // answer that was chosen, and the one that was rejected.
  std::vector<std::int32_t> segments = {};
  // Empty: they count from 0 in every document.
  std::vector<std::int32_t> positions = {};
  // The factor of each target's cross entropy, such as an advantage. 0 means no target. Empty: each is 1.
  std::vector<float> weights = {};
};

// The losses of a batch: means over the targets, each times its weight.
struct Loss {
  double loss = 0;  // the whole loss that is minimised
  double cross_entropy = 0, balance_loss = 0;
  double targets = 0;  // their number
};

// The result of one optimizer step. Losses are means over the targets of the step.
struct TrainStep {
  std::int64_t step = 0;  // from 0
  double loss = 0;        // the whole loss that is minimised
  double cross_entropy = 0, balance_loss = 0;
  double gradient_norm = 0;  // before clipping
  double learning_rate = 0;
  double targets = 0;
  std::string skipped;  // the reason why the step was skipped; empty: it was not
};

// How tokens are sampled, in place of the decode_* keys. By default the most probable token is taken.
struct Sampling {
  std::int64_t most_tokens = 128;
  double temperature = 0;                                                      // 0: the most probable token
  std::int64_t top_k = 0;                                                      // 0: all tokens are candidates
  double top_p = 1, min_p = 0;                                                 // as in `serve`
  double repetition_penalty = 1, presence_penalty = 0, frequency_penalty = 0;  // as in `serve`
  std::uint32_t seed = 0;               // the same seed gives the same text
  std::vector<std::int32_t> ends = {};  // tokens that end a text, in addition to the model's own
  bool ends_by_model = true;            // true: the model's own end tokens end a text
  std::vector<std::string> stop = {};   // a text ends before the first of these; needs the model's tokenizer
  std::string json_schema = {};         // a text is JSON that keeps this schema; needs the model's tokenizer
  bool log_probs = false;               // return the tokens' log probabilities
  bool experts = false;                 // return the tokens' experts; needs return_routed_experts=true
  std::string adapter = {};             // the adapter that reads and makes the text; empty: none
};

// A text that is over.
struct Text {
  std::vector<std::int32_t>
      tokens;                     // new ones; the one that ended the text is the last, but with json_schema
  std::string text;               // of the tokens, before a stop text; empty without a tokenizer
  std::vector<double> log_probs;  // of each token, where wanted
  bool ended = false;             // false: it has all the tokens that it may have
  // The experts of the prompt's tokens and the new ones, where wanted; the model did not read the last one.
  std::optional<RoutedText> routing = {};
};

// How a model rates the tokens of a text that exists, from the second token on or as score() was asked.
struct Score {
  std::vector<double> log_probs;            // natural logarithms of their probabilities
  std::vector<std::int32_t> most_probable;  // the token that the model would have taken
};

struct ParameterInfo {
  std::string name;                 // "layers.3.moe.wi_0"
  std::vector<std::int64_t> shape;  // of the whole parameter
  std::string dtype;                // "float32", "bfloat16", or a packed type such as "int4"
  std::vector<std::string> axes;    // for each dim, the mesh axes that split it ("expert+fsdp"); "" for none
  std::vector<std::int64_t> block;  // shape of a rank's shard
  bool trained = true;
};

// One rank's shard of a parameter.
struct Shard {
  int rank = 0;
  std::vector<std::int64_t> offset, shape;  // within the whole parameter
  const void* data = nullptr;               // the weights in their dtype, with the last dim contiguous
  int gpu = -1;  // the GPU, as CUDA numbers them, whose memory `data` is; -1: the host's
  std::size_t bytes = 0;
  std::shared_ptr<const void> owner;  // keeps `data` valid, also after the engine's end
};

// A parameter and the shards of this process's ranks. `data` is valid as long as its owner is; a train_step()
// changes the values there. Ranks with the same shard may share it.
struct ParameterView : ParameterInfo {
  std::vector<Shard> shards;
};

// Engine::train() calls these, all in the thread that called it. An exception of one ends the run behind its
// step, with its checkpoint, and comes out of train().
struct TrainCalls {
  // After each step, which waits for it, with the step's metrics, a JSON object of numbers
  // (docs/run-files.md). False ends the run, with its checkpoint.
  std::function<bool(const std::string& metrics)> after_step = {};
  std::function<void(const std::string& line)> line = {};  // what `switchyard train` prints
  // Every 50 ms while the run works. False ends it behind the running step.
  std::function<bool()> between = {};
};

// Bytes that tensors occupy on the device, of all ranks of this process; `peak`: the sum of the ranks' peaks.
// Weights that ranks share count for each of them.
struct MemoryUse {
  std::int64_t in_use = 0, peak = 0;
};

// Hears how many bytes of the weights the first rank has read, of how many: 0 of 0 while it has read none,
// and on processes without that rank. With several ranks it jumps over what others read.
using OpenProgress = std::function<void(std::int64_t read, std::int64_t all)>;

// A training run that is over.
struct TrainedRun {
  std::string folder;              // has its files (docs/run-files.md)
  std::string metrics_file;        // metrics.jsonl in there, or where the key metrics_file says
  std::vector<std::string> lines;  // the summary, for people
  std::string sample;              // text that the trained model wrote; "" without a tokenizer
  std::int64_t steps = 0;          // that the weights have been trained by now
  bool stopped = false;            // it was asked to end
};

class Engine;

// The tokens of one text, as they are generated. The text holds
// a slot of the engine until it ends or the stream is destroyed.
class TokenStream {
 public:
  TokenStream(TokenStream&&) noexcept;
  TokenStream& operator=(TokenStream&&) = delete;
  ~TokenStream();

  // The next token, or nothing after the end of the text.
  std::optional<std::int32_t> next();
  // The text that is certain with the token that next() returned and was not before: whole characters, before
  // a stop text; "" without a tokenizer.
  std::string text() const;
  // That token's log probability, where wanted.
  std::optional<double> log_prob() const;

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

// The text of tokens that come one by one, where one token may be a part of a character.
class TextDecoder {
 public:
  TextDecoder(TextDecoder&&) noexcept;
  TextDecoder& operator=(TextDecoder&&) = delete;
  ~TextDecoder();

  // Returns the text that is certain with this token and was not before: whole characters, or "".
  std::string add(std::int32_t token);
  // The text of a character that no further token completes. All texts together are Engine::decode()'s.
  std::string rest() const;

 private:
  friend class Engine;
  struct State;
  explicit TextDecoder(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Calls from several threads run one after the other. A process may have several engines; their ranks share
// its cores. After an Error(runtime) or Error(internal) on a mesh of several ranks, every further call to the
// engine throws, because ranks that wait for each other cannot recover.
class Engine {
 public:
  // Builds the mesh and the weights: random, from the settings' folder, from load_parameters_path, or, with
  // optimizer state and step, from load_full_state_path. When `stop` is asked for, from any thread, before
  // all weights are read or drawn, it throws Error(runtime) with the next one. `progress` is called in this
  // thread every 50 ms and at the end. What it throws ends the opening likewise, and comes out.
  static Engine open(const Settings& settings, const std::stop_token& stop = {},
                     const OpenProgress& progress = {});
  Engine(Engine&&) noexcept;
  Engine& operator=(Engine&&) = delete;
  ~Engine();  // ends the rank threads

  // Notes about the start, for a user: "random weights: load_parameters_path is not set".
  const std::vector<std::string>& notes() const;
  std::int64_t vocabulary() const;
  int ranks() const;
  // Every axis of the mesh, in order, with its size.
  std::vector<std::pair<std::string, int>> mesh() const;
  std::string device() const;  // "cpu"
  // JSON: what `inspect --json` has in "architecture": layers, experts, vocab, emb, heads, …
  std::string model() const;
  MemoryUse memory() const;  // never waits for another call

  // Logits for the token after each position, or after the last position only. `experts`: also the experts of
  // each token. Error(usage) then for a model without MoE layers.
  Logits forward(const TokenBatch& batch, Positions positions = Positions::all, bool experts = false);

  // Runs one optimizer step on per_device_batch_size * ranks * gradient_accumulation_steps sequences.
  TrainStep train_step(const TrainBatch& batch);

  // The halves of a step, on any number of sequences that the mesh can split. forward_backward() adds the
  // gradients of its loss to those of the calls since the last step; optimizer_step() clips them and changes
  // the weights. One of each has the bits of a train_step(). `learning_rate`: in place of the schedule's.
  Loss forward_backward(const TrainBatch& batch);
  TrainStep optimizer_step(std::optional<double> learning_rate = {});
  // Trains as `switchyard train` does with the engine's settings, on its weights and on from its steps: with
  // metrics, evaluations, checkpoints and, where base_output_directory/run_name has a checkpoint, on from
  // that. `data`: in place of data_path; "": as the settings say. `steps`: likewise; -1: as the settings say.
  // Signals are left alone.
  TrainedRun train(const std::string& data = "", std::int64_t steps = -1, const TrainCalls& calls = {});

  // A whole gradient in float32, as of a parameter; zeros for one that no loss reads. Error(usage) without a
  // forward_backward() since the last step, and for a parameter that is not trained.
  std::vector<float> read_gradient(std::string_view name);
  // Forgets the gradients.
  void drop_gradients();

  // The natural log of each target's probability, float32 laid out as inputs.tokens; 0 where there is no
  // target. Weights do not count. Packed weights and any number of sequences that the mesh can split will do.
  std::vector<float> token_log_probs(const TrainBatch& batch);
  // The mean cross entropy of a batch, by token_log_probs(): without a balance loss, and without gradients.
  Loss loss(const TrainBatch& batch);

  // Continues a prompt of one token or more. Every token is chosen with the weights of its moment: after a
  // train_step() the stream reads its text again before it goes on. Prompt and new tokens together are at
  // most max_target_length tokens. The number of texts at the same time is at most 1 or, when
  // per_device_batch_size is given, per_device_batch_size times the mesh's ranks.
  TokenStream generate(const std::vector<std::int32_t>& prompt, const Sampling& sampling = {});

  // Continues prompts side by side, as many at once as there is room for, and returns all texts. The draws of
  // prompt i depend on the seed and on i. Logits of texts in one call may be rounded otherwise than those of
  // a text that is made alone. When `stop` is asked for, from any thread, it returns after the running call
  // of the model with the texts as far as they are; of several processes, that of the first counts.
  std::vector<Text> complete(const std::vector<std::vector<std::int32_t>>& prompts,
                             const Sampling& sampling = {}, const std::stop_token& stop = {});

  // Rates texts of two tokens or more, side by side as complete() makes texts, and as `serve` rates prompts.
  // `from` has the first token to rate of each text, 1 or more; empty: 1. The tokens before it get no logits,
  // which saves their product with the head.
  std::vector<Score> score(const std::vector<std::vector<std::int32_t>>& texts,
                           const std::vector<std::int64_t>& from = {}, const std::stop_token& stop = {});
  // Answers a chat. `request` is the JSON of a body of POST /v1/chat/completions, the result that of its
  // answer (docs/http.md): by the model's chat template and formats, with reasoning and calls of tools. What
  // a request leaves out: temperature 0, seed 0. Error(usage) for a request that `serve` refuses, for stream
  // and logprobs, and for a model without a chat template.
  std::string chat(std::string_view request, const std::stop_token& stop = {});

  // Encodes and decodes with the model's tokenizer. Error(usage) when the settings name none.
  std::vector<std::int32_t> encode(std::string_view text) const;
  std::string decode(const std::vector<std::int32_t>& tokens) const;
  // Decodes tokens that come after the tokens `before`, such as a prompt, and not these.
  TextDecoder text_decoder(const std::vector<std::int32_t>& before = {}) const;

  std::vector<ParameterInfo> parameters();
  ParameterView parameter(std::string_view name);
  // A whole parameter in float32, with the last dim contiguous. Error(usage) for a packed parameter.
  std::vector<float> read_parameter(std::string_view name);

  // Replaces a whole parameter, in its memory: views show the new values. `values` are laid out as
  // read_parameter() returns them, and are rounded to the parameter's dtype. Texts that are being made are
  // read again; optimizer state stays as it is. Error(usage) for a packed parameter.
  void assign(std::string_view name, std::span<const float> values);
  // Replaces all weights but an adapter's by those of a folder or file of the same model, likewise. Error in
  // one line, with the weights as they were, where it does not fit or is damaged.
  void load(const std::string& path);
  // Puts an adapter, a folder of PEFT, of a run or of a checkpoint, beside the model, for texts that name it
  // (Sampling::adapter). At most lora_slots at once. Error(usage) for a name that is taken, for files that do
  // not fit, and where texts cannot have several adapters (docs/finetuning.md).
  void add_adapter(const std::string& name, const std::string& folder);
  // Error(usage) for an unknown name, and while texts are being made.
  void remove_adapter(const std::string& name);
  std::vector<std::string> adapters() const;

  // To call behind writes into the memory of Shard::data, which is meant to be read: drops what was derived
  // from the weights.
  void weights_changed();

  // Writes a checkpoint to a new folder: the weights and, after a train_step(), optimizer state and step. It
  // opens as any folder with weights does; load_full_state_path goes on with its state. Returns notes for a
  // user. Error(usage) for packed weights and for a folder that exists and is not empty.
  std::vector<std::string> save(const std::string& folder);
  // Writes a Hugging Face folder, as `convert` does, from a temporary checkpoint beside the folder.
  // `dtype`: "float32" or "bfloat16"; "": as the weights are. Error(usage) also for a model that no Hugging
  // Face family can state.
  std::vector<std::string> export_weights(const std::string& folder, std::string_view dtype = "");

 private:
  friend class TokenStream;
  friend class TextDecoder;
  struct Impl;
  explicit Engine(std::shared_ptr<Impl> impl);
  std::shared_ptr<Impl> impl_;
};

}  // namespace switchyard
