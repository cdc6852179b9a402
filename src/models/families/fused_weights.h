// Files that hold several matrices in one tensor: all experts, or gate and up, of a layer. Here each matrix
// gets the name and form that most files give it, [out, in], so that nothing else knows of such tensors.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "checkpoint/hub_weights.h"

namespace switchyard {

struct ModelFamily;

// One tensor of every MoE layer, by the end of its name.
struct FusedRule {
  std::string_view fused;
  // What it holds, one after the other along its outputs; {} is the expert. Without {} the tensor is [E,
  // outputs], and so is each part.
  std::span<const std::string_view> parts;
  bool in_turns = false;    // outputs of the parts take turns: column 0 of the first, of the second, …
  bool transposed = false;  // an expert is [in, outputs], not [outputs, in], unless it is in blocks
};

// Where in the family's files is what is called `name` here, if in a tensor with others.
struct FusedPlace {
  std::string fused;  // that tensor
  const FusedRule* rule;
  std::int64_t expert;  // -1: all of them
  std::int64_t number;  // which of the rule's parts
  bool transposed;      // an expert is [in, outputs]
};
std::optional<FusedPlace> fused_place(const ModelFamily& family, const std::string& name);

class UnfusedWeights : public HubWeights {
 public:
  // Error(usage) for a fused tensor of another number of dims, or whose outputs its parts do not divide.
  UnfusedWeights(std::shared_ptr<const HubWeights> fused, std::span<const FusedRule> rules);

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
  template <typename Take>
  Tensor rows_of(const Part& part, std::int64_t begin, std::int64_t end, const Take& take) const;
  const Part* part_of(const std::string& name) const;

  std::shared_ptr<const HubWeights> fused_;
  std::vector<std::string> plain_;     // sorted names of the tensors that are as they are
  std::map<std::string, Part> parts_;  // by their name here
};

// The shape of a fused tensor of so many experts, of a part's: [outputs, inputs], or [experts, outputs].
Shape fused_shape(const FusedRule& rule, std::int64_t experts, const Shape& part);
// Puts a part where it belongs.
void put_part(const FusedPlace& place, const Tensor& part, const Tensor& fused);

// `weights` with what the family's files fuse taken apart; `weights` itself where they fuse nothing.
std::shared_ptr<const HubWeights> unfused(const ModelFamily& family,
                                          std::shared_ptr<const HubWeights> weights);

}  // namespace switchyard
