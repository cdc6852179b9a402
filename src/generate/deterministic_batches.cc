#include "generate/deterministic_batches.h"

#include <string>

#include "core/device.h"
#include "core/error.h"

namespace switchyard {
namespace {

// Returns whether the ranks of a mesh share the work of every row alike.
bool splits_no_rows(const Mesh& mesh) {
  const Axis kept[] = {"tensor", "stage"};
  return mesh.product(kept) == mesh.size();
}

}  // namespace

std::unique_ptr<RowIndependence> row_independence_of(const Config& config, const Mesh& mesh,
                                                     const ModelConfig& model) {
  if (!config.get_bool("deterministic_batches")) return nullptr;
  const auto refuse_unless = [](bool allowed, const std::string& why) {
    if (!allowed) fail_usage("[generate] deterministic_batches=true: {}", why);
  };
  refuse_unless(!Device::named(config.get_string("device")).is_gpu(),
                "expected device=cpu: kernels of GPUs are chosen by the number of rows");
  refuse_unless(splits_no_rows(mesh),
                "expected a mesh of the axes tensor and stage, which split no rows; got " + mesh.to_string());
  const MoeExecution& experts = model.moe_execution;
  refuse_unless((experts.sparse || experts.capacity_factor <= 0) && experts.ragged_buffer_factor <= 0,
                "expected experts that drop no tokens (capacity_factor=-1, ragged_buffer_factor=-1)");
  refuse_unless(!model.moe().random_routing, "expected use_random_routing=false: experts are drawn by place");
  return std::make_unique<RowIndependence>();
}

}  // namespace switchyard
