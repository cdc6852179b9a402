// Weight files that hold several matrices in one tensor: all experts, a layer's gate and up, or projections
// of one input. Here each matrix gets the name and the form [out, in] that most files use. No other code
// knows of fused tensors, or of a family's own prefix of all names.
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

// The rows of a fused tensor whose parts have different numbers of rows: `groups` groups, each with widths[0]
// rows of the first part, then widths[1] rows of the second, and so on.
struct FusedRows {
  std::int64_t groups = 0;  // 0: the tensor is fused in another way
  std::vector<std::int64_t> widths;

  std::int64_t of_group() const;
  // The row of the fused tensor that is row `row` of part `number`.
  std::int64_t place_of(std::int64_t number, std::int64_t row) const;
};

// A rule for one fused tensor of a layer, found by the end of its name.
struct FusedRule {
  std::string_view fused;
  // The parts, concatenated along the outputs; {} is the expert's number. Without {} the tensor is [E,
  // outputs], and so is each part. A single part without {} is a renamed tensor.
  std::span<const std::string_view> parts;
  bool in_turns = false;    // the parts' outputs alternate: column 0 of the first, of the second, …
  bool transposed = false;  // an expert is [in, outputs], not [outputs, in], unless it is in blocks
  // Set for a tensor [rows, ..] that is split by rows: reads the split from config.json.
  FusedRows (*rows)(const HubConfig& hub) = nullptr;
  bool written = true;  // false: the rule serves reading only, and files mostly have the parts
  // Fields of config.json with the outputs and the inputs of a part.
  // transformers 5 saves a transposed tensor in either form: a tensor of shape
  // [E, outputs of all parts, inputs] is not transposed, as transformers has it.
  const char *outputs = nullptr, *inputs = nullptr;
};

// A layer's experts as transformers 5 holds them in memory and, when told to, saves them.
inline constexpr std::string_view kGateAndUpOfExperts[] = {"mlp.experts.{}.gate_proj.weight",
                                                           "mlp.experts.{}.up_proj.weight"},
                                  kDownOfExperts[] = {"mlp.experts.{}.down_proj.weight"};
inline constexpr FusedRule kExpertsInMemory[] = {
    {.fused = "mlp.experts.gate_up_proj", .parts = kGateAndUpOfExperts, .written = false},
    {.fused = "mlp.experts.down_proj", .parts = kDownOfExperts, .written = false},
};

// The place in a family's files of the tensor that is called `name` here, if it is part of a fused tensor.
struct FusedPlace {
  std::string fused;  // the fused tensor's name
  const FusedRule* rule;
  std::int64_t expert;  // -1: all of them
  std::int64_t number;  // index of the rule's part
  bool transposed;      // an expert is [in, outputs]
  FusedRows rows = {};  // for a rule with rows
};
// `hub_config` is a whole config.json.
std::optional<FusedPlace> fused_place(const ModelFamily& family, const nlohmann::json& hub_config,
                                      const std::string& name);
// The name in a family's files of the tensor that is called `name` here, or of its fused tensor; for a model
// of so many layers.
std::string name_in_files(const ModelFamily& family, const std::string& name, std::int64_t layers);

class UnfusedWeights : public HubWeights {
 public:
  // Error(usage) for a fused tensor with a wrong number of dims, or with outputs that its parts do not
  // divide, and for two tensors with the same name here.
  UnfusedWeights(std::shared_ptr<const HubWeights> fused, const ModelFamily& family,
                 const nlohmann::json& hub_config);

  const std::string& path() const override { return fused_->path(); }
  std::vector<std::string> names() const override;
  bool contains(const std::string& name) const override;
  std::string stored_name(const std::string& name) const override;
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

  std::map<std::string, std::string> plain_;  // unfused tensors: name here -> name in files
  std::map<std::string, Part> parts_;         // parts of fused tensors, by their name here
};

// The shape of the fused tensor that holds a part of shape `part`, with `experts` experts: [outputs, inputs],
// [experts, outputs], or [rows, ..].
Shape fused_shape(const FusedPlace& place, std::int64_t experts, const Shape& part);
// Copies a part to its place in the fused tensor.
void put_part(const FusedPlace& place, const Tensor& part, const Tensor& fused);

// True when some of these names are fused tensors, or have another name here.
bool holds_fused(const ModelFamily& family, const std::vector<std::string>& names);

// `weights` with its fused tensors split into parts; `weights` itself when it has none.
std::shared_ptr<const HubWeights> unfused(const ModelFamily& family, const nlohmann::json& hub_config,
                                          std::shared_ptr<const HubWeights> weights);

}  // namespace switchyard
