// A small model for the tests of the public Engine.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/testing.h"
#include "switchyard/engine.h"

namespace switchyard {

using Arguments = std::vector<std::string>;

inline Arguments tiny(const Arguments& more = {}) {
  Arguments keys{"decoder_block=mixtral",
                 "base_emb_dim=32",
                 "base_num_query_heads=4",
                 "base_num_kv_heads=2",
                 "head_dim=8",
                 "base_mlp_dim=24",
                 "base_moe_mlp_dim=24",
                 "base_num_decoder_layers=2",
                 "num_experts=4",
                 "num_experts_per_tok=2",
                 "vocab_size=64",
                 "max_target_length=16",
                 "dtype=float32",
                 "learning_rate=0.01",
                 "steps=10",
                 "per_device_batch_size=4",
                 "init_weights_seed=3"};
  keys.insert(keys.end(), more.begin(), more.end());
  return keys;
}

inline Engine open(const Arguments& more = {}) {
  return Engine::open(Settings::parse(tiny(more)));
}

inline TokenBatch batch_of(std::int64_t rows, std::int64_t length) {
  TokenBatch batch{rows, length, {}};
  for (std::int64_t i = 0; i < rows * length; ++i)
    batch.tokens.push_back(static_cast<std::int32_t>((i * 7 + i / 3) % 64));
  return batch;
}

template <typename Call>
void expect_error(const Call& call, const std::string& words) {
  try {
    call();
    ADD_FAILURE() << "no error: " << words;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::usage);
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
  }
}

inline const Arguments kMesh{"ranks=4", "ici_expert_parallelism=2", "ici_fsdp_parallelism=2",
                             "per_device_batch_size=1"};

}  // namespace switchyard
