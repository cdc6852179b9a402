// moe_dispatch_no_expert_sharding switches what moves, as in the reference: expert weights are gathered over
// the expert axis, or tokens go to their experts by all-to-all. Which kinds appear and vanish is compared
// with the reference's compiled step; the counts are ours.
#include <gtest/gtest.h>

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "core/testing.h"
#include "data/dataset.h"
#include "train/trainer.h"

namespace switchyard {
namespace {

using nlohmann::json;

const std::string kGolden = std::string(kSourceFolder) + "/tests/golden/maxtext_collectives/";
constexpr const char* kSwitch = "moe_dispatch_no_expert_sharding";

json read(const std::string& name) {
  std::ifstream file(kGolden + name);
  return json::parse(file);
}

struct Moved {
  std::int64_t calls = 0, bytes = 0;
};
using Kinds = std::map<std::string, Moved>;

// What rank 0 counts over the expert axis in one training step of the reference's model.
Kinds moved(const Config& config) {
  const Mesh mesh = mesh_from_config(config);
  const ModelConfig model = model_config(config);
  const BatchSizes sizes = batch_sizes(config, mesh);
  Kinds result;

  run_session(config, mesh, [&](Context& context) {
    Trainer trainer(context, model, train_config(config, model, 1),
                    Parameters::create(context, parameter_specs(model), 0, nullptr, nullptr));
    const Batch batch = make_synthetic(sizes.step, sizes.sequence, model.vocab)->read(0, sizes.step);
    context.comm->reset_counts();
    trainer.step(0, batch);
    if (context.rank != 0) return;
    for (const auto& count : context.comm->counts()) {
      result[count.kind].calls += count.calls;
      result[count.kind].bytes += count.bytes;
    }
  });
  return result;
}

std::int64_t sign(std::int64_t value) {
  return value > 0 ? 1 : value < 0 ? -1 : 0;
}

TEST(Collectives, SwitchAsTheReferences) {
  const json reference = read("collectives.json");
  std::map<std::string, json> keys = read("mixtral_cf125_ep8.json").at("config");
  keys["ranks"] = 8;
  keys[kSwitch] = false;
  Kinds weights_move = moved(Config::from_map(keys, {}));
  keys[kSwitch] = true;
  Kinds tokens_move = moved(Config::from_map(keys, {}));
  const auto total = [&](const char* value, const std::string& kind) {
    return reference.at(std::string(kSwitch) + "=" + value).at("total").value(kind, std::int64_t{0});
  };
  for (const auto& [theirs, kind] : std::map<std::string, std::string>{
           {"all-gather", "all_gather"}, {"all-to-all", "all_to_all"}, {"all-reduce", "all_reduce"}}) {
    EXPECT_EQ(sign(tokens_move[kind].calls - weights_move[kind].calls),
              sign(total("True", theirs) - total("False", theirs)))
        << kind << ": " << weights_move[kind].calls << " and " << tokens_move[kind].calls;
  }
  EXPECT_EQ(tokens_move["ragged_all_to_all"].calls, 0);

  // What vanishes are the gathers of three weights [8,64,56] of two layers, by forward and by backward, and
  // the scatters of their gradients: 7 of 8 parts, fp32.
  const std::int64_t weight = 7 * 64 * 56 * 4;
  EXPECT_EQ(weights_move["all_gather"].calls - tokens_move["all_gather"].calls, 2 * 3 * 2);
  EXPECT_EQ(weights_move["all_gather"].bytes - tokens_move["all_gather"].bytes, 2 * 3 * 2 * weight);
  EXPECT_EQ(weights_move["reduce_scatter"].bytes - tokens_move["reduce_scatter"].bytes, 2 * 3 * weight);
  // What appears are the places [8 experts, 1 sequence, capacity 10] of 64 values with a weight each: there
  // and back by forward and by backward, and there once more as remat_policy=full makes the layer again.
  const std::int64_t places = 8 * 10 * 7 / 8, there = places * (64 * 4 + 4), back = places * 64 * 4;
  EXPECT_EQ(tokens_move["all_to_all"].bytes - weights_move["all_to_all"].bytes,
            2 * (2 * (there + back) + there));
}

}  // namespace
}  // namespace switchyard
