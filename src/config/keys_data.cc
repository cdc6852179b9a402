// Declares keys of training data and tokenizers.
#include <cstdint>

#include "config/declaration.h"

namespace switchyard {
std::vector<KeyDeclaration> data_keys() {
  return {
      choice_key(
          "dataset_type", "synthetic",
          one_of({"synthetic", "text", "tokenized"}, {"tfds", "hf", "grain", "c4_mlperf", "olmo_grain"}),
          "random tokens, the text of data_path, or what `switchyard data build` made of it"),
      text_key(
          "data_path", "",
          "files and folders of text (dataset_type=text) or folders of tokens (tokenized), separated by ':'"),
      text_key("eval_data_path", "",
               "with use_sft: files and folders of conversations to evaluate on, instead of eval_fraction"),
      text_list_key(
          "data_mixture_weights", {},
          "shares of the parts of data_path in every batch, such as 0.7,0.3; empty: they are one data set"),
      text_list_key(
          "train_data_columns", {"text"},
          "the key of the text in JSON records (*.jsonl, *.json); with use_sft the columns that are read"),
      choice_key(
          "records_without_text", "skip", one_of({"skip", "refuse"}),
          "JSON records with null, a number, an empty text or nothing under that key: skipped and counted, "
          "or refused with file and line"),
      float_key("eval_fraction", 0.05, between(0, 0.99),
                "share of the text that is held out, with eval_interval or by `switchyard data build`"),
      choice_key("tokenizer_type", "sentencepiece",
                 one_of({"byte", "sentencepiece", "huggingface", "tiktoken", "gguf"}), "kind of tokenizer"),
      text_key("tokenizer_path", "", "tokenizer file or folder; not needed for byte and synthetic data"),
      boolean_key("packing", true,
                  "documents follow each other in sequences, kept apart by segment ids; false: one a "
                  "sequence, then padding"),
      boolean_key(
          "use_truncation", true,
          "with packing=false: what a sequence has no room for is left out; false: it fills further ones"),
      integer_key("max_segments_per_seq", -1, at_least_or(1, -1),
                  "with packing=true: most documents of a sequence; -1: any number"),
      may_change(integer_key("num_epoch", -1, at_least_or(1, -1),
                             "the run ends when it has gone through the data so many times; -1: never (the "
                             "reference's default is 1)")),
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
      inert(text_key("chat_template", "", "only with use_chat_template")),
  };
}

}  // namespace switchyard
