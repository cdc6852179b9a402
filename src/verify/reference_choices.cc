#include "verify/reference_choices.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "core/error.h"
#include "engine/whole_tensors.h"
#include "kernels/attention/index_keys.h"
#include "verify/layout_run.h"

namespace switchyard {
namespace {

void require_shape(const HubWeights& stored, const std::string& name, const Tensor& got, const Shape& shape) {
  if (got.dtype() == DType::i32 && got.shape() == shape) return;
  fail_usage("[verify] {}: expected {} of int32 {} for this model, got {} {}", stored.path(), name,
             to_string(shape), name_of(got.dtype()), to_string(got.shape()));
}

// A token's experts must be different ones that exist.
void check_experts(const HubWeights& stored, const std::string& name, const Tensor& experts,
                   std::int64_t count) {
  const auto all = experts.span<std::int32_t>();
  const auto slots = static_cast<std::size_t>(experts.shape().back());
  for (std::size_t at = 0; at < all.size(); at += slots) {
    std::vector<std::int32_t> of_token(all.begin() + static_cast<std::ptrdiff_t>(at),
                                       all.begin() + static_cast<std::ptrdiff_t>(at + slots));
    std::ranges::sort(of_token);
    if (of_token.front() < 0 || of_token.back() >= count ||
        std::ranges::adjacent_find(of_token) != of_token.end())
      fail_usage("[verify] {}: {}: expected different experts below {} for each token, got {}", stored.path(),
                 name, count, fmt::join(of_token, " "));
  }
}

void set_key(Tensor& bits, std::int64_t row, std::int64_t key) {
  std::int32_t& word = bits.data<std::int32_t>()[row * bits.shape().back() + key / 32];
  word = static_cast<std::int32_t>(static_cast<std::uint32_t>(word) | 1u << (key % 32));
}

// The bits of a mask i32 [B,S,S], up to each query's own key.
Tensor bits_of_mask(const Tensor& mask, const Shape& shape) {
  Tensor bits = Tensor::zeros(DType::i32, {shape[0], shape[1], words_of_keys(shape[1])});
  for (std::int64_t row = 0; row < shape[0] * shape[1]; ++row) {
    for (std::int64_t key = 0; key <= row % shape[1]; ++key) {
      if (mask.data<std::int32_t>()[row * shape[1] + key] != 0) set_key(bits, row, key);
    }
  }
  return bits;
}

// The bits of a list i32 [B,S,K], up to each query's own key.
Tensor bits_of_list(const Tensor& listed, const Shape& shape) {
  Tensor bits = Tensor::zeros(DType::i32, {shape[0], shape[1], words_of_keys(shape[1])});
  const Tensor visible = visible_of(listed);
  const std::int64_t most = visible.shape().back();
  for (std::int64_t i = 0; i < visible.size(); ++i) {
    if (const std::int32_t key = visible.data<std::int32_t>()[i]; key >= 0) set_key(bits, i / most, key);
  }
  return bits;
}

Tensor read_keys(const HubWeights& stored, std::int64_t layer, const Shape& shape) {
  const std::string mask = fmt::format("indexer.{}.keys", layer),
                    list = fmt::format("indexer.{}.chosen", layer);
  if (stored.contains(mask)) {
    const Tensor keys = stored.read(mask);
    require_shape(stored, mask, keys, {shape[0], shape[1], shape[1]});
    return bits_of_mask(keys, shape);
  }
  if (!stored.contains(list)) return {};
  const Tensor keys = stored.read(list);
  require_shape(stored, list, keys, {shape[0], shape[1], keys.rank() == 3 ? keys.dim(2) : 0});
  return bits_of_list(keys, shape);
}

bool has_indexer(const ModelConfig& model, std::int64_t layer) {
  const LayerSpec& spec = model.layer(layer);
  return spec.attention >= 0 && model.attention_of(spec).has_indexer();
}

class ReferenceTape : public RoutingTape {
 public:
  ReferenceTape(std::shared_ptr<const ReferenceChoices> choices, const ModelConfig& model, Gather& gather)
      : choices_(std::move(choices)), model_(model), gather_(gather) {}

