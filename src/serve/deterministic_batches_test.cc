// With deterministic_batches a text has the same tokens and the same log probabilities, bit for bit, alone
// and among others, in every format of weights.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <bit>
#include <random>
#include <thread>

#include "core/half.h"
#include "core/packed_format.h"
#include "engine/session.h"
#include "kernels/packed/packed_block.h"
#include "kernels/registry/isa.h"
#include "kernels/registry/row_independence.h"
#include "models/packed_parameters.h"
#include "serve/statistics.h"
#include "texts/loop.h"

namespace switchyard::serve {
namespace {

using nlohmann::json;
using Keys = std::map<std::string, json>;

constexpr std::int64_t kBytes = 257;      // ids of the tokenizer
constexpr std::int64_t kSlotTokens = 96;  // of a prompt and its text
constexpr std::int64_t kChunk = 16;

// Widths that are whole blocks of all formats: those of four groups count 128 inputs.
Keys keys_of_model(const std::string& block) {
  Keys keys{{"vocab_size", 272},
            {"base_emb_dim", 128},
            {"base_mlp_dim", 128},
            {"base_moe_mlp_dim", 128},
            {"num_experts", 8},
            {"num_experts_per_tok", 2},
            {"init_weights_seed", 3},
            {"max_target_length", kSlotTokens},
            {"decoder_block", block},
            {"base_num_decoder_layers", 2},
            {"base_num_query_heads", 4},
            {"base_num_kv_heads", 2},
            {"head_dim", 32}};
  if (block == "deepseek") {
    keys["base_num_kv_heads"] = 4;
    keys.insert({{"first_num_dense_layers", 1},
                 {"attention_type", "mla"},
                 {"q_lora_rank", 32},
                 {"kv_lora_rank", 32},
                 {"qk_nope_head_dim", 16},
                 {"qk_rope_head_dim", 16},
                 {"v_head_dim", 32},
                 {"shared_experts", 1},
                 {"rope_type", "default"}});
    keys.erase("head_dim");
  }
  if (block == "qwen3_next") {
    keys["base_num_decoder_layers"] = 3;
    keys.insert({{"inhomogeneous_layer_cycle_interval", 3},
                 {"use_qk_norm", true},
                 {"gdn_num_key_heads", 2},
                 {"gdn_num_value_heads", 4},
                 {"gdn_key_head_dim", 32},
                 {"gdn_value_head_dim", 32},
                 {"gdn_chunk_size", 4},
                 {"shared_experts", 1},
                 {"shared_expert_mlp_dim", 128}});
  }
  return keys;
}

// Blocks of a format that weights cannot be packed into: drawn numbers of about the size of weights.
Tensor drawn_blocks(const ParameterSpec& spec) {
  std::mt19937 random(static_cast<std::uint32_t>(std::hash<std::string>()(spec.name)));
  const PackedFormat& format = packed_format(spec.dtype);
  const Tensor blocks(spec.dtype, spec.shape);
  std::byte* block = blocks.raw();
  for (std::int64_t b = 0; b < num_elements(spec.shape); ++b, block += size_of(spec.dtype)) {
    for (std::int64_t output = 0; output < kBlockOutputs; ++output) {
      PackedGroup group;
      const float scale = 0.1f * (1 + static_cast<float>(random() % 8)) / static_cast<float>(format.numbers);
      group.scale =
          spec.dtype == DType::packed_fp8 ? std::bit_cast<std::uint32_t>(scale) : float_to_half(scale);
      if (has_offset(spec.dtype)) group.offset = float_to_half(-0.05f);
      for (std::int64_t g = 0; g < groups_of(spec.dtype); ++g) {
        for (auto& number : group.numbers)
          number = static_cast<std::int8_t>(format.least_number +
                                            static_cast<int>(random() % 256) % format.numbers);
        for (auto& factor : group.scale_factors) factor = static_cast<std::int16_t>(1 + random() % 3);
        group.offset_factor = static_cast<std::uint8_t>(1 + random() % 3);
        write_group(spec.dtype, group, block, output, g);
      }
    }
  }
  return blocks;
}

struct Case {
  std::string block = "mixtral", dtype = "bfloat16", weights = "dense", more = "";
  bool deterministic = true;
  std::int64_t vocab = kBytes;
  std::string name() const { return fmt::format("{} {} {} {}", block, dtype, weights, more); }
};

std::vector<std::string> words_of_case(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

struct MadeText {
  std::vector<double> log_probs;  // of its tokens and of the most probable ones
  std::string text;
  std::int64_t cached = 0;
  bool operator==(const MadeText& other) const {
    return log_probs == other.log_probs && text == other.text;  // however it came to be
  }
};

// Texts that are asked for in rounds: those of a round at once.
using Round = std::vector<TextRequest>;

class Server {
 public:
  explicit Server(const Case& of) {
    Keys keys = keys_of_model(of.block);
    keys["dtype"] = of.dtype;
    keys["weight_dtype"] = of.dtype;
    const Config config = Config::from_map(keys, words_of_case(of.more));
    const ModelConfig model = model_config(config);
    limits_ = {.slots = 17,
               .waiting = 8,
               .prompt_chunk = kChunk,
               .checkpoints = 1,
               .deterministic = of.deterministic,
               .drafts = model.predictions > 0 ? 1 : 0,
               .vocab = of.vocab};
    inbox_.emplace(limits_, statistics_);
    session_ = std::thread([this, config, model, of] {
      run_session(config, mesh_from_config(config), [&](Context& context) {
        std::vector<ParameterSpec> specs = parameter_specs(model);
        if (of.weights != "dense") {
          for (const PackedFormat& format : kPackedFormats)
            if (format.name == of.weights) specs = packed_specs(std::move(specs), format.dtype, nullptr);
        }
        const auto fill = [](const ParameterSpec& spec, const Box&) {
          return is_packed(spec.dtype) && !packed_format(spec.dtype).packable ? drawn_blocks(spec) : Tensor();
        };
        const Parameters parameters =
            Parameters::create_from_blocks(context, specs, model.init_seed, fill, nullptr);
        std::optional<RowIndependence> independence;
        if (of.deterministic) independence.emplace();
        Generator generator(context, model, parameters, limits_.slots, kSlotTokens, true,
                            limits_.checkpoints);
        const Loop::Head head{*inbox_, tokenizer_.get(), statistics_};
        Loop loop(generator, limits_, context.comm->rank() == 0 ? &head : nullptr);
        while (loop.step(0.2)) {
        }
      });
    });
  }
  ~Server() {
    inbox_->close();
    session_.join();
  }

  std::vector<MadeText> make(Round round) {
    std::vector<WantedText> wanted;
    for (TextRequest& request : round)
      wanted.push_back({.request = std::move(request), .pieces = std::make_shared<Pieces>()});
    std::vector<std::shared_ptr<Pieces>> all;
    for (const WantedText& text : wanted) all.push_back(text.pieces);
    EXPECT_EQ(inbox_->submit(std::move(wanted)), Inbox::Submitted::yes);
    std::vector<MadeText> made(all.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      for (bool over = false; !over;) {
        for (const Piece& piece : all[i]->take(60)) {
          made[i].text += piece.text;
          made[i].cached += piece.cached_tokens;
          for (const TokenLogProb& token : piece.log_probs) {
            if (token.log_prob) made[i].log_probs.push_back(*token.log_prob);
            for (const auto& other : token.most_probable) made[i].log_probs.push_back(other.second);
          }
          over = over || piece.finish.has_value();
          EXPECT_EQ(piece.problem, "");
        }
      }
    }
    return made;
  }
  const Statistics& statistics() const { return statistics_; }

 private:
  const std::unique_ptr<Tokenizer> tokenizer_ = make_tokenizer("byte", "");
  Limits limits_;
  Statistics statistics_;
  std::optional<Inbox> inbox_;
  std::thread session_;
};

// Prompts of many lengths: of one token, of whole chunks, of one more, and some that begin alike.
Round seventeen_requests() {
  const std::size_t lengths[] = {1, 2, 5, 16, 17, 33, 40, 64, 70, 33, 48, 49, 12, 3, 31, 32, 9};
  Round round;
  std::mt19937 random(5);
  for (std::size_t i = 0; i < std::size(lengths); ++i) {
    TextRequest request{.prompt = {}, .most_tokens = 12, .seed = 7, .log_probs = 3, .ignore_end = true};
    for (std::size_t t = 0; t < lengths[i]; ++t)
      request.prompt.push_back(static_cast<std::int32_t>(random() % 256));
    if (i >= 5 && i <= 11)  // as the sixth begins
      std::copy_n(round.size() > 5 ? round[5].prompt.begin() : request.prompt.begin(), 30,
                  request.prompt.begin());
    if (i % 3 == 1) request.sampling = {SamplingStrategy::composite, 1.3, 0.9, 50};
    round.push_back(std::move(request));
  }
  return round;
}

// How many of the texts differ alone and among the others.
int differing(const Case& of) {
  const Round all = seventeen_requests();
  std::vector<MadeText> alone, together, later;
  const std::size_t compared[] = {0, 1, 4, 5, 6, 8, 9, 11, 16};
  for (const std::size_t i : compared) alone.push_back(Server(of).make({all[i]})[0]);
  Server server(of);
  together = server.make(all);
  later = server.make(all);  // with what the slots remember
  int differ = 0;
  std::int64_t cached = 0;
  for (std::size_t i = 0; i < alone.size(); ++i) {
    EXPECT_FALSE(alone[i].log_probs.empty());
    EXPECT_EQ(alone[i].cached, 0);
    const std::size_t text = compared[i];
    if (!(alone[i] == together[text])) {
      ++differ;
      if (of.deterministic) ADD_FAILURE() << of.name() << ": text " << text << " differs among others";
    }
    if (!(alone[i] == later[text])) {
      ++differ;
      if (of.deterministic) ADD_FAILURE() << of.name() << ": text " << text << " differs later on";
    }
    cached += later[text].cached;
  }
  EXPECT_GT(cached, 0) << of.name();  // gated delta nets and windows have checkpoints
  return differ;
}

TEST(DeterministicBatches, DenseWeights) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    for (const char* block : {"mixtral", "deepseek", "qwen3_next"})
      EXPECT_EQ(differing({.block = block, .dtype = dtype}), 0);
    EXPECT_EQ(differing({.dtype = dtype, .more = "sliding_window_size=6"}), 0);
    EXPECT_EQ(differing({.dtype = dtype, .more = "quantize_kvcache=true"}), 0);
    for (const std::int64_t vocab : {kBytes, std::int64_t{5}})  // drafts are rejected; some are accepted
      EXPECT_EQ(differing({.block = "deepseek", .dtype = dtype, .more = "mtp_num_layers=1", .vocab = vocab}),
                0);
  }
}

TEST(DeterministicBatches, PackedWeights) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    for (const PackedFormat& format : kPackedFormats)
      EXPECT_EQ(differing({.dtype = dtype, .weights = std::string(format.name)}), 0);
  }
}

// Meshes that split no rows.
TEST(DeterministicBatches, Meshes) {
  for (const char* layout : {"ranks=4 ici_tensor_parallelism=4", "ranks=2 ici_pipeline_parallelism=2",
                             "ranks=4 ici_pipeline_parallelism=2 ici_tensor_parallelism=2"})
    EXPECT_EQ(differing({.dtype = "bfloat16", .more = layout}), 0) << layout;
}

// The test can tell: packed weights and fp32 rows go through other kernels in a large batch.
TEST(DeterministicBatches, WithoutTheKeyTextsDiffer) {
  if (active_isa() == Isa::ref) GTEST_SKIP() << "one kernel for all products";
  EXPECT_GT(differing({.dtype = "float32", .weights = "int4", .deterministic = false}), 0);
}

}  // namespace
}  // namespace switchyard::serve
