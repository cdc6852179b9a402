#include "cli/serve_command.h"

#include "cli/help_page.h"
#include "cli/process_command.h"
#include "cli/progress.h"
#include "cli/report.h"
#include "commands/text_server.h"
#include "parallel/comm/stop_signal.h"

namespace switchyard {
namespace {

constexpr const char* kServeHelp =
    R"(switchyard serve FOLDER|FILE.gguf [key=value ...] [--host ADDRESS] [--port N] [--api-key-file FILE]
switchyard serve [CONFIG.yml] load_parameters_path=FOLDER key=value ... [--host ADDRESS] [--port N]

Answers chats and requests for text over HTTP, as clients of OpenAI's and Anthropic's APIs make them. FOLDER holds a model's weights: the
folder of a run (its newest checkpoint), a checkpoint, a Hugging Face folder, or a GGUF file. Texts join and leave between two tokens;
long prompts are read in chunks between others' tokens.

  --host ADDRESS             where it listens; 127.0.0.1 without, which only this machine reaches
  --port N                   8000 without; 0: any free one
  --json FILE                host, port and model, written when it listens
  --api-key-file FILE        a key a line (# begins a comment): requests need one, as `Authorization: Bearer KEY` or
                             `x-api-key: KEY`; but for /health and /metrics. Also SWITCHYARD_API_KEY=KEY
  --api-key KEY              the same, and again for more; others on this machine see it in the list of processes
  --cors ORIGIN              lets pages of that site ask, such as http://localhost:5173, and again for more; *: all
  --host-name NAME           what requests may call this machine, beside its addresses and localhost, while only this
                             machine reaches the server; and again for more
  --alias NAME               another name of the model, and again for more
  --adapter-folder FOLDER    requests with a key may load adapters from below it, and again for more
  --weights-folder FOLDER    requests with a key may replace the weights by those below it, and again for more
  --tool-format NAME --reasoning-format NAME    how the model writes calls and reasoning; without, as its template says
  --trust-request-template   requests may bring a chat template of their own
  chat_template_path=FILE    makes prompts of a chat's messages; without, the template that the model's files have
  chat_template_kwargs={"enable_thinking": false}    what the template gets where a request does not say
  trust_messages=true strict_fields=true page=false protect_metrics=true max_waiting=N
  max_texts_of_key=N share_prefixes_between_keys=true max_body=MIB request_timeout=SECONDS
  tls_cert=FILE tls_key=FILE    `config --list serve` says what they do
  per_device_batch_size=4    so many texts a rank at once (8 in all without)
  max_target_length=2048     most tokens of a prompt and its text together; each text has memory for as many.
                             Without: 2048, or the context that the model was trained for where that is less
  weight_format=int4         weights in 4 or 8 bits, made on load: int4, int4a, mxfp4, int8
  adapter=FOLDER             an adapter beside the weights, of all texts: a folder of PEFT, or a run that trained one
  adapter=sql=FOLDER,poet=FOLDER2    several side by side: a request's "model" says which, the model's own name none.
                             At most lora_slots=8 at once
  quantize_kvcache=true      keys and values in 8 bits: half the memory of a text, and less to read for each token
  prefill_chunk_size=256     most tokens of prompts that are read at once; use_chunked_prefill=false: whole prompts
  enable_prefix_caching=false       reads all of every prompt; without, not the beginning that a slot has cached.
                                    true: layers with windows or chunks keep whole texts for that, too
  routing_record=FILE        the experts of every token of each text that ends, for `train routing_replay=FILE`
  return_routed_experts=true    requests may ask for those of their texts, by a field of this name
  ngram_draft=N, mtp_draft=true, mtp_draft_tokens=N   as for `generate`; how many drafts were right is among the metrics
  temperature=0.7 top_p= top_k= min_p= max_tokens= seed= stop= presence_penalty= frequency_penalty=
  repetition_penalty=        what a request leaves out; as in requests, in `generate` and in `chat`
  decode_sampling_strategy=greedy   and its keys, as for `generate`, where a request does not say; FOLDER's
                                    generation_config.json where the command line does not
  ranks=8 ici_expert_parallelism=8  any mesh and strategy, also under mpirun: process 0 listens

POST /v1/load_lora_adapter, /v1/unload_lora_adapter and /v1/weights change adapters and weights while it runs.
POST /v1/chat/completions, /v1/completions, /v1/responses, /v1/messages, /tokenize, /detokenize, /apply-template; GET /v1/models,
/props, /health, /metrics (for Prometheus, with the load of each expert), and / is a page for chats. docs/http.md says all.
SIGTERM or Ctrl-C: the texts that are being made are finished, those that wait are not begun; once more ends it at once.

Exit status: 0 stopped by a signal, 1 failed, 2 wrong command line, config or file.

Examples:
  switchyard serve tests/golden/hf/deepseek3-tiny tokenizer_type=byte
  switchyard train configs/examples/small-moe.yml run_name=writer enable_checkpointing=true
  switchyard serve switchyard_output/writer
  switchyard serve model-Q4_K_M.gguf max_target_length=4096
  curl http://127.0.0.1:8000/v1/completions -d '{"prompt": "The ", "max_tokens": 50, "temperature": 0.7}'
)";

}  // namespace

int serve_command(std::span<const std::string> args) {
  const Options options = serve_options(args);
  if (options.help) {
    print_help_page(kServeHelp);
    return 0;
  }
  return run_in_processes([&](Processes& processes) {
    TextServer server(options, processes);
    server.run({.tell = print_warning,
                .loading = load_bar(),
                .before_texts = catch_stop_signals,  // until here one ends the process at once
                .between = [&] {
                  if (stop_signal() != 0) server.close();
                }});
    if (processes.index() == 0) print_warning(server.farewell());
    return 0;
  });
}

}  // namespace switchyard
