// Training data and tokenizers.
#include <cstdint>

#include "config/declaration.h"

namespace switchyard {
namespace {

std::vector<KeyDeclaration> other_dataset_keys() {
  const std::vector<InertDefault> keys = {
      {"dataset_path", ""},
      {"dataset_name", "c4/en:3.1.0"},
      {"eval_dataset_name", "c4/en:3.1.0"},
      {"train_split", "train"},
      {"eval_split", "validation"},
      {"hf_path", ""},
      {"hf_name", ""},
      {"hf_data_dir", ""},
      {"hf_train_files", ""},
      {"hf_eval_split", ""},
      {"hf_eval_files", ""},
      {"hf_access_token", ""},
      {"grain_train_files", ""},
      {"grain_eval_files", ""},
      {"grain_train_mixture_config_path", ""},
      {"grain_file_type", "arrayrecord"},
      {"grain_packing_type", "first_fit"},
      {"grain_worker_count", 1},
      {"grain_per_worker_buffer_size", 1},
      {"grain_num_threads", 16},
      {"grain_prefetch_buffer_size", 500},
      {"grain_worker_count_eval", 1},
      {"grain_per_worker_buffer_size_eval", 1},
      {"grain_ram_budget_mb", 1024},
      {"grain_num_threads_eval", 16},
      {"grain_prefetch_buffer_size_eval", 500},
      {"grain_data_source_max_workers", 16},
      {"grain_shuffle_buffer_size", 100},
      {"grain_use_elastic_iterator", false},
      {"olmo_index_path", ""},
      {"olmo_path_remap_from", ""},
      {"olmo_path_remap_to", ""},
      {"olmo_apply_ngram_filter", true},
      {"colocated_python_data_input", false},
      {"max_corpus_chars", 10000000},
  };
  std::vector<KeyDeclaration> group =
      inert_group("of dataset types that are not read here; see dataset_type and data_path", keys);
  group.push_back(optional(inert(text_key("grain_index_storage_option", "", group.front().help))));
  const std::vector<InertDefault> mmap = {
      {"mmap_eod_id", 0},       {"mmap_npy_split", ""},         {"mmap_split_sentences", false},
      {"eod_mask_loss", false}, {"reset_attention_mask", true}, {"packing_max_segments_per_sample", 25},
      {"blend_cache_dir", ""},  {"blend_index_dir", ""},
  };
  for (KeyDeclaration& key : inert_group("only with dataset_type=grain and its mmap files", mmap))
    group.push_back(std::move(key));
  const std::vector<InertDefault> c4 = {
      {"use_stream_chunking", nullptr},
      {"train_interleave_cycle_length", -1},
      {"train_shard_in_read", false},
  };
  for (KeyDeclaration& key : inert_group("only with dataset_type=c4_mlperf", c4))
    group.push_back(std::move(key));
  group.push_back(inert(text_list_key("eval_data_columns", {"text"}, group.front().help)));
  return group;
}

}  // namespace

std::vector<KeyDeclaration> data_keys() {
  std::vector<KeyDeclaration> keys = {
      choice_key(
          "dataset_type", "synthetic",
          one_of({"synthetic", "text", "tokenized"}, {"tfds", "hf", "grain", "c4_mlperf", "olmo_grain"}),
          "random tokens, the text of data_path, or what `switchyard data build` made of it"),
      text_key(
          "data_path", "",
          "files and folders of text (dataset_type=text) or folders of tokens (tokenized), separated by ':'"),
      text_list_key(
          "data_mixture_weights", {},
          "shares of the parts of data_path in every batch, such as 0.7,0.3; empty: they are one data set"),
      text_list_key("train_data_columns", {"text"}, "the key of the text in JSON lines (*.jsonl)"),
      float_key("eval_fraction", 0.05, between(0, 0.99),
                "share of the text that is held out, with eval_interval or by `switchyard data build`"),
      choice_key("tokenizer_type", "sentencepiece",
                 one_of({"byte", "sentencepiece", "huggingface", "tiktoken", "gguf"}), "kind of tokenizer"),
      text_key("tokenizer_path", "", "tokenizer file or folder; not needed for byte and synthetic data"),
      boolean_key(
          "packing", true,
          "documents follow each other in sequences, kept apart by segment ids; false: one a sequence, then "
          "padding"),
      boolean_key(
          "use_truncation", true,
          "with packing=false: what a sequence has no room for is left out; false: it fills further ones"),
      integer_key("max_segments_per_seq", -1, at_least_or(1, -1),
                  "with packing=true: most documents of a sequence; -1: any number"),
      integer_key(
          "num_epoch", -1, at_least_or(1, -1),
          "the run ends when it has gone through the data so many times; -1: never (the reference's default "
          "is 1)"),
      boolean_key("add_bos", true, "a begin token before each document, where the tokenizer has one"),
      boolean_key("add_eos", true, "an end token after each document, where the tokenizer has one"),
      boolean_key("enable_data_shuffling", true,
                  "rows in a new random order every epoch; false: in their own"),
      integer_key("data_shuffle_seed", 0, between(0, UINT32_MAX), "seed of that order"),
      planned(boolean_key("tokenize_train_data", true, "false: the data is token ids already")),
      planned(boolean_key("tokenize_eval_data", true, "false: the data is token ids already")),
      planned(boolean_key("generate_padding_batch_train", false, "padding batches when data runs out")),
      planned(boolean_key("generate_padding_batch_eval", false, "padding batches when data runs out")),
      planned(float_key("expansion_factor_real_data", -1.0, any_number(), "ranks that load data, over all")),
      planned(boolean_key("use_chat_template", false, "apply the tokenizer's chat template")),
      inert(text_key("chat_template_path", "", "only with use_chat_template")),
      inert(text_key("chat_template", "", "only with use_chat_template")),
  };
  for (const KeyDeclaration& key : other_dataset_keys()) keys.push_back(key);
  return keys;
}

}  // namespace switchyard
