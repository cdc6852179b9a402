#include "routing/routing_blocks.h"

#include <algorithm>

#include "models/model_config.h"
#include "models/pipeline.h"
#include "moe/block.h"

namespace switchyard {

RoutedLayers routed_layers(const ModelConfig& model) {
  RoutedLayers routed{{}, model.moe().slots, model.moe().experts};
  for (const std::int64_t layer : without_predictions(model).moe_layers())
    routed.layers.push_back(static_cast<std::int32_t>(layer));
  return routed;
}

void RoutingBlocks::add(Context& context, std::int64_t layer, std::int64_t first_row, const Array& ids) {
  const auto place = std::ranges::lower_bound(routed_.layers, layer);
  if (place == routed_.layers.end() || *place != layer) return;
  if (!is_first_of_repeats(context, ids.sharding())) return;
  const Tensor host = read_back(context, ids.tensor(), "experts to record",
                                [&] { return Memory().zeros(DType::i32, ids.info().local); });
  const Shape offset = local_offset(*context.mesh, context.rank, ids.shape(), ids.sharding());
  blocks_.push_back({static_cast<std::size_t>(place - routed_.layers.begin()), first_row + offset[0],
                     offset[1], host.clone()});
}

std::vector<std::uint16_t> RoutingBlocks::gather(Context& context, std::int64_t rows, std::int64_t length) {
  const PhaseMark mark(context.comm->position(), "routing record");
  const bool wanted = context.comm->rank() == 0;
  const auto slots = static_cast<std::size_t>(routed_.slots),
             of_layer = static_cast<std::size_t>(rows * length) * slots;
  std::vector<std::uint16_t> all(wanted ? of_layer * routed_.layers.size() : 0);
  std::vector<std::int32_t> whole(of_layer);
  for (std::size_t layer = 0; layer < routed_.layers.size(); ++layer) {
    std::ranges::fill(whole, 0);
    for (const Block& block : blocks_) {
      if (block.layer != layer) continue;
      const std::int64_t columns = block.ids.dim(1);
      for (std::int64_t row = 0; row < block.ids.dim(0); ++row) {
        const auto from = block.ids.span<std::int32_t>().subspan(
            static_cast<std::size_t>(row * columns) * slots, static_cast<std::size_t>(columns) * slots);
        const std::int64_t at = (block.row + row) * length + block.column;
        std::ranges::copy(from, whole.begin() + at * routed_.slots);
      }
    }
    sum_over_run(context, whole);
    for (std::size_t i = 0; i < (wanted ? of_layer : 0); ++i)
      all[layer * of_layer + i] = static_cast<std::uint16_t>(whole[i]);
  }
  blocks_.clear();
  return all;
}

}  // namespace switchyard
