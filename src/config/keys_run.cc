// Declares keys of the run: its name, its model, and the folders of its outputs.
#include "config/config.h"
#include "config/declaration.h"
#include "core/packed_words.h"

namespace switchyard {

std::vector<KeyDeclaration> run_keys() {
  return {
      text_key("model_name", "default", "a file of configs/models, whose keys are taken; default: none"),
      boolean_key("override_model_config", false,
                  "let the command line change keys that model_name's file sets"),
      text_key("base_config", "",
               "a config file that the file with this key inherits from: a path from its folder, or one of "
               "configs/; the inheriting file's keys win"),
      choice_key("device", "cpu", one_of({"auto", "cpu", "cuda", "cuda_emulated", "fenced"}),
                 "where tensors live and kernels run; auto: a GPU where there is one; cuda_emulated: a GPU's "
                 "kernels, thread by thread on the CPU; fenced: the CPU, on memory that nothing but kernels, "
                 "copies and collectives can touch, which proves that a device of its own would do"),
      choice_key(
          "gpu_kernels", "proven", one_of({"proven", "all"}),
          "kernels that a GPU may run: proven: where a faster one has run on an emulated card only, the one "
          "below it, which has run on a card; all: the faster ones, too"),
      with_role(KeyRole::layout,
                integer_key("ranks", 1, at_least(1),
                            "number of ranks: threads; under mpirun as many as processes, or a multiple")),
      boolean_key("ignore_memory_limit", false,
                  "begin even where the plan says that the machine's memory does not suffice"),
      with_role(KeyRole::model,
                choice_key("compat", "none", one_of({"none", "maxtext", std::string(kCompat202608)}),
                           "maxtext: follow the numerical quirks of MaxText 0.2.5, to reproduce its runs; "
                           "maxtext-2026-08: those it had in August 2026 (docs/numerics.md)")),
      float_key("collective_timeout_seconds", 300.0, more_than(0),
                "how long a rank waits for the others in a collective"),
      text_key("load_parameters_path", "",
               "folder with the weights to start from: Hugging Face safetensors, one of our checkpoints, or "
               "a run (its newest); not read when the run goes on from a checkpoint of its own"),
      text_key("load_full_state_path", "",
               "checkpoint, or run, to go on from with optimizer state and step; not read when the run has a "
               "checkpoint of its own"),
      planned(text_key("model_call_mode", "", "train when empty, or inference")),
      planned(boolean_key("use_multimodal", false, "vision and other encoders")),
      planned(boolean_key("use_audio", false, "audio encoder")),
      planned(text_key("compiled_trainstep_file", "", "a step compiled ahead of time")),
      planned(text_key("compile_topology", "", "topology to compile for; `plan topology=...` answers this")),
      planned(boolean_key("use_m3_model", false, "another backend of the reference")),
      planned(boolean_key("convert_checkpoint_if_possible", false,
                          "start from converted Hugging Face weights; load_parameters_path reads them")),
      planned(optional(text_key("sharding_strategy", "", "another layout of the reference's inference"))),
      planned(integer_key("compile_topology_num_slices", -1, at_least_or(1, -1), "slices of that topology")),
  };
}

std::vector<KeyDeclaration> output_keys() {
  return {
      text_key("run_name", "", "name of the run and of its output folder; empty: <model>_<time>"),
      text_key(
          "base_output_directory", "",
          "folder of all runs; empty: ./switchyard_output; a gs:// folder means a local one of that name"),
      boolean_key("log_config", false,
                  "print every key, its value and its source at start (the reference's default is true)"),
      text_key("metrics_file", "",
               "file that gets one JSON object a step; empty: metrics.jsonl in the run's folder"),
      choice_key("profiler", "", one_of({"", "xplane", "nsys"}),
                 "not empty: write a trace of some steps to trace.json in the run's folder, for "
                 "chrome://tracing or ui.perfetto.dev"),
      integer_key("skip_first_n_steps_for_profiler", 1, at_least(0), "steps before the first traced one"),
      integer_key("profiler_steps", 5, at_least(1), "how many steps are traced"),
      boolean_key("enable_tensorboard", true, "write TensorBoard event files to the run's folder"),
      boolean_key("enable_checkpointing", true,
                  "write checkpoints to the run's folder, and go on from the newest one there"),
      integer_key("checkpoint_period", 10000, at_least(1), "steps between checkpoints"),
      boolean_key("async_checkpointing", true,
                  "copy the state and write it in the background; takes memory for one copy"),
      boolean_key("save_checkpoint_on_start", true, "also save the state before the first step"),
      boolean_key("save_checkpoint_on_completion", true, "also save the state after the last step"),
      optional(integer_key("max_num_checkpoints_to_keep", 0, at_least(1),
                           "the oldest checkpoints beyond that number are removed; None: all are kept")),
  };
}

std::vector<KeyDeclaration> generation_keys() {
  return {
      verbatim(text_key("prompt", "I love to",
                        "text that `generate` goes on from, and the sample at the end of a training, there "
                        "'The ' when not set")),
      integer_key(
          "max_prefill_predict_length", 64, at_least(1),
          "most prompt tokens of `generate`; new tokens = max_target_length - this; when not set, the "
          "prompt's length"),
      choice_key("weight_format", "stored", one_of(packed_words({"stored", "dense"})),
                 "the bits that `generate`, `serve` and `eval` hold experts, linear layers and the head in: "
                 "as stored, few bits of a GGUF file too; dense, in weight_dtype; or made on load in groups "
                 "of 32 inputs with a scale (docs/quantization.md)"),
      choice_key("decode_sampling_strategy", "greedy",
                 one_of({"greedy", "weighted", "nucleus", "topk", "composite"}),
                 "how `generate` picks a token: the most probable; by probability; of the most probable that "
                 "make decode_sampling_nucleus_p; of the decode_sampling_top_k most probable; of these the "
                 "most probable that make decode_sampling_nucleus_p; the sample at the end of a training "
                 "does so, too, where it is set"),
      float_key("decode_sampling_nucleus_p", -1, any_number(),
                "probability that the tokens of nucleus and composite sampling make, above 0 and at most 1"),
      integer_key("decode_sampling_top_k", 0, at_least(0),
                  "tokens that topk and composite sampling choose from"),
      float_key("decode_sampling_temperature", 1.0, at_least(0),
                "what logits are divided by when a token is drawn; 0: greedy"),
      float_key("decode_sampling_min_p", 0, between(0, 1),
                "tokens less probable than so large a part of the most probable one, with the temperature "
                "applied, are not drawn; with any strategy"),
      float_key("decode_repetition_penalty", 1.0, between(0.01, 100),
                "what logits of tokens in the prompt or the text are divided by, negative ones multiplied"),
      float_key("decode_presence_penalty", 0, between(-2, 2),
                "taken from the logits of tokens that `generate` has made"),
      float_key("decode_frequency_penalty", 0, between(-2, 2),
                "taken from a token's logit as often as `generate` has made the token"),
      structure_key("decode_logit_bias", nlohmann::json::array(),
                    "pairs of a token and what is added to its logit, -100 to 100: [[5, -100], [7, 2.5]]"),
      integer_list_key("decode_end_tokens", {},
                       "tokens that end a text of `generate` and `serve`, beside the end of a document that "
                       "the tokenizer knows"),
      verbatim(text_key("autoregressive_decode_assert", "",
                        "text that `generate` must give, or it ends with status 3; empty: any")),
      boolean_key("mtp_draft", false,
                  "`generate` and `serve` have a model's first prediction layer (mtp_num_layers) guess the "
                  "token after each, and the model read both at once; texts stay the same"),
      integer_key(
          "mtp_draft_tokens", 1, between(1, 8),
          "with mtp_draft: so many tokens ahead at most; the layer reads its own guesses for the further "
          "ones"),
      integer_key(
          "ngram_draft", 0, between(0, 16),
          "`generate` and `serve` guess so many tokens at most from what the text has said before, and "
          "the model reads them at once; texts stay the same; 0: none"),
      boolean_key("return_log_prob", false, "`generate` gives tokens' log probabilities in its --json"),
      boolean_key("use_chunked_prefill", false,
                  "`generate` reads a prompt prefill_chunk_size tokens at a time; `serve` does unless this "
                  "is set to false"),
      boolean_key(
          "deterministic_batches", false,
          "a text of `generate` and `serve` has the same tokens, bit for bit, whoever shares the batch; "
          "on CPUs, at a price in speed (docs/serving.md)"),
      integer_key("prefill_chunk_size", 256, at_least(1),
                  "tokens of prompts that are read at once with use_chunked_prefill"),
      boolean_key(
          "enable_prefix_caching", false,
          "`serve` does not read the beginning of a prompt again that a row remembers; on unless set "
          "to false, and off for models with gated delta nets without prompt_checkpoints. Of layers "
          "with windows or chunks a row remembers all only if set to true, else what the tokens after "
          "its text see, and its prompt_checkpoints"),
      inert(text_key("system_prompt", "", "only with use_chat_template")),
  };
}

}  // namespace switchyard
