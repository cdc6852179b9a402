#include "cli/convert_command.h"

#include "cli/help_page.h"
#include "cli/report.h"
#include "commands/commands.h"

namespace switchyard {
namespace {

constexpr const char* kConvertHelp = R"(switchyard convert [options] SRC DST

Writes the weights of SRC as the new folder DST: those of a Hugging Face folder (config.json beside model.safetensors or
its shards) or of a GGUF file (the values of its blocks, in float32 unless --dtype says else) as a checkpoint, those of a checkpoint (or of a run: its newest) as a Hugging Face folder that transformers
loads. --weights FORMAT makes a checkpoint of few bits of either. Tokenizer files go along. A tensor is made while the one before it is written, experts one by one, so memory is
that of the largest tensor twice. DST appears when it is complete; run the same command again to resume one that was ended.

  --to huggingface|switchyard  what DST is to be; it follows from SRC
  --dtype float32|bfloat16     store weights as this (the router's bias stays as it is); as in SRC without
  --weights FORMAT             experts, linear layers and the head in blocks of few bits, as kernels read them: int8,
                               int4, int4a or mxfp4 (docs/quantization.md); bfloat16 and float32 are --dtype's.
                               Always to a checkpoint; `switchyard eval --against` says what was lost
  --verify                     compute logits of SRC and of DST from a few random tokens, layer by layer: the same bits,
                               or within 2e-5 of the largest where the model has to be written in another form
  --save-logits FILE           with --verify: write `tokens` and `logits` of DST as a safetensors file
  --merge-adapter FOLDER       add an adapter (a folder of PEFT, or a run that trained one) to the weights of SRC, in
                               float32, rounded once; DST is a checkpoint
  --export-adapter             SRC is a run that trained an adapter, DST a folder that PEFT reads
  --form peft|per-expert       with it: all experts of a layer in one tensor, or each in its own, as older programs read
  --json FILE                  also write what was converted to FILE
  --file-bytes N               begin a new file after N bytes (5 GB in a Hugging Face folder, 2 GiB in a checkpoint)

Exit status: 0 done; 1 failed while reading or writing, run it again to go on; 2 wrong command line or source, nothing was
written; 3 --verify found a difference.

Examples:
  switchyard convert tests/golden/hf/deepseek3-tiny checkpoint --verify
  switchyard convert checkpoint exported --to huggingface --dtype bfloat16
  switchyard convert model.gguf model-int4 --weights int4
)";

}  // namespace

int convert_command(std::span<const std::string> args) {
  const Options options = convert_options(args);
  if (options.help) {
    print_help_page(kConvertHelp);
    return 0;
  }
  return print_report(run_convert(options, print_warning));
}

}  // namespace switchyard
