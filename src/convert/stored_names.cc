#include "convert/stored_names.h"

#include "checkpoint/layout.h"
#include "core/error.h"

namespace switchyard {

std::vector<StoredPair> stored_pairs(const std::vector<ParameterSpec>& specs, const ModelFamily& family) {
  std::vector<StoredPair> pairs;
  for (const ParameterSpec& spec : specs) {
    const HubTensors hub = hub_tensors(family, spec.name, spec.shape);
    const StoredParameter ours = stored_parameter(spec.name, spec.shape);
    CHECK(ours.names.size() == hub.names.size(), "{}: {} and {} tensors", spec.name, ours.names.size(),
          hub.names.size());
    for (std::size_t i = 0; i < ours.names.size(); ++i)
      pairs.push_back({ours.names[i], ours.shape, hub.names[i], {{hub.names[i]}, hub.transposed, hub.shape}});
  }
  return pairs;
}

}  // namespace switchyard
