#include "models/prediction.h"

#include <algorithm>

#include "ops/basic.h"
#include "ops/embedding.h"
#include "ops/norm.h"

namespace switchyard {
namespace {

// Shifts tokens by one position within segments, i32 [B,S]; 0 where there is no next token.
Tensor one_further(const Tensor& x, const Tensor& segments) {
  const Tensor result = Tensor::zeros(DType::i32, x.shape());
  const auto from = x.span<std::int32_t>(), of = segments.span<std::int32_t>();
  const auto to = result.span<std::int32_t>();
  const auto length = static_cast<std::size_t>(x.dim(1));
  for (std::size_t i = 0; i + 1 < from.size(); ++i) {
    if (i % length + 1 < length && of[i] == of[i + 1]) to[i] = from[i + 1];
  }
  return result;
}

}  // namespace

std::vector<Batch> further_batches(const Batch& batch, std::int64_t predictions) {
  std::vector<Batch> further;
  Batch next = batch;
  for (std::int64_t k = 0; k < predictions; ++k) {
    if (!batch.inputs.abstract()) {
      for (Tensor* x : {&next.inputs, &next.targets, &next.targets_segmentation})
        *x = one_further(*x, batch.inputs_segmentation);
    }
    further.push_back(next);
  }
  return further;
}

double count_further_targets(const Batch& batch, std::int64_t predictions) {
  double count = 0;
  for (const Batch& further : further_batches(batch, predictions)) {
    const Tensor& segments = further.targets_segmentation;
    if (segments.abstract()) {
      count += static_cast<double>(segments.size());
      continue;
    }
    const auto values = segments.span<std::int32_t>();
    count += static_cast<double>(std::count_if(values.begin(), values.end(), [](auto s) { return s != 0; }));
  }
  return count;
}

Array prediction_input(const LayerCall& call, const Array& table, const Array& tokens, const Array& hidden) {
  Context& c = call.context;
  const auto norm = [&](const Array& x, const char* name) {
    const Array scale = call.parameter(std::string("prediction.") + name);
    return whole_embedding(c, rms_norm(c, x, scale, call.model.norm_epsilon, call.model.norm_offset()));
  };
  const Array of_token = norm(embedding(c, table, tokens, hidden.sharding()), "token_norm");
  const Array both = join_last(c, of_token, norm(hidden, "hidden_norm"));
  return linear(call, "prediction.projection").apply(c, "BSK,KM->BSM", both, &hidden.sharding());
}

}  // namespace switchyard