  Tensor replay(const Context& context, std::int64_t, std::int64_t layer, std::int64_t first_row,
                const ArrayInfo& logits) override {
    const auto found = choices_->experts.find(layer);
    if (found == choices_->experts.end()) return {};
    return block_of(context, found->second.slice_rows(first_row, first_row + logits.shape[0]),
                    logits.sharding);
  }

  void record(Context& context, std::int64_t, std::int64_t layer, std::int64_t, const Array& logits,
              const Array& bias, const Routing& routing) override {
    if (!choices_->experts.contains(layer)) return;
    put_tie_widths(context, gather_, model_.moe_of(model_.layer(layer)), layer, logits, bias, routing);
  }

  Tensor replay_keys(const Context& context, std::int64_t layer, const ArrayInfo& queries) override {
    const auto found = choices_->keys.find(layer);
    if (found == choices_->keys.end()) return {};
    const Tensor& all = found->second;
    const Sharding tokens = of_tokens(queries);
    return slice_block(all, local_offset(*context.mesh, context.rank, all.shape(), tokens),
                       local_shape(*context.mesh, all.shape(), tokens));
  }

  void record_keys(const Context& context, std::int64_t layer, const ArrayInfo& queries,
                   const Tensor& ties) override {
    gather_.put(context, fmt::format("key_ties.{}", layer),
                make_leaf(ties, {queries.shape[0], queries.shape[1], 2}, of_tokens(queries), false));
  }

 private:
  static Sharding of_tokens(const ArrayInfo& x) { return {{x.sharding.dims[0], x.sharding.dims[1], {}}, {}}; }

  std::shared_ptr<const ReferenceChoices> choices_;
  const ModelConfig& model_;
  Gather& gather_;
};

}  // namespace

Tensor visible_of(const Tensor& listed) {
  Tensor visible(DType::i32, listed.shape());
  const std::int64_t most = listed.shape().back(), queries = listed.shape()[1];
  for (std::int64_t row = 0; row < listed.size() / most; ++row) {
    const std::int32_t* const from = listed.data<std::int32_t>() + row * most;
    std::int32_t* const to = visible.data<std::int32_t>() + row * most;
    std::fill_n(to, most, -1);
    std::copy_if(from, from + most, to, [&](std::int32_t key) { return 0 <= key && key <= row % queries; });
  }
  return visible;
}

ReferenceChoices read_choices(const HubWeights& stored, const ModelConfig& model, const Shape& shape) {
  ReferenceChoices choices;
  for (std::int64_t layer = 0; layer < model.layers; ++layer) {
    const std::string name = fmt::format("router.{}.indices", layer);
    if (model.layer(layer).has_experts() && stored.contains(name)) {
      const MoeConfig& moe = model.moe_of(model.layer(layer));
      const Tensor experts = stored.read(name);
      require_shape(stored, name, experts, {shape[0], shape[1], moe.slots});
      check_experts(stored, name, experts, moe.experts);
      choices.experts[layer] = experts;
    }
    if (!has_indexer(model, layer)) continue;
    if (Tensor keys = read_keys(stored, layer, shape); keys.defined()) choices.keys[layer] = std::move(keys);
  }
  return choices;
}

std::shared_ptr<RoutingTape> replay_of(std::shared_ptr<const ReferenceChoices> choices,
                                       const ModelConfig& model, Gather& gather) {
  return std::make_shared<ReferenceTape>(std::move(choices), model, gather);
}

Ties expert_ties(const Tensor& ties) {
  const std::span<const float> widths = ties.span<float>();
  const auto different = std::ranges::count_if(widths, [](float width) { return width > 0; });
  return {different, ties.size(), static_cast<double>(*std::ranges::max_element(widths))};
}

Ties key_ties(const Tensor& ties, const Tensor& replayed) {
  Ties result;
  const std::span<const float> numbers = ties.span<float>();
  for (std::size_t i = 0; i < numbers.size(); i += 2) {
    result.different += static_cast<std::int64_t>(numbers[i]);
    result.widest = std::max(result.widest, static_cast<double>(numbers[i + 1]));
  }
  for (const std::int32_t word : replayed.span<std::int32_t>())
    result.choices += std::popcount(static_cast<std::uint32_t>(word));
  return result;
}

}  // namespace switchyard
