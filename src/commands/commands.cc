#include "commands/commands.h"

#include "core/error.h"
#include "metrics/atomic_file.h"

namespace switchyard {
namespace {

Report run(const char* command, Options (*read)(std::span<const std::string>),
           Report (*body)(const Options&, const Tell&), const commands::Words& words, const Tell& tell) {
  if (const int processes = launch_from_environment().processes; processes != 1)
    fail_usage("[{}] expected a program of one process, got {}", command, processes);
  const Options options = read(words);
  if (options.help)
    fail_usage("[{}] --help: expected the command's other words; the program has the page", command);
  std::vector<std::string> notes;
  Report report = body(options, [&](const std::string& note) {
    notes.push_back(note);
    if (tell) tell(note);
  });
  report.notes = std::move(notes);
  return report;
}

}  // namespace

Report reported(const Options& options, std::string text, const nlohmann::ordered_json& json, int status) {
  const std::string written = json.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  if (!options.json_file.empty()) write_file_atomic(options.json_file, written);
  return {std::move(text), written, {}, status};
}

namespace commands {

Report plan(const Words& words, const Tell& tell) {
  return run("plan", &plan_options, &run_plan, words, tell);
}

Report explain(const Words& words, const Tell& tell) {
  return run("explain", &explain_options, &run_explain, words, tell);
}

Report inspect(const Words& words, const Tell& tell) {
  return run("inspect", &inspect_options, &run_inspect, words, tell);
}

Report convert(const Words& words, const Tell& tell) {
  return run("convert", &convert_options, &run_convert, words, tell);
}

Report evaluate(const Words& words, const Tell& tell) {
  const auto body = [](const Options& options, const Tell& note) {
    return *run_eval(options, *one_process(), note);
  };
  return run("eval", &eval_options, body, words, tell);
}

Report doctor(const Words& words, const Tell& tell) {
  return run("doctor", &doctor_options, &run_doctor, words, tell);
}

}  // namespace commands
}  // namespace switchyard
