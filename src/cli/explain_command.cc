#include "cli/explain_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/help_page.h"
#include "cli/options.h"
#include "config/config.h"
#include "core/error.h"
#include "engine/command_config.h"
#include "engine/session.h"
#include "metrics/atomic_file.h"
#include "models/layout_warnings.h"
#include "plan/explain.h"
#include "plan/strategy.h"

namespace switchyard {
namespace {

constexpr const char* kExplainHelp =
    R"(switchyard explain [--filter TEXT] [--json FILE] [CONFIG.yml] [key=value ...]

Shows how every parameter and every constrained activation is laid out over the mesh: logical dims, the mesh axes
that split each (or "replicated"), the rule of logical_axis_rules that says so or why none does, the shape on one rank,
and the collectives that this costs. Axes of size 1 are left out. Layers that are alike are shown once. Nothing is
computed.

  --filter TEXT  only tensors whose name contains TEXT, such as moe or layers.3.attention
  --json FILE    also write everything to FILE, layer by layer

Example:
  switchyard explain model_name=mixtral-8x7b ranks=8 ici_fsdp_parallelism=2 ici_expert_parallelism=4 --filter moe
)";

// The text of a row without its name and layer.
std::string row_text(const LayoutRow& row) {
  std::string text = fmt::format("  {}, on a rank {}\n", to_string(row.shape), to_string(row.local));
  for (std::size_t d = 0; d < row.shape.size(); ++d) {
    const std::string axes = row.sharding.dims[d].empty() ? "replicated" : joined(row.sharding.dims[d]);
    text +=
        fmt::format("    {:<34} {:<22} {}\n", row.dims[d].empty() ? "-" : row.dims[d], axes, row.reasons[d]);
  }
  for (const auto& c : row.collectives) text += fmt::format("    {}\n", c);
  return text;
}

struct Entry {
  std::string family, text;
  std::vector<std::int64_t> layers;
};

// An activation's name says no layer, its row does.
std::int64_t layer_of_row(const LayoutRow& row) {
  return std::max(layer_of(row.name), row.layer);
}

// Keeps the rows whose name contains `text`.
void filter_rows(std::vector<LayoutRow>& rows, const std::string& text) {
  std::erase_if(rows, [&](const LayoutRow& row) { return row.name.find(text) == std::string::npos; });
}

// Rows of layers that differ in nothing else are one entry.
void print_rows(const std::vector<LayoutRow>& rows) {
  std::vector<Entry> entries;
  for (const LayoutRow& row : rows) {
    const Entry entry{name_without_layer(row.name), row_text(row), {layer_of_row(row)}};
    const auto same = std::find_if(entries.begin(), entries.end(), [&](const Entry& e) {
      return e.family == entry.family && e.text == entry.text;
    });
    if (same == entries.end())
      entries.push_back(entry);
    else if (same->layers.back() != entry.layers[0])
      same->layers.push_back(entry.layers[0]);
  }
  for (const Entry& e : entries) {
    const auto first = e.layers.front(), last = e.layers.back();
    const std::string where = first < 0       ? ""
                              : first == last ? fmt::format(" (layer {})", first)
                                              : fmt::format(" (layers {} to {})", first, last);
    fmt::print("{}{}\n{}", e.family, where, e.text);
  }
}

// The axes of each dim.
std::vector<std::vector<std::string>> names_of(const Sharding& sharding) {
  std::vector<std::vector<std::string>> names(sharding.dims.size());
  for (std::size_t d = 0; d < names.size(); ++d) {
    for (const Axis axis : sharding.dims[d]) names[d].push_back(axis.name());
  }
  return names;
}

nlohmann::json rows_json(const std::vector<LayoutRow>& rows) {
  nlohmann::json list = nlohmann::json::array();
  for (const LayoutRow& row : rows) {
    nlohmann::json item{{"name", row.name},
                        {"dims", row.dims},
                        {"shape", row.shape},
                        {"local_shape", row.local},
                        {"rules", row.rules},
                        {"reasons", row.reasons},
                        {"axes", names_of(row.sharding)},
                        {"collectives", row.collectives}};
    if (layer_of_row(row) >= 0) item["layer"] = layer_of_row(row);
    list.push_back(std::move(item));
  }
  return list;
}

}  // namespace

int explain_command(std::span<const std::string> args) {
  const Options options = parse_options("explain", args);
  if (options.help) {
    print_help_page(kExplainHelp);
    return 0;
  }
  const Config config = config_to_train("explain", 1, options.settings);
  for (const auto& notice : config.notices()) fmt::print("{}\n", notice);
  const Mesh mesh = mesh_from_config(config);
  Explanation explanation = explain_step(config, mesh);
  if (const auto filter = options.values.find("--filter"); filter != options.values.end()) {
    filter_rows(explanation.parameters, filter->second);
    filter_rows(explanation.activations, filter->second);
    if (explanation.parameters.empty() && explanation.activations.empty())
      fail_usage("[explain] --filter {}: expected a part of a tensor's name, such as moe or attention.query",
                 filter->second);
  }
  const std::string strategy = strategy_text(config, model_config(config), mesh);
  fmt::print("{} on {}: {} · {}\n", config.get_string("model_name"), ranks_text(mesh.size()),
             mesh.to_string(), strategy);
  for (const std::string& warning : explanation.warnings) fmt::print("warning: {}\n", warning);
  for (const auto& [title, rows] : {std::pair("parameters", &explanation.parameters),
                                    std::pair("activations", &explanation.activations)}) {
    if (rows->empty()) continue;
    fmt::print("\n{}\n\n", title);
    print_rows(*rows);
  }
  if (!options.json_file.empty()) {
    const nlohmann::json json{{"version", SWITCHYARD_VERSION},
                              {"ranks", mesh.size()},
                              {"mesh", mesh.to_string()},
                              {"strategy", strategy},
                              {"parameters", rows_json(explanation.parameters)},
                              {"activations", rows_json(explanation.activations)}};
    write_file_atomic(options.json_file, json.dump(1) + "\n");
  }
  return 0;
}

}  // namespace switchyard
