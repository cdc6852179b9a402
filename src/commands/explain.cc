#include "plan/explain.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "commands/commands.h"
#include "config/config.h"
#include "core/error.h"
#include "engine/command_config.h"
#include "engine/session.h"
#include "models/layout_warnings.h"
#include "plan/strategy.h"

namespace switchyard {
namespace {

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
void add_rows(std::string& text, const std::vector<LayoutRow>& rows) {
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
    append(text, "{}{}\n{}", e.family, where, e.text);
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

Options explain_options(std::span<const std::string> args) {
  return parse_options("explain", args);
}

Report run_explain(const Options& options, const Tell& tell) {
  std::string text;
  const Config config = config_to_train("explain", 1, options.settings);
  for (const auto& notice : config.notices()) tell(notice);
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
  append(text, "{} on {}: {} · {}\n", config.get_string("model_name"), ranks_text(mesh.size()),
         mesh.to_string(), strategy);
  for (const std::string& warning : explanation.warnings) append(text, "warning: {}\n", warning);
  for (const auto& [title, rows] : {std::pair("parameters", &explanation.parameters),
                                    std::pair("activations", &explanation.activations)}) {
    if (rows->empty()) continue;
    append(text, "\n{}\n\n", title);
    add_rows(text, *rows);
  }
  return reported(options, std::move(text),
                  {{"version", SWITCHYARD_VERSION},
                   {"ranks", mesh.size()},
                   {"mesh", mesh.to_string()},
                   {"strategy", strategy},
                   {"parameters", rows_json(explanation.parameters)},
                   {"activations", rows_json(explanation.activations)}});
}

}  // namespace switchyard
