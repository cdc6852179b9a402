#include "cli/verify_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <optional>
#include <set>
#include <vector>

#include "cli/help_page.h"
#include "cli/report_error.h"
#include "commands/options.h"
#include "core/error.h"
#include "metrics/atomic_file.h"
#include "verify/case.h"
#include "verify/layouts.h"

namespace switchyard {
namespace {

constexpr const char* kVerifyHelp =
    R"(switchyard verify CASE... [key=value ...] [--tolerance T] [--json FILE] [--all] [--native]

Computes stored cases of other implementations and compares every number: a table with the largest absolute and
relative error of each tensor, and the first tensor that differs. A case is

  a folder             config.json, model.safetensors, io.safetensors (trajectory.json, generate.json) from Hugging
                       Face; or a GGUF file of the same model in that folder. With a folder adapter/ of PEFT in it:
                       the model with that adapter, which alone is trained (trained.safetensors)
  a file *.safetensors one MoE layer of the reference: output, balance loss, bias update, gradients
  a file *.json        a training run of the reference: logits, gradients, metrics of each step, final weights
  a file *.gguf        with *.expected.safetensors and tensors.json beside it, or a folder of 8-bit or 4-bit
                       weights with expected.safetensors and tensors.json: every dequantized tensor by its
                       SHA-256, logits in float32 on those values

A case brings its own config and batch. Keys on the command line come on top of it: ranks, mesh axes, strategy,
dtype. The numbers must not depend on them; ranks=N replaces the mesh that the case itself names.

The pass of a folder takes the experts and keys that the reference chose; its rows router.L.indices and indexer.L.keys
say how many of our own choices are others, and how far from a tie: more than 1e-5 is a difference. A folder whose
io.safetensors has no gradients is compared in its forward values alone. bounds.json in a folder states bounds by kind
of value ({"logits": 1e-4, ...}: logits, hidden, router weights, loss, gradients, loss in training, gradient norm in
training, choices) in place of the defaults below.

routing_replay=FILE sends the tokens of a folder's pass to the experts that FILE has for the same texts, and reports
how many of them the router would have chosen itself.

  --tolerance T  largest error relative to a tensor's largest magnitude, also in place of a folder's bounds.json but
                 for its choices (default 2e-5; the norms of final
                 parameters are held to a tenth of it, gradient norms while a folder trains to five times; of
                 a folder with gated delta nets 2.4e-4, in training 3.3e-4 for losses and 5.5e-3 for norms;
                 default 1e-4 for the logits of a GGUF file or a folder with expected.safetensors)
  --json FILE    write all numbers to FILE
  --all          print every tensor, not a line for each long list
  --native       of a GGUF file or a folder with expected.safetensors, also what `generate` computes: token
                 after token, weights as they are stored, its dtype. Reported, no verdict: mean KL and how often
                 the most probable token is that of the given logits. dtype, weight_dtype and weight_format are
                 then keys of this second run alone

switchyard verify --mesh "KEYS" --mesh "KEYS" ... [CONFIG.yml] [key=value ...] [--inject-fault "..."] [options]

Compares layouts of one model: the same random weights and batches on each. Each --mesh holds what makes a layout
(ranks, axes, custom_mesh_and_rule, strategy). Each is compared with the dense evaluation (one rank, every expert on
every token) and with the first: hidden states, router, logits, losses, every gradient, then training steps with
norms, loads and router biases, and the parameters after them. The choices of experts are those of the first layout
in all; how far a router is from making them itself is compared too, so that only ties may turn.
float32, steps=3, max_target_length=32 and a row for each rank of the largest layout unless keys say otherwise.

