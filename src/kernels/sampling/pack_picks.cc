#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "core/error.h"
#include "kernels/sampling/likely_tokens.h"
#include "kernels/sampling/packed_pick.h"

namespace switchyard {
namespace {

constexpr std::size_t kUnit = 8;

// Bytes one after the other, each list at a multiple of kUnit.
class Packer {
 public:
  // Returns the place of the list, in units.
  template <typename T>
  std::int32_t add(std::span<const T> list) {
    const std::size_t at = bytes_.size();
    bytes_.resize(at + (list.size_bytes() + kUnit - 1) / kUnit * kUnit);
    if (!list.empty()) std::memcpy(bytes_.data() + at, list.data(), list.size_bytes());
    CHECK(bytes_.size() / kUnit <= std::numeric_limits<std::int32_t>::max(), "picks of {} bytes",
          bytes_.size());
    return static_cast<std::int32_t>(at / kUnit);
  }
  template <typename T>
  void put_first(std::span<const T> list) {
    std::memcpy(bytes_.data(), list.data(), list.size_bytes());
  }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  std::vector<std::byte> bytes_;
};

// The order in which the strategy looks for the token, and the tokens that it keeps.
void set_strategy(const SamplingConfig& config, PackedPick& packed) {
  using enum SamplingStrategy;
  if (config.strategy == greedy || config.temperature == 0) {
    packed.order = PickOrder::top;
    return;
  }
  packed.factor = packed.share_factor = factor_of(config.temperature);
  if (config.min_p > 0) packed.least = std::log(config.min_p);
  packed.order = config.strategy == weighted ? PickOrder::by_id : PickOrder::by_rank;
  if (config.strategy == weighted) return;
  if (config.strategy != nucleus && config.top_k < packed.vocab)
    packed.top_k = static_cast<std::int32_t>(config.top_k);
  if (config.strategy != topk) packed.share = std::min(config.nucleus_p, 1.0);
  if (config.strategy == nucleus) packed.share_factor = 1;
}

PackedPick numbers_of(const TokenPick& pick) {
  const SamplingConfig& config = *pick.config;
  PackedPick packed{.factor = 1,
                    .share = 1,
                    .share_factor = 1,
                    .least = -std::numeric_limits<double>::infinity(),
                    .repetition_penalty = config.repetition_penalty,
                    .frequency_penalty = config.frequency_penalty,
                    .presence_penalty = config.presence_penalty,
                    .row = pick.row,
                    .vocab = static_cast<std::int32_t>(pick.vocab),
                    .weight_bits = weight_bits(static_cast<std::size_t>(pick.vocab)),
                    .order = PickOrder::given,
                    .given = pick.given.value_or(0),
                    .top_k = 0,
                    .uniform = pick.uniform,
                    .most_probable = pick.most_probable,
                    .changes = 0,
                    .bits_at = 0,
                    .bits = 0,
                    .seen_at = 0,
                    .seen = 0,
                    .bias_at = 0,
                    .biases = 0};
  if (!pick.given) set_strategy(config, packed);
  return packed;
}

}  // namespace

Tensor pack_picks(std::span<const TokenPick> picks) {
  Packer packer;
  std::vector<PackedPick> all;
  for (const TokenPick& pick : picks) all.push_back(numbers_of(pick));
  packer.add(std::span<const PackedPick>(all));
  std::vector<PackedSeen> seen;
  std::vector<PackedBias> biases;
  for (std::size_t i = 0; i < picks.size(); ++i) {
    const TokenPick& pick = picks[i];
    if (pick.given) continue;
    PackedPick& packed = all[i];
    packed.bits = static_cast<std::int32_t>(pick.bits.size());
    packed.bits_at = packer.add(pick.bits);
    seen.clear();
    if (pick.config->uses_history()) {
      for (const SeenToken& s : pick.seen) seen.push_back({s.token, static_cast<std::int32_t>(s.made)});
    }
    packed.seen = static_cast<std::int32_t>(seen.size());
    packed.seen_at = packer.add(std::span<const PackedSeen>(seen));
    biases.clear();
    for (const LogitBias& b : pick.config->logit_bias) biases.push_back({b.bias, b.token});
    packed.biases = static_cast<std::int32_t>(biases.size());
    packed.bias_at = packer.add(std::span<const PackedBias>(biases));
    packed.changes = !pick.bits.empty() || !seen.empty() || !biases.empty();
  }
  packer.put_first(std::span<const PackedPick>(all));
  const std::vector<std::byte>& bytes = packer.bytes();
  Tensor packed(DType::i32, {static_cast<std::int64_t>(bytes.size() / sizeof(std::int32_t))});
  if (!bytes.empty()) std::memcpy(packed.raw(), bytes.data(), bytes.size());
  return packed;
}

}  // namespace switchyard
