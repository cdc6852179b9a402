// Files that hold several matrices in one tensor: all experts, gate and up of a layer, or products with one
// input. Here each matrix gets the name and form that most files give it, [out, in], so that nothing else
// knows of such tensors; nor of a family's own beginning of all names.
#pragma once

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/hub_weights.h"
#include "models/families/hub_config.h"

namespace switchyard {

struct ModelFamily;

// The rows of a tensor whose parts have unlike numbers of them: `groups` groups, each with the next widths[0]
// rows of the first part, then the next widths[1] of the second, and so on.
struct FusedRows {
  std::int64_t groups = 0;  // 0: the tensor is of another kind
  std::vector<std::int64_t> widths;

  std::int64_t of_group() const;
  // The row of the whole that is row `row` of the part `number`.
  std::int64_t place_of(std::int64_t number, std::int64_t row) const;
};

// One tensor of a layer, by the end of its name.
struct FusedRule {
  std::string_view fused;
  // What it holds, one after the other along its outputs; {} is the expert. Without {} the tensor is [E,
  // outputs], and so is each part. One part without {} is the tensor under another name.
  std::span<const std::string_view> parts;
  bool in_turns = false;    // outputs of the parts take turns: column 0 of the first, of the second, …
  bool transposed = false;  // an expert is [in, outputs], not [outputs, in], unless it is in blocks
  // Of a tensor [rows, ..] that is cut into rows, as a config.json says.
  FusedRows (*rows)(const HubConfig& hub) = nullptr;
  bool written = true;  // else it is read alone: files mostly have the parts
  // Fields of config.json with the outputs of a part and its inputs, where transformers 5 saves a transposed
  // tensor either way: one whose shape is [E, outputs of all parts, inputs] is not transposed, as in
  // transformers.
  const char *outputs = nullptr, *inputs = nullptr;
};

// All experts of a layer as transformers 5 has them in memory, and saves them where it is told to.
inline constexpr std::string_view kGateAndUpOfExperts[] = {"mlp.experts.{}.gate_proj.weight",
                                                           "mlp.experts.{}.up_proj.weight"},
                                  kDownOfExperts[] = {"mlp.experts.{}.down_proj.weight"};
inline constexpr FusedRule kExpertsInMemory[] = {
    {.fused = "mlp.experts.gate_up_proj", .parts = kGateAndUpOfExperts, .written = false},
    {.fused = "mlp.experts.down_proj", .parts = kDownOfExperts, .written = false},
};

// Where in the family's files is what is called `name` here, if in a tensor with others.
struct FusedPlace {
  std::string fused;  // that tensor
  const FusedRule* rule;
  std::int64_t expert;  // -1: all of them
  std::int64_t number;  // which of the rule's parts
  bool transposed;      // an expert is [in, outputs]
  FusedRows rows = {};  // of a rule with rows
};
// `hub_config` is a whole config.json.
std::optional<FusedPlace> fused_place(const ModelFamily& family, const nlohmann::json& hub_config,
                                      const std::string& name);
// What files call a tensor that is called `name` here, or its fused tensor.
std::string name_in_files(const ModelFamily& family, const std::string& name);

class UnfusedWeights : public HubWeights {
 public:
  // Error(usage) for a fused tensor of another number of dims, or whose outputs its parts do not divide, and
  // for two tensors that have one name here.
  UnfusedWeights(std::shared_ptr<const HubWeights> fused, const ModelFamily& family,
                 const nlohmann::json& hub_config);

  const std::string& path() const override { return fused_->path(); }
  std::vector<std::string> names() const override;
  bool contains(const std::string& name) const override;
  Shape shape(const std::string& name) const override;
  std::string dtype(const std::string& name) const override;
  Tensor read(const std::string& name) const override;
  Tensor take_rows(const std::string& name, std::int64_t begin, std::int64_t end) const override;
  Tensor take_values(const std::string& name, std::int64_t begin, std::int64_t end) const override;
  std::optional<DType> packed_dtype(const std::string& name) const override;
  Tensor take_blocks(const std::string& name) const override;

 private:
  struct Part {
    FusedPlace place;
    Shape shape;
  };
  void add_rows(const std::string& name, const std::string& file, const FusedRule& rule,
                const FusedRows& rows);
  void add_experts(const std::string& name, const std::string& file, const FusedRule& rule,
                   const HubConfig& hub);
  template <typename Take>
  Tensor rows_of(const Part& part, std::int64_t begin, std::int64_t end, const Take& take) const;
  const Part* part_of(const std::string& name) const;

  std::shared_ptr<const HubWeights> fused_;
  const std::string& plain(const std::string& name) const;

  std::map<std::string, std::string> plain_;  // tensors that are as they are: their names here, and in files
  std::map<std::string, Part> parts_;         // by their name here
};

// The shape of the fused tensor of a part, of so many experts, from the part's: [outputs, inputs],
// [experts, outputs], or [rows, ..].
Shape fused_shape(const FusedPlace& place, std::int64_t experts, const Shape& part);
// Puts a part where it belongs.
void put_part(const FusedPlace& place, const Tensor& part, const Tensor& fused);

// True where some of these names are tensors of several matrices, or of another name here.
bool holds_fused(const ModelFamily& family, const std::vector<std::string>& names);

// `weights` with what is fused in them taken apart; `weights` itself where nothing is.
std::shared_ptr<const HubWeights> unfused(const ModelFamily& family, const nlohmann::json& hub_config,
                                          std::shared_ptr<const HubWeights> weights);

}  // namespace switchyard