  --tolerance T  as above (default 1e-5; losses and norms of the first step are held to a tenth of it, later steps
                 and the parameters after them, as norms, to ten times it; 1e-4 with gated delta nets)
  --inject-fault "rank=N gradient=PARAMETER scale=X"
                 multiplies rank N's contribution to a gradient in the last layout, to see that it is found

Exit status: 0 all pass, 2 wrong command line, config or file, 3 a difference was found.

Examples (of what comes with the sources):
  switchyard verify tests/golden/hf/deepseek3-tiny ranks=4 ici_expert_parallelism=4 use_ring_of_experts=true
  switchyard verify tests/golden/gguf/qwen3moe/Q4_0.gguf tests/golden/quantized/deepseek3-fp8 --native
  switchyard verify --mesh "ranks=4 ici_expert_parallelism=4" --mesh "ranks=4 custom_mesh_and_rule=pure-fsdp" \
    configs/examples/small-moe.yml base_num_decoder_layers=2
)";

struct VerifyOptions {
  bool help = false, all = false, native = false;
  std::optional<double> tolerance;
  std::string json_file;
  std::vector<std::string> cases, overrides, layouts;
  std::optional<GradientFault> fault;
};

double parse_tolerance(const std::string& text) {
  double value = 0;
  const auto [end, status] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (status != std::errc() || end != text.data() + text.size() || !std::isfinite(value) || value < 0) {
    fail_usage("[verify] --tolerance {}: expected a number of at least 0, such as 2e-5", text);
  }
  return value;
}

VerifyOptions parse_verify(std::span<const std::string> args) {
  Options given = parse_options("verify", args);
  VerifyOptions options;
  options.help = given.help;
  options.all = given.flags.contains("--all");
  options.native = given.flags.contains("--native");
  options.json_file = given.json_file;
  options.layouts = given.lists["--mesh"];
  if (given.values.contains("--tolerance")) options.tolerance = parse_tolerance(given.values["--tolerance"]);
  if (given.values.contains("--inject-fault")) options.fault = parse_fault(given.values["--inject-fault"]);
  for (const std::string& word : given.settings) {
    const bool is_setting = word.find('=') != std::string::npos && word.find('/') > word.find('=');
    (is_setting ? options.overrides : options.cases).push_back(word);
  }
  if (options.help) return options;
  if (options.layouts.empty() && options.cases.empty())
    fail_usage("[verify] expected at least one case; `switchyard verify --help` says what that is");
  if (options.layouts.empty() && options.fault)
    fail_usage("[verify] --inject-fault spoils a layout: expected --mesh with it");
  if (!options.layouts.empty() && options.native)
    fail_usage(
        "[verify] --native is for cases of few bits, --mesh compares layouts: expected one of the two");
  if (!options.layouts.empty() && options.cases.size() > 1)
    fail_usage("[verify] --mesh compares layouts of one model: expected one CONFIG.yml, got {} and {}",
               options.cases[0], options.cases[1]);
  return options;
}

// Prints a report, and notices that were not yet printed. Returns 0, or 3 when something differs.
int show(const VerifyOptions& options, const CaseReport& report, std::set<std::string>& said) {
  for (const std::string& line : report.notices) {
    if (said.insert(line).second) fmt::print(stderr, "{}\n", line);
  }
  print_report(report, options.all);
  std::fflush(stdout);
  return report.pass() ? 0 : 3;
}

// Exit status of one case; its report is complete also when the case could not be run.
int run_one(const VerifyOptions& options, const std::string& path, std::set<std::string>& said,
            CaseReport& report) {
  try {
    report = run_case({path, options.overrides, options.tolerance, options.native});
  } catch (const Error& error) {
    report.path = path;
    report.error = error.what();
    print_error(report.error);
    return error.kind() == Error::Kind::usage ? 2 : 1;
  }
  return show(options, report, said);
}

// The layouts of one model. Errors are the caller's: without one layout there is nothing to compare.
int run_layouts(const VerifyOptions& options, std::set<std::string>& said, std::vector<CaseReport>& reports) {
  LayoutRequest request;
  request.layouts = options.layouts;
  request.arguments = options.cases;  // CONFIG.yml
  request.arguments.insert(request.arguments.end(), options.overrides.begin(), options.overrides.end());
  request.tolerance = options.tolerance;
  request.fault = options.fault;
  reports = compare_layouts(request);
  int worst = 0;
  for (const CaseReport& report : reports) worst = std::max(worst, show(options, report, said));
  return worst;
}

}  // namespace

int verify_command(std::span<const std::string> args) {
  const VerifyOptions options = parse_verify(args);
  if (options.help) {
    print_help_page(kVerifyHelp);
    return 0;
  }
  std::vector<CaseReport> reports;
  std::set<std::string> said;
  int worst = 0;
  if (!options.layouts.empty()) worst = run_layouts(options, said, reports);
  for (const std::string& path : options.layouts.empty() ? options.cases : std::vector<std::string>())
    worst = std::max(worst, run_one(options, path, said, reports.emplace_back()));
  if (reports.size() > 1) {
    const auto passed =
        std::count_if(reports.begin(), reports.end(), [](const CaseReport& r) { return r.pass(); });
    fmt::print("{} of {} cases pass\n", passed, reports.size());
    for (const auto& report : reports) {
      if (!report.pass())
        fmt::print("  {}: {}\n", report.path, report.error.empty() ? "differs" : "could not be run");
    }
  }
  if (!options.json_file.empty())
    write_file_atomic(
        options.json_file,
        report_json(reports).dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
  return worst;
}

}  // namespace switchyard
