// Declares keys of `serve` and `chat`: whom they answer, and how messages become prompts.
#include "config/config.h"
#include "config/declaration.h"

namespace switchyard {

std::vector<KeyDeclaration> serve_keys() {
  return {
      text_key(
          "chat_template_path", "",
          "file with the template that makes prompts of messages, and with use_sft conversations to train "
          "on; empty: the one that the model's files have"),
      verbatim(text_key("chat_template_kwargs", "",
                        "JSON of an object: what the template gets where a request does not say, such as "
                        "{\"enable_thinking\": false}")),
      boolean_key("trust_messages", false,
                  "texts of special tokens within messages become these tokens; false: no message can hold a "
                  "control token"),
      boolean_key("strict_fields", false,
                  "`serve` refuses unknown fields of chats; false: it names them in the header "
                  "x-switchyard-ignored"),
      boolean_key("return_routed_experts", false,
                  "`serve` records the experts of each text, for requests with return_routed_experts"),
      boolean_key("page", true, "`serve` has a page for chats at /"),
      boolean_key("protect_metrics", false, "/metrics needs an API key where there is one"),
      text_key("tls_cert", "", "PEM file with the certificate with which `serve` speaks https; with tls_key"),
      text_key("tls_key", "", "PEM file with the certificate's key"),
      integer_key(
          "prompt_checkpoints", 1, at_least(0),
          "states that `serve` keeps of each slot's prompts, so that the next turn of a conversation goes "
          "on from there: of models with gated delta nets, and with windows or chunks (without "
          "enable_prefix_caching=true); none where the memory lacks and this is not set; 0: none"),
      integer_key("max_body", 16, between(1, 1024), "MiB of the longest body of a request to `serve`"),
      integer_key(
          "max_waiting", -1, at_least_or(0, -1),
          "most texts that wait for a slot; more are refused with status 503; -1: 16 a slot, at most 512"),
      integer_key("max_texts_of_key", -1, at_least_or(1, -1),
                  "most texts of one API key that run or wait; more are refused with status 429; -1: any"),
      boolean_key(
          "share_prefixes_between_keys", false,
          "a prompt of one API key may begin with the cached tokens of another's, so that whoever has a key "
          "can find out what others sent"),
      float_key("request_timeout", 0, at_least(0),
                "seconds after which a text ends as if it had reached its length; 0: never"),
  };
}

}  // namespace switchyard
