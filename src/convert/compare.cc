#include "convert/compare.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "convert/fold.h"
#include "convert/inspect.h"
#include "convert/stored_names.h"
#include "convert/table.h"
#include "core/error.h"
#include "models/families/family.h"
#include "models/families/hub_source.h"
#include "models/same_model.h"

namespace switchyard {
namespace {

// A tensor of B, in the form in which it is compared with one of A.
struct Match {
  std::string a, b;
  const StoredPair* pair = nullptr;  // where one side is a Hugging Face folder and the other is ours
};

std::span<const std::byte> raw_bytes(const Tensor& tensor) {
  return {tensor.raw(), tensor.bytes()};
}

std::string type_of(const Tensor& tensor) {
  return tensor.dtype() == DType::bf16 ? "BF16" : "F32";
}

bool same_bytes(std::span<const std::byte> a, std::span<const std::byte> b) {
  return a.size() == b.size() && (a.empty() || std::memcmp(a.data(), b.data(), a.size()) == 0);
}

TensorComparison compare_values(TensorComparison row, std::span<const std::byte> a,
                                std::span<const std::byte> b) {
  if (row.shape_a != row.shape_b) return row;
  if (is_numeric_dtype(row.dtype_a) && is_numeric_dtype(row.dtype_b)) {
    row.difference = difference_of(row.dtype_a, a, row.dtype_b, b);
    row.equal = row.difference->differing == 0;
  } else {
    row.equal = row.dtype_a == row.dtype_b && same_bytes(a, b);
  }
  return row;
}

// A hub tensor in our order.
Tensor ordered(const TensorSource& hub, const StoredPair& pair) {
  Tensor part = hub.read(pair.theirs);
  hub.release(pair.theirs);
  return to_ours(pair.hub, {&part, 1}, pair.shape);
}

TensorComparison compare_pair(const TensorSource& a, const TensorSource& b, const Match& match) {
  const TensorSource::Item &in_a = a.items().at(match.a), &in_b = b.items().at(match.b);
  TensorComparison row{match.a, to_string(in_a.shape), to_string(in_b.shape), in_a.dtype, in_b.dtype, {},
                       false};
  if (match.pair == nullptr) {
    row = compare_values(std::move(row), a.bytes(match.a), b.bytes(match.b));
  } else {
    const bool hub_is_a = a.kind() == SourceKind::huggingface;
    const TensorSource &hub = hub_is_a ? a : b, &ours = hub_is_a ? b : a;
    const Shape &hub_shape = hub_is_a ? in_a.shape : in_b.shape,
                &our_shape = hub_is_a ? in_b.shape : in_a.shape;
    if (hub_shape != match.pair->hub.shape || our_shape != match.pair->shape) return row;
    const Tensor moved = ordered(hub, *match.pair);
    row.shape_a = row.shape_b = to_string(our_shape);
    (hub_is_a ? row.dtype_a : row.dtype_b) = type_of(moved);
    const auto left = ours.bytes(match.pair->ours);
    row = hub_is_a ? compare_values(std::move(row), raw_bytes(moved), left)
                   : compare_values(std::move(row), left, raw_bytes(moved));
  }
  a.release(match.a);
  b.release(match.b);
  return row;
}

// The tensors of a model that both a Hugging Face folder and our checkpoints hold.
struct HubModelNames {
  std::vector<StoredPair> pairs;
  bool tied = false;
  std::int64_t layers = 0;
};

HubModelNames names_of(const TensorSource& hub) {
  if (hub.config().is_null())
    fail_usage("[inspect] {}: expected config.json beside the weights, to compare them with a checkpoint",
               hub.path());
  const ModelFamily& family = family_of(hub.config());
  std::vector<std::string> names;
  for (const auto& [name, item] : hub.items()) names.push_back(name);
  if (holds_fused(family, names))
    fail_usage(
        "[inspect] {}: its tensors hold several matrices each; convert it first: `switchyard convert {} "
        "FOLDER`, then compare FOLDER",
        hub.path(), hub.path());
  // The config of a folder's weights: a head may be its own.
  const nlohmann::json config = is_hub_source(hub.path()) ? open_hub_source(hub.path()).config : hub.config();
  const ModelConfig model = model_config(config_of_hub(
      config,
      predictions_in(config, [&](const std::string& tensor) { return hub.items().contains(tensor); })));
  return {stored_pairs(parameter_specs(model), family), model.tied, model.layers};
}

}  // namespace

bool TensorComparison::equal_in_bf16() const {
  return !equal && difference && difference->differing_in_bf16 == 0 &&
         (dtype_a == "BF16") != (dtype_b == "BF16");
}

bool SourceComparison::equal() const {
  return only_in_a.empty() && only_in_b.empty() &&
         std::all_of(tensors.begin(), tensors.end(), [](const TensorComparison& t) { return t.equal; });
}

SourceComparison compare_sources(const TensorSource& a, const TensorSource& b) {
  for (const TensorSource* source : {&a, &b}) {
    if (source->kind() == SourceKind::gguf)
      fail_usage(
          "[inspect] {}: GGUF files cannot be compared as they are; convert both first: `switchyard convert "
          "{} "
          "FOLDER`, then `switchyard inspect FOLDER OTHER`",
          source->path(), source->path());
  }
  const auto is_hub = [](const TensorSource& s) { return s.kind() == SourceKind::huggingface; };
  const auto is_ours = [](const TensorSource& s) { return s.kind() == SourceKind::checkpoint; };
  const bool across = (is_hub(a) && is_ours(b)) || (is_ours(a) && is_hub(b));
  HubModelNames names;
  std::map<std::string, const StoredPair*> by_a;
  if (across) names = names_of(is_hub(a) ? a : b);
  for (const StoredPair& pair : names.pairs) by_a[is_hub(a) ? pair.theirs : pair.ours] = &pair;

  SourceComparison comparison;
  std::set<std::string> matched;
  const auto left_out = [&](const std::string& name) {
    return across && (is_optimizer_state(name) || hub_left_out(name, names.tied, names.layers));
  };
  for (const auto& [name, item] : a.items()) {
    Match match{name, name, nullptr};
    if (const auto pair = by_a.find(name); pair != by_a.end()) {
      match.b = is_hub(a) ? pair->second->ours : pair->second->theirs;
      match.pair = pair->second;
    }
    if (b.items().contains(match.b) && (match.pair != nullptr || !across)) {
      comparison.tensors.push_back(compare_pair(a, b, match));
      matched.insert(match.b);
    } else if (!left_out(name)) {
      comparison.only_in_a.push_back(name);
    }
  }
  for (const auto& [name, item] : b.items()) {
    if (!matched.contains(name) && !left_out(name)) comparison.only_in_b.push_back(name);
  }
  return comparison;
}

namespace {

std::string first_differs(const std::string& a, const std::string& b) {
  return a == b ? a : a + " / " + b;
}

void add_row(const TensorComparison& t, const FoldedName& folded, const Difference& joined, Table& table) {
  const bool numbers = t.difference.has_value();
  table.add(
      {folded.name, first_differs(t.dtype_a, t.dtype_b), first_differs(t.shape_a, t.shape_b),
       with_commas(static_cast<std::int64_t>(folded.members.size())),
       numbers ? fmt::format("{} of {}", with_commas(joined.differing), with_commas(joined.elements)) : "-",
       numbers ? fmt::format("{:.4g}", joined.max_abs) : "-",
       numbers ? fmt::format("{:.4g}", joined.max_rel) : "-",
       t.equal                  ? "equal"
       : t.equal_in_bf16()      ? "equal after rounding to bfloat16"
       : numbers                ? "differs"
       : t.shape_a == t.shape_b ? "bytes differ"
                                : "shapes differ"});
}

std::string names_text(const std::string& title, const std::vector<std::string>& names) {
  if (names.empty()) return "";
  std::string text = title + "\n";
  for (const FoldedName& folded : fold_names(names, std::vector<std::string>(names.size())))
    text += "  " + folded.name + "\n";
  return text;
}

}  // namespace

std::string comparison_text(const SourceComparison& comparison, const std::string& a, const std::string& b,
                            bool all) {
  std::vector<std::string> names, kinds;
  std::vector<const TensorComparison*> rows;
  std::size_t equal = 0, rounded = 0;
  for (const TensorComparison& t : comparison.tensors) {
    equal += t.equal;
    rounded += t.equal_in_bf16();
    if (t.equal && !all) continue;
    rows.push_back(&t);
    names.push_back(t.name);
    kinds.push_back(all ? t.name
                        : fmt::format("{} {} {} {} {} {}", t.dtype_a, t.dtype_b, t.shape_a, t.shape_b,
                                      t.difference.has_value(), t.equal_in_bf16()));
  }
  Table table({"tensor", "dtype", "shape", ">tensors", ">differing", ">max abs", ">max rel", "verdict"});
  for (const FoldedName& folded : fold_names(names, kinds)) {
    Difference joined;
    for (std::size_t member : folded.members) {
      if (!rows[member]->difference) continue;
      const Difference& d = *rows[member]->difference;
      joined.elements += d.elements;
      joined.differing += d.differing;
      joined.max_abs = std::max(joined.max_abs, d.max_abs);
      joined.max_rel = std::max(joined.max_rel, d.max_rel);
    }
    add_row(*rows[folded.members[0]], folded, joined, table);
  }
  std::string text = fmt::format("A  {}\nB  {}\n", a, b);
  if (!table.empty()) text += table.text("  ");
  text += names_text("only in A", comparison.only_in_a) + names_text("only in B", comparison.only_in_b);
  return text + fmt::format("{} of {} tensors equal{}, {} only in A, {} only in B\n", equal,
                            comparison.tensors.size(),
                            rounded > 0 ? fmt::format(", {} equal after rounding to bfloat16", rounded) : "",
                            comparison.only_in_a.size(), comparison.only_in_b.size());
}

nlohmann::json comparison_json(const SourceComparison& comparison) {
  nlohmann::json tensors = nlohmann::json::array();
  for (const TensorComparison& t : comparison.tensors) {
    nlohmann::json row{{"name", t.name},       {"equal", t.equal},     {"dtype_a", t.dtype_a},
                       {"dtype_b", t.dtype_b}, {"shape_a", t.shape_a}, {"shape_b", t.shape_b}};
    if (t.equal_in_bf16()) row["equal_in_bfloat16"] = true;
    if (t.difference) {
      row["elements"] = t.difference->elements;
      row["differing"] = t.difference->differing;
      row["max_abs"] = t.difference->max_abs;  // null for infinity
      row["max_rel"] = t.difference->max_rel;
    }
    tensors.push_back(std::move(row));
  }
  return {{"equal", comparison.equal()},
          {"tensors", tensors},
          {"only_in_a", comparison.only_in_a},
          {"only_in_b", comparison.only_in_b}};
}

}  // namespace switchyard
