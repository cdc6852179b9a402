// StepRouting: one rank's part in recording and replaying the
// experts of whole batches, in training steps or single passes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/dataset.h"
#include "models/model_config.h"
#include "moe/routing_tape.h"
#include "routing/routing_blocks.h"
#include "routing/routing_index.h"

namespace switchyard {

// Counts over all ranks, for tokens with recorded experts: replayed experts, and the replayed experts that
// the router would also have chosen.
struct RoutingAgreement {
  double replayed = 0, agreed = 0;
  double tokens = 0;  // tokens of texts, for each layer and slot, with or without recorded experts
  double share() const { return replayed > 0 ? agreed / replayed : 0; }
  double covered() const { return tokens > 0 ? replayed / tokens : 0; }
};

class StepRouting : public RoutingTape {
 public:
  // `index` null: nothing is replayed.
  StepRouting(const ModelConfig& model, std::shared_ptr<const RoutingIndex> index, bool records)
      : config_(model.moe()), index_(std::move(index)), records_(records), blocks_(routed_layers(model)) {}

  bool replays() const { return index_ != nullptr; }

  // Sets the batch of the next passes. Error(usage), the same on all ranks, for a text without a record.
  void begin_step(std::int64_t step, const BatchRows& batch);
  // From here to end_pass() the router sees batch rows from
  // `first_row` on. Passes outside record and replay nothing.
  void begin_pass(std::int64_t first_row);
  void end_pass() { in_pass_ = false; }

  struct Result {
    RoutingAgreement agreement;
    std::string records;  // on rank 0: a record for each text of the batch, when recording
  };
  // Ends the batch, after all its passes. Collective.
  Result end_step(Context& context);

  Tensor replay(const Context& context, std::int64_t step, std::int64_t layer, std::int64_t first_row,
                const ArrayInfo& logits) override;
  void record(Context& context, std::int64_t step, std::int64_t layer, std::int64_t first_row,
              const Array& logits, const Array& bias, const Routing& routing) override;

 private:
  // A document, or a part of one, in one row of the batch.
  struct Text {
    RoutingSource source;
    std::vector<std::int32_t> tokens;
    RoutingIndex::Found found = {};
  };
  // The index of a layer among the recorded layers, or -1.
  std::int64_t place_of(std::int64_t layer) const;
  // The recorded experts for this rank's block of a layer: i32 [b,s,K] on host, -1 where the router chooses.
  Tensor recorded(const Context& context, std::int64_t place, const ArrayInfo& logits) const;
  void compare(Context& context, std::int64_t step, std::int64_t layer, std::int64_t first_row,
               const Array& logits, const Array& bias, const Array& ids);

  MoeConfig config_;
  std::shared_ptr<const RoutingIndex> index_;
  bool records_;
  RoutingBlocks blocks_;
  std::int64_t rows_ = 0, length_ = 0;  // the batch's
  std::vector<Text> texts_;             // the batch's texts, row by row
  bool in_pass_ = false;
  std::int64_t pass_row_ = 0;
  std::int64_t replayed_ = 0, agreed_ = 0;  // on this rank, since begin_step
};

}  // namespace switchyard
