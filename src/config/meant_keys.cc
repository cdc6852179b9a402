#include "config/meant_keys.h"

#include <algorithm>
#include <utility>

#include "config/declaration.h"

namespace switchyard {
namespace {

using Meaning = std::pair<std::string_view, std::string_view>;

constexpr Meaning kNames[] = {
    {"lr", "learning_rate"},
    {"learn_rate", "learning_rate"},
    {"max_lr", "learning_rate"},
    {"peak_lr", "learning_rate"},
    {"lr_scheduler_type", "lr_schedule_type"},
    {"scheduler", "lr_schedule_type"},
    {"warmup", "warmup_steps_fraction"},
    {"warmup_steps", "warmup_steps_fraction"},
    {"warmup_ratio", "warmup_steps_fraction"},
    {"weight_decay", "adam_weight_decay"},
    {"wd", "adam_weight_decay"},
    {"optimizer", "opt_type"},
    {"optim", "opt_type"},
    {"grad_clip", "gradient_clipping_threshold"},
    {"max_grad_norm", "gradient_clipping_threshold"},
    {"grad_accum", "gradient_accumulation_steps"},
    {"accumulation_steps", "gradient_accumulation_steps"},
    {"epoch", "num_epoch"},
    {"epochs", "steps, or num_epoch for whole passes through the data"},
    {"n_epochs", "steps, or num_epoch for whole passes through the data"},
    {"num_epochs", "steps, or num_epoch for whole passes through the data"},
    {"num_train_epochs", "steps, or num_epoch for whole passes through the data"},
    {"max_steps", "steps"},
    {"num_steps", "steps"},
    {"n_steps", "steps"},
    {"train_steps", "steps"},
    {"max_iters", "steps"},
    {"iters", "steps"},
    {"iterations", "steps"},
    {"bs", "per_device_batch_size"},
    {"batch", "per_device_batch_size"},
    {"batchsize", "per_device_batch_size"},
    {"micro_batch_size", "per_device_batch_size"},
    {"global_batch_size", "per_device_batch_size"},
    {"per_device_train_batch_size", "per_device_batch_size"},
    {"seq_len", "max_target_length"},
    {"seq_length", "max_target_length"},
    {"sequence_length", "max_target_length"},
    {"max_seq_len", "max_target_length"},
    {"max_seq_length", "max_target_length"},
    {"max_length", "max_target_length"},
    {"context_length", "max_target_length"},
    {"block_size", "max_target_length"},
    {"n_ctx", "max_target_length"},
    {"max_tokens", "max_target_length, which counts the prompt too"},
    {"max_new_tokens", "max_target_length, which counts the prompt too"},
    {"n_predict", "max_target_length, which counts the prompt too"},
    {"temperature", "decode_sampling_temperature"},
    {"temp", "decode_sampling_temperature"},
    {"top_k", "decode_sampling_top_k"},
    {"top_p", "decode_sampling_nucleus_p"},
    {"min_p", "decode_sampling_min_p"},
    {"repetition_penalty", "decode_repetition_penalty"},
    {"seed", "init_weights_seed, and data_shuffle_seed for the order of the data"},
    {"data", "data_path"},
    {"dataset", "data_path"},
    {"train_file", "data_path"},
    {"tokenizer", "tokenizer_path"},
    {"model", "model_name"},
    {"weights", "load_parameters_path"},
    {"checkpoint", "load_parameters_path"},
    {"precision", "dtype"},
    {"gpus", "ranks"},
    {"num_gpus", "ranks"},
    {"world_size", "ranks"},
    {"output", "base_output_directory"},
    {"output_dir", "base_output_directory"},
    {"out_dir", "base_output_directory"},
    {"layers", "base_num_decoder_layers"},
    {"n_layers", "base_num_decoder_layers"},
    {"n_layer", "base_num_decoder_layers"},
    {"num_layers", "base_num_decoder_layers"},
    {"num_hidden_layers", "base_num_decoder_layers"},
    {"n_heads", "base_num_query_heads"},
    {"n_head", "base_num_query_heads"},
    {"num_heads", "base_num_query_heads"},
    {"num_attention_heads", "base_num_query_heads"},
    {"hidden_size", "base_emb_dim"},
    {"d_model", "base_emb_dim"},
    {"n_embd", "base_emb_dim"},
    {"intermediate_size", "base_mlp_dim"},
    {"n_experts", "num_experts"},
    {"experts", "num_experts"},
    {"save_steps", "checkpoint_period"},
    {"save_every", "checkpoint_period"},
    {"save_interval", "checkpoint_period"},
    {"eval_steps_interval", "eval_interval"},
    {"eval_every", "eval_interval"},
};

constexpr Meaning kInert[] = {
    {"batch_size", "per_device_batch_size"},
    {"train_micro_batch_size", "per_device_batch_size"},
    {"eval_batch_size", "eval_per_device_batch_size"},
    {"algo", "dpo_algo"},
};

std::string_view meaning_in(std::span<const Meaning> table, std::string_view name) {
  const auto found = std::ranges::find(table, name, &Meaning::first);
  return found == table.end() ? std::string_view() : found->second;
}

// The name in "--batch-size".
std::string without_dashes(std::string_view option) {
  std::string name(option.substr(std::min(option.find_first_not_of('-'), option.size())));
  std::ranges::replace(name, '-', '_');
  return name;
}

// The key that a word names, however it is written; empty for none.
std::string key_named(const std::string& option) {
  std::string word = without_dashes(option);
  if (const std::string_view meant = keys_meant_by(word); !meant.empty()) word = meant;
  if (const std::string_view acting = acting_keys_for(word); !acting.empty()) word = acting;
  return find_key(word) == nullptr ? "" : word;
}

}  // namespace

std::string_view keys_meant_by(std::string_view name) {
  return meaning_in(kNames, without_dashes(name));
}

std::string_view acting_keys_for(std::string_view inert) {
  return meaning_in(kInert, inert);
}

std::vector<std::string_view> all_meant_keys() {
  std::vector<std::string_view> all;
  for (const Meaning& meaning : kNames) all.push_back(meaning.second);
  for (const Meaning& meaning : kInert) all.push_back(meaning.second);
  return all;
}

std::string setting_meant(std::span<const std::string> arguments, std::size_t at) {
  const std::string& word = arguments[at];
  const std::size_t equals = word.find('=');
  const std::string key = key_named(word.substr(0, equals));
  if (key.empty()) return "";
  if (equals != std::string::npos) return key + word.substr(equals);
  // The value is what follows, where it is no other setting.
  std::string value;
  for (std::size_t i = at + 1; i < arguments.size() && value.empty(); ++i) {
    const std::string& next = arguments[i];
    if (next == "=") continue;
    const bool is_other = next.find('=') > 0 && next.find('=') != std::string::npos;
    if (is_other || next.starts_with("--")) break;
    value = next.substr(next.starts_with("=") ? 1 : 0);
  }
  return key + "=" + (value.empty() ? "VALUE" : value);
}

}  // namespace switchyard
