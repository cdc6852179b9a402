#include "models/families/fused_weights.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <set>

#include "core/error.h"
#include "core/json_file.h"
#include "models/families/family.h"

namespace switchyard {
namespace {

const FusedRule* rule_of(std::span<const FusedRule> rules, std::string_view name) {
  const auto rule =
      std::find_if(rules.begin(), rules.end(), [&](const FusedRule& r) { return name.ends_with(r.fused); });
  return rule == rules.end() ? nullptr : &*rule;
}

bool of_experts(const FusedRule& rule) {
  return rule.parts[0].find("{}") != std::string_view::npos;
}

// True for the shape [E, outputs, inputs] under a rule that allows both orders.
bool has_outputs_first(const FusedRule& rule, const Shape& whole, const HubConfig& hub) {
  return rule.outputs != nullptr && whole.size() == 3 &&
         whole[1] == std::ssize(rule.parts) * hub.positive(rule.outputs) &&
         whole[2] == hub.positive(rule.inputs);
}

// True for a rule that only gives a tensor another name.
bool is_renamed(const FusedRule& rule) {
  return rule.parts.size() == 1 && rule.rows == nullptr && !of_experts(rule);
}

std::string with_expert(std::string_view name, std::int64_t expert) {
  std::string text(name);
  if (const std::size_t at = text.find("{}"); at != std::string::npos)
    text.replace(at, 2, std::to_string(expert));
  return text;
}

// visit(at, i, count) for rows [begin, end) of a part, as runs of elements: `count` from element `at` on of
// the rows of the fused tensor that hold them are those from `i` on of the part's rows.
template <typename Visit>
void for_elements(const FusedPlace& place, const Shape& part, std::int64_t begin, std::int64_t end,
                  const Visit& visit) {
  const auto parts = std::ssize(place.rule->parts);
  const bool matrix = place.expert >= 0;
  const std::int64_t outputs = part[matrix ? 0 : 1], inputs = matrix ? part[1] : 1;
  // Returns the place of this part's output o among the outputs of all parts.
  const auto among_all = [&](std::int64_t o) {
    return place.rule->in_turns ? o * parts + place.number : place.number * outputs + o;
  };
  std::int64_t i = 0;
  for (std::int64_t row = begin; row < end; ++row) {
    if (matrix && !place.transposed) {
      visit(among_all(row) * inputs, i, inputs);
      i += inputs;
      continue;
    }
    for (std::int64_t column = 0; column < part[1]; ++column, ++i) {
      const std::int64_t at = matrix ? column * outputs * parts + among_all(row)
                                     : (row - begin) * outputs * parts + among_all(column);
      visit(at, i, 1);
    }
  }
}

void copy_elements(const Tensor& from, std::int64_t at, const Tensor& to, std::int64_t i,
                   std::int64_t count) {
  const std::size_t element = size_of(from.dtype());
  std::memcpy(to.raw() + static_cast<std::size_t>(i) * element,
              from.raw() + static_cast<std::size_t>(at) * element, static_cast<std::size_t>(count) * element);
}

// visit(at, i, count) for rows [begin, end) of a part: `count` of them, from the part's row i on, are those
// from row `at` of the whole on.
template <typename Visit>
void for_row_runs(const FusedPlace& place, std::int64_t begin, std::int64_t end, const Visit& visit) {
  const std::int64_t width = place.rows.widths[static_cast<std::size_t>(place.number)];
  for (std::int64_t i = begin; i < end;) {
    const std::int64_t count = std::min(end - i, width - i % width);
    visit(place.rows.place_of(place.number, i), i, count);
    i += count;
  }
}

std::int64_t elements_of_row(const Shape& shape) {
  return shape[0] == 0 ? 0 : num_elements(shape) / shape[0];
}

// A name that may have others before it, such as "grad.", with `to` for the first `from`.
std::string with_root(const std::string& name, std::string_view from, std::string_view to) {
  const std::size_t at = name.find(from);
  if (at == std::string::npos || (at > 0 && name[at - 1] != '.')) return name;
  return name.substr(0, at) + std::string(to) + name.substr(at + from.size());
}

// The names of a prediction layer: in files of PredictionForm::mtp, and below "model.layers.<i>.".
constexpr std::pair<std::string_view, std::string_view> kMtpNames[] = {
    {"mtp.fc.weight", "eh_proj.weight"},
    {"mtp.pre_fc_norm_embedding.weight", "enorm.weight"},
    {"mtp.pre_fc_norm_hidden.weight", "hnorm.weight"},
    {"mtp.norm.weight", "shared_head.norm.weight"},
};
constexpr std::string_view kMtpLayer = "mtp.layers.0.";

std::string name_here(const ModelFamily& family, const std::string& file, std::int64_t layers) {
  if (family.predictions == PredictionForm::mtp && file.starts_with("mtp.")) {
    const std::string layer = fmt::format("model.layers.{}.", layers);
    if (file.starts_with(kMtpLayer)) return layer + file.substr(kMtpLayer.size());
    for (const auto& [there, here] : kMtpNames) {
      if (file == there) return layer + std::string(here);
    }
  }
  return family.root.there.empty() ? file : with_root(file, family.root.there, family.root.here);
}

}  // namespace

std::int64_t FusedRows::of_group() const {
  return std::accumulate(widths.begin(), widths.end(), std::int64_t{0});
}

std::int64_t FusedRows::place_of(std::int64_t number, std::int64_t row) const {
  const std::int64_t width = widths[static_cast<std::size_t>(number)];
  return row / width * of_group() +
         std::accumulate(widths.begin(), widths.begin() + number, std::int64_t{0}) + row % width;
}

std::string name_in_files(const ModelFamily& family, const std::string& name, std::int64_t layers) {
  if (const std::string layer = fmt::format("model.layers.{}.", layers);
      family.predictions == PredictionForm::mtp && name.starts_with(layer)) {
    const std::string below = name.substr(layer.size());
    for (const auto& [there, here] : kMtpNames) {
      if (below == here) return std::string(there);
    }
    return std::string(kMtpLayer) + below;
  }
  return family.root.written ? with_root(name, family.root.here, family.root.there) : name;
}

UnfusedWeights::UnfusedWeights(std::shared_ptr<const HubWeights> fused, const ModelFamily& family,
                               const nlohmann::json& hub_config)
    : fused_(std::move(fused)) {
  const nlohmann::json decoder = decoder_part(hub_config);
  const std::int64_t layers = HubConfig(decoder).integer("num_hidden_layers", 0);
  std::set<std::string> seen;
  for (const std::string& file : fused_->names()) {
    const std::string name = name_here(family, file, layers);
    const FusedRule* const rule = rule_of(family.fused, name);
    if (!seen.insert(name).second)
      fail_usage("[checkpoint] {}: two tensors for {}", fused_->path(), in_quotes(name));
    if (rule == nullptr)
      plain_[name] = file;
    else if (is_renamed(*rule))
      plain_[name.substr(0, name.size() - rule->fused.size()) + std::string(rule->parts[0])] = file;
    else if (rule->rows != nullptr)
      add_rows(name, file, *rule, rule->rows(HubConfig(decoder)));
    else
      add_experts(name, file, *rule, HubConfig(decoder));
  }
  for (const auto& [name, part] : parts_) {
    if (plain_.contains(name))
      fail_usage("[checkpoint] {}: tensor {} is there beside {}", fused_->path(), in_quotes(name),
                 in_quotes(part.place.fused));
  }
}

void UnfusedWeights::add_rows(const std::string& name, const std::string& file, const FusedRule& rule,
                              const FusedRows& rows) {
  const Shape whole = fused_->shape(file);
  if (whole.size() < 2 || whole[0] != rows.groups * rows.of_group())
    fail_usage("[checkpoint] {}: tensor {} has shape {}, expected {} rows", fused_->path(), in_quotes(file),
               to_string(whole), rows.groups * rows.of_group());
  const std::string front = name.substr(0, name.size() - rule.fused.size());
  for (std::size_t part = 0; part < rule.parts.size(); ++part) {
    Shape shape = whole;
    shape[0] = rows.groups * rows.widths[part];
    parts_[front + std::string(rule.parts[part])] = {
        {file, &rule, -1, static_cast<std::int64_t>(part), false, rows}, shape};
  }
}

void UnfusedWeights::add_experts(const std::string& name, const std::string& file, const FusedRule& rule,
                                 const HubConfig& hub) {
  const bool experts = of_experts(rule);
  const Shape whole = fused_->shape(file);
  const auto count = std::ssize(rule.parts);
  const bool transposed =
      rule.transposed && !fused_->packed_stack_dtype(file) && !has_outputs_first(rule, whole, hub);
  const std::size_t outputs_dim = experts && !transposed ? 1 : whole.size() - 1;
  if (whole.size() != (experts ? 3u : 2u) || whole[outputs_dim] % count != 0)
    fail_usage("[checkpoint] {}: tensor {} has shape {}, expected {} with outputs a multiple of {}",
               fused_->path(), in_quotes(file), to_string(whole),
               !experts     ? "[experts, outputs]"
               : transposed ? "[experts, inputs, outputs]"
                            : "[experts, outputs, inputs]",
               count);
  const std::int64_t outputs = whole[outputs_dim] / count;
  const Shape shape = experts ? Shape{outputs, whole[transposed ? 1 : 2]} : Shape{whole[0], outputs};
  const std::string front = name.substr(0, name.size() - rule.fused.size());
  for (std::int64_t part = 0; part < count; ++part) {
    const std::string_view below = rule.parts[static_cast<std::size_t>(part)];
    for (std::int64_t e = 0; e < (experts ? whole[0] : 1); ++e)
      parts_[front + with_expert(below, e)] = {{file, &rule, experts ? e : -1, part, transposed, {}}, shape};
  }
}

const UnfusedWeights::Part* UnfusedWeights::part_of(const std::string& name) const {
  const auto found = parts_.find(name);
  return found == parts_.end() ? nullptr : &found->second;
}

const std::string& UnfusedWeights::plain(const std::string& name) const {
  const auto found = plain_.find(name);
  return found == plain_.end() ? name : found->second;
}

std::vector<std::string> UnfusedWeights::names() const {
  std::vector<std::string> all;
  for (const auto& [name, file] : plain_) all.push_back(name);
  for (const auto& [name, part] : parts_) all.push_back(name);
  std::sort(all.begin(), all.end());
  return all;
}
bool UnfusedWeights::contains(const std::string& name) const {
  return part_of(name) != nullptr || plain_.contains(name);
}
std::string UnfusedWeights::stored_name(const std::string& name) const {
  const Part* const part = part_of(name);
  return part == nullptr ? fused_->stored_name(plain(name)) : part->place.fused;
}
Shape UnfusedWeights::shape(const std::string& name) const {
  const Part* const part = part_of(name);
  return part == nullptr ? fused_->shape(plain(name)) : part->shape;
}
std::string UnfusedWeights::dtype(const std::string& name) const {
  const Part* const part = part_of(name);
  return fused_->dtype(part == nullptr ? plain(name) : part->place.fused);
}

template <typename Take>
Tensor UnfusedWeights::rows_of(const Part& part, std::int64_t begin, std::int64_t end,
                               const Take& take) const {
  if (part.place.rows.groups > 0) {
    Tensor rows;
    const std::int64_t row = elements_of_row(part.shape);
    for_row_runs(part.place, begin, end, [&](std::int64_t at, std::int64_t i, std::int64_t count) {
      const Tensor taken = take(at, at + count);
      Shape shape = part.shape;
      shape[0] = end - begin;
      if (!rows.defined()) rows = Tensor(taken.dtype(), shape);
      copy_elements(taken, 0, rows, (i - begin) * row, count * row);
    });
    return rows;
  }
  // Rows of [experts, outputs] are in as many rows of the fused tensor, those of a matrix in its expert's.
  const bool all = part.place.expert < 0;
  const Tensor taken = all ? take(begin, end) : take(part.place.expert, part.place.expert + 1);
  const Tensor rows(taken.dtype(), {end - begin, part.shape[1]});
  for_elements(part.place, part.shape, begin, end, [&](std::int64_t at, std::int64_t i, std::int64_t count) {
    copy_elements(taken, at, rows, i, count);
  });
  return rows;
}

Tensor UnfusedWeights::read(const std::string& name) const {
  const Part* const part = part_of(name);
  if (part == nullptr) return fused_->read(plain(name));
  const Tensor whole = fused_->read(part->place.fused);
  return rows_of(*part, 0, part->shape[0],
                 [&](std::int64_t begin, std::int64_t end) { return whole.slice_rows(begin, end); });
}

Tensor UnfusedWeights::take_rows(const std::string& name, std::int64_t begin, std::int64_t end) const {
  const Part* const part = part_of(name);
  if (part == nullptr) return fused_->take_rows(plain(name), begin, end);
  return rows_of(*part, begin, end, [&](std::int64_t first, std::int64_t last) {
    return fused_->take_rows(part->place.fused, first, last);
  });
}

Tensor UnfusedWeights::take_values(const std::string& name, std::int64_t begin, std::int64_t end) const {
  const Part* const part = part_of(name);
  if (part == nullptr) return fused_->take_values(plain(name), begin, end);
  return rows_of(*part, begin, end, [&](std::int64_t first, std::int64_t last) {
    return fused_->take_values(part->place.fused, first, last);
  });
}

std::optional<DType> UnfusedWeights::packed_dtype(const std::string& name) const {
  const Part* const part = part_of(name);
  if (part == nullptr) return fused_->packed_dtype(plain(name));
  // A matrix in blocks has inputs side by side.
  if (part->place.expert < 0 || part->place.transposed || part->shape[0] % kBlockOutputs != 0)
    return std::nullopt;
  return fused_->packed_stack_dtype(part->place.fused);
}

Tensor UnfusedWeights::take_blocks(const std::string& name) const {
  const Part* const part = part_of(name);
  if (part == nullptr) return fused_->take_blocks(plain(name));
  const FusedPlace& place = part->place;
  const std::int64_t outputs = part->shape[0];
  return fused_->take_stack_blocks(place.fused,
                                   {.matrix = place.expert,
                                    .first = place.rule->in_turns ? place.number : place.number * outputs,
                                    .step = place.rule->in_turns ? std::ssize(place.rule->parts) : 1,
                                    .count = outputs});
}

std::optional<FusedPlace> fused_place(const ModelFamily& family, const nlohmann::json& hub_config,
                                      const std::string& name) {
  for (const FusedRule& rule : family.fused) {
    if (!rule.written) continue;
    for (std::size_t number = 0; number < rule.parts.size(); ++number) {
      const std::string_view part = rule.parts[number];
      const std::size_t at = part.find("{}");
      std::string_view front = name;
      std::int64_t expert = -1;
      if (at != std::string_view::npos) {
        const std::string_view after = part.substr(at + 2);
        if (!front.ends_with(after)) continue;
        front.remove_suffix(after.size());
        const std::size_t digits = front.find_last_not_of("0123456789") + 1;
        if (digits == front.size()) continue;
        expert = std::stoll(std::string(front.substr(digits)));
        front = front.substr(0, digits);
      }
      const std::string_view before = part.substr(0, at);
      if (!front.ends_with(before)) continue;
      front.remove_suffix(before.size());
      return FusedPlace{std::string(front) + std::string(rule.fused),
                        &rule,
                        expert,
                        static_cast<std::int64_t>(number),
                        rule.transposed,
                        rule.rows == nullptr ? FusedRows() : rule.rows(HubConfig(decoder_part(hub_config)))};
    }
  }
  return std::nullopt;
}

Shape fused_shape(const FusedPlace& place, std::int64_t experts, const Shape& part) {
  const FusedRule& rule = *place.rule;
  if (place.rows.groups > 0) {
    Shape whole = part;
    whole[0] = place.rows.groups * place.rows.of_group();
    return whole;
  }
  const auto parts = std::ssize(rule.parts);
  if (!of_experts(rule)) return {part[0], part[1] * parts};
  return rule.transposed ? Shape{experts, part[1], part[0] * parts}
                         : Shape{experts, part[0] * parts, part[1]};
}

void put_part(const FusedPlace& place, const Tensor& part, const Tensor& fused) {
  if (place.rows.groups > 0) {
    const std::int64_t row = elements_of_row(part.shape());
    for_row_runs(place, 0, part.dim(0), [&](std::int64_t at, std::int64_t i, std::int64_t count) {
      copy_elements(part.slice_rows(i, i + count), 0, fused, at * row, count * row);
    });
    return;
  }
  CHECK(part.rank() == 2 && part.dtype() == fused.dtype(), "{} {} into {}", name_of(part.dtype()),
        to_string(part.shape()), place.fused);
  const Tensor rows = place.expert < 0 ? fused : fused.slice_rows(place.expert, place.expert + 1);
  for_elements(place, part.shape(), 0, part.dim(0), [&](std::int64_t at, std::int64_t i, std::int64_t count) {
    copy_elements(part, i, rows, at, count);
  });
}

bool holds_fused(const ModelFamily& family, const std::vector<std::string>& names) {
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return rule_of(family.fused, name) != nullptr ||
           (!family.root.there.empty() && name.find(family.root.there) != std::string::npos) ||
           (family.predictions == PredictionForm::mtp && name.starts_with("mtp."));
  });
}

std::shared_ptr<const HubWeights> unfused(const ModelFamily& family, const nlohmann::json& hub_config,
                                          std::shared_ptr<const HubWeights> weights) {
  if (!holds_fused(family, weights->names())) return weights;
  return std::make_shared<UnfusedWeights>(std::move(weights), family, hub_config);
}

}  // namespace switchyard
