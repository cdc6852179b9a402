// Declares keys of low-rank adapters (LoRA), of training on pairs, and groups of keys that the reference
// writes with a dot.
#include "config/declaration.h"

namespace switchyard {

std::vector<KeyDeclaration> adapter_keys() {
  return {
      with_role(KeyRole::model,
                text_key("adapter", "",
                         "adapter that is added to the weights, of generate, serve, chat, eval "
                         "and verify: a folder of PEFT, or a run that trained one; of serve also several, as "
                         "NAME=FOLDER,NAME=FOLDER, which requests choose from by their model")),
      with_role(KeyRole::model,
                float_key("adapter_scale", 1.0, any_number(), "factor of that adapter, beside its own")),
      integer_key("lora_slots", 8, at_least(1),
                  "most adapters that `serve` has at once, with adapter=NAME=FOLDER"),
      must_stay(boolean_key("enable_lora", false,
                            "trains an adapter; said by lora_rank above 0 and by the paths below, too")),
      must_stay(integer_key("lora_rank", 0, at_least(0), "rank of the adapter that is trained; 0: none")),
      must_stay(float_key("lora_alpha", 0.0, at_least(0),
                          "the adapter's part is multiplied by alpha / rank; 0: twice the rank")),
      must_stay(
          text_list_key("lora_target", {"attention", "mlp", "experts"},
                        "what is adapted: attention, mlp, shared, experts, router, all (without router), "
                        "names of Hugging Face (q_proj), or regular expressions for our names")),
      must_stay(text_key("lora_module_path", "",
                         "regular expression for names, in place of lora_target: the reference's key")),
      must_stay(text_list_key("lora_rank_pattern", {}, "other ranks: experts=4,query=32, with those words")),
      must_stay(text_list_key("lora_alpha_pattern", {}, "other alphas, likewise")),
      must_stay(boolean_key("lora_use_rslora", false, "divides alpha by the root of the rank")),
      must_stay(boolean_key("lora_shared_gate_up", true,
                            "gate and up projection of an expert have one A, as PEFT's fused experts")),
      choice_key("lora_init", "default", one_of({"default", "gaussian", "test"}),
                 "A is uniform within 1/√inputs, or normal with deviation 1/rank; B is 0, but not with test"),
      text_key("lora_restore_path", "", "adapter to go on from, with its ranks, factors and targets"),
      text_key("hf_lora_adapter_path", "", "the same"),
      planned(text_key("lora_input_adapters_path", "", "several adapters in one folder")),
      optional(text_key("lora_weight_qtype", "", "the same as weight_format: int8, int4, int4a, mxfp4")),
      inert(
          optional(integer_key("lora_tile_size", 32, at_least(1), "inputs that have one scale: always 32"))),
      must_stay(choice_key("dpo_algo", "dpo", one_of({"dpo", "orpo"}),
                           "with use_dpo: dpo holds the adapted model to the model without its adapter; orpo "
                           "has no such reference")),
      must_stay(float_key("dpo_beta", 0.1, more_than(0),
                          "with dpo_algo=dpo: factor of log-probabilities less the reference's")),
      must_stay(float_key("dpo_label_smoothing", 0.0, between(0, 0.5),
                          "with dpo_algo=dpo: the share of pairs that may be the wrong way round")),
      must_stay(float_key("orpo_lambda", 0.1, at_least(0), "with dpo_algo=orpo: weight of the odds ratio")),
      must_stay(with_role(
          KeyRole::data,
          optional(integer_key("max_prompt_length", 1, at_least(1),
                               "with use_dpo: the last tokens of a prompt that are kept; none: all, but a "
                               "quarter of a row where a pair is longer than its row")))),
  };
}

std::string without_group(const std::string& key) {
  if (key == "dpo.algo") return "dpo_algo";
  constexpr std::string_view kGroups[] = {"lora.", "dpo."};
  for (const std::string_view group : kGroups)
    if (key.starts_with(group)) return key.substr(group.size());
  return key;
}

bool is_group(const std::string& key) {
  return key == "lora" || key == "dpo";
}

}  // namespace switchyard
