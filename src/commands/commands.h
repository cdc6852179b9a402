// The commands whose result is a report (switchyard/commands.h), between the words of their command line and
// whoever shows the report.
#pragma once

#include <fmt/format.h>

#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "commands/options.h"
#include "parallel/comm/processes.h"
#include "switchyard/commands.h"

namespace switchyard {

using commands::Report;
using commands::Tell;

// Reads the words. Error(usage).
Options plan_options(std::span<const std::string> args);
Options explain_options(std::span<const std::string> args);
Options inspect_options(std::span<const std::string> args);
Options convert_options(std::span<const std::string> args);
Options eval_options(std::span<const std::string> args);
Options doctor_options(std::span<const std::string> args);

// Runs the command, and writes the file of --json. `tell` gets each note as it comes.
Report run_plan(const Options& options, const Tell& tell);
Report run_explain(const Options& options, const Tell& tell);
Report run_inspect(const Options& options, const Tell& tell);
Report run_convert(const Options& options, const Tell& tell);
Report run_doctor(const Options& options, const Tell& tell);

// Shows how far a command is; a function may be empty.
struct CommandProgress {
  std::function<void(std::int64_t read, std::int64_t all)> loading = {};  // bytes
  std::function<void(std::int64_t done, std::int64_t all, const std::string& text)> working = {};
};
// On processes other than the first there is no report.
std::optional<Report> run_eval(const Options& options, Processes& processes, const Tell& tell,
                               const CommandProgress& progress = {});

// The report with its JSON, which is also in the file of --json.
Report reported(const Options& options, std::string text, const nlohmann::ordered_json& json, int status = 0);

template <typename... Args>
void append(std::string& text, fmt::format_string<Args...> format, Args&&... args) {
  fmt::format_to(std::back_inserter(text), format, std::forward<Args>(args)...);
}

}  // namespace switchyard
