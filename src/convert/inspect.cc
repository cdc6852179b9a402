#include "convert/inspect.h"

#include <xxhash.h>

#include <cctype>
#include <cmath>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "convert/fold.h"
#include "convert/stated.h"
#include "convert/table.h"
#include "core/error.h"
#include "models/families/family.h"
#include "models/same_model.h"

namespace switchyard {
namespace {

constexpr std::string_view kExpert = ".experts.";

std::string number_text(double value) {
  return fmt::format("{:.4g}", value);
}

// Counts elements of all experts' tensors, and the most experts in one layer.
std::int64_t expert_elements(const TensorSource& source, std::int64_t& experts) {
  std::int64_t elements = 0;
  for (const auto& [name, item] : source.items()) {
    const std::size_t at = name.find(kExpert);
    // GGUF files, and some families' others, have one tensor for all of a layer.
    const bool numbered = at != std::string::npos && std::isdigit(name[at + kExpert.size()]) != 0;
    if (name.find("_exps.") != std::string::npos || (at != std::string::npos && !numbered)) {
      elements += item.elements();
      experts = std::max(experts, item.shape[0]);
      continue;
    }
    if (at == std::string::npos || is_optimizer_state(name)) continue;
    elements += item.elements();
    experts = std::max<std::int64_t>(experts, std::atoll(name.c_str() + at + kExpert.size()) + 1);
  }
  return elements;
}

// A token meets the chosen of a layer's experts and all the rest.
std::int64_t active_of(const TensorSource& source, std::int64_t parameters) {
  std::int64_t experts = 0;
  const std::int64_t elements = expert_elements(source, experts);
  const auto& config = source.config();
  if (experts == 0 || !config.is_object() || !config.contains("num_experts_per_tok") ||
      !config["num_experts_per_tok"].is_number_integer()) {
    return parameters;
  }
  return parameters - elements + elements / experts * config["num_experts_per_tok"].get<std::int64_t>();
}

std::int64_t optimizer_elements(const TensorSource& source) {
  std::int64_t elements = 0;
  for (const auto& [name, item] : source.items()) elements += is_optimizer_state(name) ? item.elements() : 0;
  return elements;
}

// Returns the shape of a tensor; for packed weights the shape in blocks, and a block's own shape.
std::string shape_text(const TensorSource::Item& item) {
  return item.packed
             ? fmt::format("{} x {}x{}", to_string(item.shape), block_inputs(*item.packed), kBlockOutputs)
             : to_string(item.shape);
}

std::string type_text(const TensorSource::Item& item) {
  return item.packed ? fmt::format("{} ({:g} bits)", item.dtype, bits_of(*item.packed)) : item.dtype;
}

std::string joined_dtypes(const TensorSource& source) {
  std::map<std::string, std::int64_t> elements;
  for (const auto& [name, item] : source.items()) elements[type_text(item)] += item.elements();
  std::string text;
  for (const auto& [dtype, count] : elements)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", with_commas(count), dtype);
  return text.empty() ? "none" : text;
}

// The model that the config describes.
struct DescribedModel {
  std::string kind;                          // its family; empty where there is no config
  std::optional<Architecture> architecture;  // of a model that is ours to run
  std::string problem;                       // why it is not
};

DescribedModel described_model(const TensorSource& source) {
  DescribedModel model;
  model.problem = source.problem();
  try {
    if (source.kind() == SourceKind::checkpoint) {
      const Config config = config_of_stored(source.config(), source.path());
      model.kind = config.get_string("decoder_block");
      model.architecture = model_config(config);
    } else if (!source.config().is_null()) {
      model.kind = source.config().value("model_type", "?");
      model.architecture = model_config(
          config_of_hub(source.config(), predictions_in(source.config(), [&](const std::string& tensor) {
                          return source.items().contains(tensor);
                        })));
    }
  } catch (const Error& error) {
    model.problem = error.what();
  }
  return model;
}

std::string model_lines(const DescribedModel& model) {
  if (!model.problem.empty()) return fmt::format("  model       {}\n", model.problem);
  if (!model.architecture) return "";
  const Architecture& a = *model.architecture;
  std::string experts;
  if (a.moe().experts > 0)
    experts = fmt::format(", {} experts a layer, {} a token", a.moe().experts, a.moe().slots);
  return fmt::format("  model       {}, {} layers, width {}, vocabulary {}{}\n  function    {}\n", model.kind,
                     a.layers, a.emb, a.vocab, experts, architecture_hash(a));
}

// A line for each field that has a say in the model.
std::string architecture_table(const Architecture& architecture) {
  Table table({"field", "value", "key", "decides", "meaning"});
  for (const ArchitectureField& field : architecture_fields()) {
    const nlohmann::json value = value_of(field, architecture);
    if (value.is_null()) continue;
    table.add({field.name, value.is_string() ? value.get<std::string>() : value.dump(), field.key,
               field.aspect == Aspect::shape ? "shape" : "function", field.meaning});
  }
  return table.text("  ") + "\n";
}

std::string facts(const TensorSource& source, const DescribedModel& model) {
  std::string text = model_lines(model);
  if (!source.details().is_object()) return text;
  const auto& d = source.details();
  text += fmt::format("  step        {}\n  written by  switchyard {}, {} rank{}",
                      d["step"].get<std::int64_t>(), d["version"].get<std::string>(),
                      d["ranks"].get<std::int64_t>(), d["ranks"] == 1 ? "" : "s");
  for (const auto& [axis, size] : d["mesh"].items()) text += fmt::format(", {}={}", axis, size.dump());
  text += "\n";
  if (d["data"].contains("rows") && d["data"]["rows"].is_number())
    text += fmt::format("  data        {} rows consumed\n", d["data"]["rows"].dump());
  return text;
}

std::vector<std::string> titles(const InspectOptions& options) {
  std::vector<std::string> titles{"tensor", "dtype", "shape", ">tensors", ">elements", ">size"};
  if (options.statistics) titles.insert(titles.end(), {">min", ">max", ">mean", ">std", ">non-finite"});
  if (options.hashes) titles.push_back("xxh3");
  return titles;
}

void add_statistics(const Statistics& s, std::vector<std::string>& cells) {
  if (s.finite == 0) {
    cells.insert(cells.end(), {"-", "-", "-", "-"});
  } else {
    for (double value : {s.minimum, s.maximum, s.mean, s.deviation()}) cells.push_back(number_text(value));
  }
  cells.push_back(with_commas(s.non_finite));
}

std::string tensor_table(const TensorSource& source, const Inspection& inspection,
                         const InspectOptions& options) {
  std::vector<std::string> names, kinds;
  const bool each = options.all || options.hashes;  // every tensor is of a kind of its own
  for (const bool state : {false, true}) {
    if (state && !each && !options.statistics) break;  // the head says how much there is of it
    for (const auto& [name, item] : source.items()) {
      if (is_optimizer_state(name) != state) continue;
      names.push_back(name);
      kinds.push_back(each ? name : item.dtype + to_string(item.shape));
    }
  }
  Table table(titles(options));
  for (const FoldedName& folded : fold_names(names, kinds)) {
    const std::string& first = names[folded.members[0]];
    const TensorSource::Item& item = source.items().at(first);
    const auto count = static_cast<std::int64_t>(folded.members.size());
    const auto bytes = static_cast<std::int64_t>(source.bytes(first).size()) * count;
    std::vector<std::string> cells{folded.name,
                                   item.dtype,
                                   shape_text(item),
                                   with_commas(count),
                                   with_commas(item.elements() * count),
                                   byte_text(bytes)};
    Statistics joined;
    for (std::size_t member : folded.members) {
      const auto at = inspection.statistics.find(names[member]);
      if (at != inspection.statistics.end()) joined.add(at->second);
    }
    if (options.statistics) add_statistics(joined, cells);
    if (options.hashes) cells.push_back(inspection.hashes.at(first));
    table.add(std::move(cells));
  }
  return table.text("  ");
}

}  // namespace

std::string with_commas(std::int64_t n) {
  std::string digits = std::to_string(n);
  for (auto at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > (n < 0 ? 1 : 0); at -= 3)
    digits.insert(static_cast<std::size_t>(at), ",");
  return digits;
}

std::string byte_text(std::int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  auto value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1024 && unit < 4; ++unit) value /= 1024;
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

bool is_optimizer_state(const std::string& name) {
  return name.ends_with(".mu") || name.ends_with(".nu");
}

Inspection inspect(const TensorSource& source, const InspectOptions& options) {
  Inspection result;
  for (const TensorSource::File& file : source.files()) result.bytes += file.bytes;
  for (const auto& [name, item] : source.items()) {
    if (!is_optimizer_state(name)) result.parameters += item.elements();
    const auto bytes = source.bytes(name);
    if (options.statistics && source.kind() == SourceKind::gguf) {
      const Tensor values = source.read(name);
      result.statistics[name] = statistics_of("F32", {values.raw(), values.bytes()});
    } else if (options.statistics && is_numeric_dtype(item.dtype)) {
      result.statistics[name] = statistics_of(item.dtype, bytes);
    }
    if (options.hashes) result.hashes[name] = fmt::format("{:016x}", XXH3_64bits(bytes.data(), bytes.size()));
    if (options.statistics || options.hashes) source.release(name);
  }
  result.active_parameters = active_of(source, result.parameters);
  return result;
}

std::string inspection_text(const TensorSource& source, const Inspection& inspection,
                            const InspectOptions& options) {
  const std::string active = inspection.active_parameters == inspection.parameters
                                 ? ""
                                 : fmt::format(", {} for a token", with_commas(inspection.active_parameters));
  std::string text = fmt::format("{}: {}\n", source.path(), name_of(source.kind()));
  const DescribedModel model = described_model(source);
  text += facts(source, model);
  for (const auto& [name, value] : stated_facts(source)) text += fmt::format("  {:<10}  {}\n", name, value);
  text += fmt::format("  parameters  {}{}\n", with_commas(inspection.parameters), active);
  if (const std::int64_t state = optimizer_elements(source); state > 0)
    text += fmt::format("  optimizer   {} elements of state\n", with_commas(state));
  text += fmt::format("  elements    {}\n", joined_dtypes(source));
  for (const std::string& line : formats_in_memory(source)) text += fmt::format("  in memory   {}\n", line);
  text += fmt::format("  size        {} in {} file{}\n\n", byte_text(inspection.bytes), source.files().size(),
                      source.files().size() == 1 ? "" : "s");
  if (options.all && model.architecture) text += architecture_table(*model.architecture);
  return text + tensor_table(source, inspection, options);
}

nlohmann::json inspection_json(const TensorSource& source, const Inspection& inspection) {
  nlohmann::json files = nlohmann::json::array(), tensors = nlohmann::json::array();
  for (const TensorSource::File& file : source.files())
    files.push_back({{"name", file.name}, {"bytes", file.bytes}});
  for (const auto& [name, item] : source.items()) {
    nlohmann::json tensor{{"name", name},
                          {"dtype", item.dtype},
                          {"shape", item.shape},
                          {"bytes", source.bytes(name).size()},
                          {"file", source.files()[item.file].name}};
    if (item.packed) {
      tensor["block"] = {block_inputs(*item.packed), kBlockOutputs};
      tensor["bits"] = bits_of(*item.packed);
    }
    if (const auto at = inspection.statistics.find(name); at != inspection.statistics.end()) {
      const Statistics& s = at->second;
      tensor["non_finite"] = s.non_finite;
      if (s.finite > 0) {
        tensor.update({{"min", s.minimum}, {"max", s.maximum}, {"mean", s.mean}, {"std", s.deviation()}});
      }
    }
    if (const auto at = inspection.hashes.find(name); at != inspection.hashes.end())
      tensor["xxh3"] = at->second;
    tensors.push_back(std::move(tensor));
  }
  nlohmann::json architecture, hash, stated = nlohmann::json::object();
  for (const auto& [name, value] : stated_facts(source)) stated[name] = value;
  const DescribedModel model = described_model(source);
  if (model.architecture) {
    architecture = architecture_json(*model.architecture);
    hash = architecture_hash(*model.architecture);
  }
  return {{"path", source.path()},
          {"kind", name_of(source.kind())},
          {"parameters", inspection.parameters},
          {"active_parameters", inspection.active_parameters},
          {"bytes", inspection.bytes},
          {"files", files},
          {"config", source.config()},
          {"architecture", architecture},
          {"architecture_hash", hash},
          {"problem", model.problem.empty() ? nlohmann::json() : nlohmann::json(model.problem)},
          {"details", source.details()},
          {"stated", stated},
          {"tensors", tensors}};
}

}  // namespace switchyard
