// `switchyard verify` replays the choices of a case's reference; cases of forward values alone; bounds of a
// case.
#include <functional>

#include "damaged_case.h"

namespace switchyard::verify_test {
namespace {

using Tensors = std::map<std::string, Tensor>;

class ReplayedCase : public DamagedCase {
 protected:
  static void rewrite(const fs::path& file, const std::function<void(Tensors&)>& change) {
    Tensors tensors;
    std::map<std::string, std::string> metadata;
    {
      const SafetensorsFile stored = SafetensorsFile::open(file);
      for (const auto& item : stored.entries()) tensors[item.first] = stored.read(item.first);
      metadata = stored.metadata();
    }
    change(tensors);
    write_safetensors(file, tensors, metadata);
  }
  // A copy for the pass alone: generation and training replay nothing.
  fs::path copy_of_pass(const std::string& name) {
    const fs::path folder = copy(name);
    fs::remove(folder / "trajectory.json");
    fs::remove(folder / "generate.json");
    return folder;
  }
  static void expect_said(const std::vector<std::string>& args, const std::string& part) {
    const Outcome outcome = verify(args);
    EXPECT_EQ(outcome.status, 0) << outcome.out << outcome.err;
    EXPECT_NE(outcome.out.find(part), std::string::npos) << outcome.out;
  }
};

// Token 17 chooses experts 1 and 3 of layer 2; expert 2 is 0.00082429 behind, the next closest choice 0.006.
constexpr const char* kBias = "model.layers.2.mlp.expert_bias";
constexpr float kBiasOfTie = 0.035347383f + 0.00082429f;

TEST_F(ReplayedCase, ANearTieOfExpertsIsReplayedAndCounted) {
  const fs::path folder = copy_of_pass("hf/hyv3-small");
  expect_said({folder}, "all 48 choices of experts are the reference's");
  change(folder / "model.safetensors", kBias, 2, kBiasOfTie + 1e-6f);
  const std::string said = "1 of 48 choices of experts is not the reference's";
  for (const char* layout : {"ranks=1", "ranks=2", "ranks=2 ici_expert_parallelism=2"}) {
    std::istringstream words(layout);
    std::vector<std::string> args{folder};
    for (std::string word; words >> word;) args.push_back(word);
    expect_said(args, said);
  }
}

TEST_F(ReplayedCase, AnotherChoiceOfExpertsWithAWideGapIsADifference) {
  const fs::path folder = copy_of_pass("hf/hyv3-small");
  change(folder / "model.safetensors", kBias, 2, kBiasOfTie + 1e-3f);
  expect_difference({folder}, "layer 2, router.2.indices");
  expect_difference({folder, "--tolerance", "0.1"}, "layer 2, router.2.indices");
  write(folder / "bounds.json", R"({"choices": 0.1})");
  expect_said({folder}, "1 of 48 choices of experts");
}

TEST_F(ReplayedCase, ChoicesThatNoRouterMakesAreRefused) {
  const fs::path folder = copy_of_pass("hf/hyv3-small"), io = folder / "io.safetensors";
  const auto set = [&](std::int32_t first, std::int32_t second) {
    rewrite(io, [&](Tensors& tensors) {
      const auto ids = tensors.at("router.1.indices").span<std::int32_t>();
      ids[0] = first, ids[1] = second;
    });
  };
  set(0, 4);
  expect_refusal({folder}, "different experts below 4 for each token, got 0 4");
  set(2, 2);
  expect_refusal({folder}, "got 2 2");
  rewrite(io, [](Tensors& tensors) {
    tensors.at("router.1.indices") = Tensor::zeros(DType::i32, {2, 24, 3});
  });
  expect_refusal({folder}, "router.1.indices of int32 [2,24,2]");
}

// With weights of 0 all scores are equal: the indexer chooses the first keys, and the reference's are ties.
TEST_F(ReplayedCase, TiesOfKeysAreReplayedAndCounted) {
  const fs::path folder = copy_of_pass("hf/glm52-small");
  rewrite(folder / "model.safetensors", [](Tensors& tensors) {
    for (float& weight : tensors.at("model.layers.0.self_attn.indexer.weights_proj.weight").span<float>())
      weight = 0;
  });
  for (const char* layout : {"ranks=1", "ranks=2", "ranks=2 ici_context_parallelism=2"}) {
    std::istringstream words(layout);
    std::vector<std::string> args{folder};
    for (std::string word; words >> word;) args.push_back(word);
    expect_said(args, "of 220 choices of keys are not the reference's, the widest 0 from a tie");
  }
}

TEST_F(ReplayedCase, AnotherChoiceOfKeysWithAWideGapIsADifference) {
  const fs::path folder = copy_of_pass("hf/glm52-small"), io = folder / "io.safetensors";
  // The last query of the first row: one key less, then another one in its place.
  const auto set = [&](std::size_t slot, std::int32_t key) {
    rewrite(io, [&](Tensors& tensors) {
      tensors.at("indexer.0.chosen").span<std::int32_t>()[23 * 5 + slot] = key;
    });
  };
  std::set<std::int32_t> chosen;
  {
    const Tensor listed = SafetensorsFile::open(io).read("indexer.0.chosen");
    for (std::size_t slot = 0; slot < 5; ++slot) chosen.insert(listed.span<std::int32_t>()[23 * 5 + slot]);
  }
  ASSERT_EQ(chosen.size(), 5u);
  set(4, -1);
  expect_difference({folder}, "layer 0, indexer.0.chosen");
  std::int32_t other = 0;
  while (chosen.contains(other)) ++other;
  set(4, other);
  expect_difference({folder}, "layer 0, indexer.0.chosen");
}

// A mask and a list of the same choice are read alike.
TEST_F(ReplayedCase, ListsStandBesideMasks) {
  const fs::path folder = copy_of_pass("hf/deepseek32-tiny"), io = folder / "io.safetensors";
  const auto add_list = [&](std::int32_t last) {
    rewrite(io, [&](Tensors& tensors) {
      const Tensor& mask = tensors.at("indexer.0.keys");
      Tensor list(DType::i32, {2, 32, 8});
      for (std::int64_t row = 0; row < 64; ++row) {
        std::int32_t* const out = list.data<std::int32_t>() + row * 8;
        std::fill_n(out, 8, -1);
        for (std::int32_t key = 0, at = 0; key < 32; ++key)
          if (mask.data<std::int32_t>()[row * 32 + key] != 0) out[at++] = key;
      }
      if (last >= -1) list.data<std::int32_t>()[list.size() - 1] = last;
      tensors["indexer.0.chosen"] = list;
    });
  };
  add_list(-2);
  expect_pass({folder}, "");
  add_list(-1);
  expect_difference({folder}, "layer 0, indexer.0.chosen");
}

TEST_F(ReplayedCase, ACaseWithoutGradientsComparesForwardValuesAndSaysSo) {
  const fs::path folder = copy_of_pass("hf/qwen3moe-tiny"), io = folder / "io.safetensors";
  rewrite(io, [](Tensors& tensors) {
    std::erase_if(tensors, [](const auto& item) {
      return item.first.starts_with("grad.") && item.first != "grad.model.norm.weight";
    });
  });
  expect_refusal({folder}, "grad.");  // some of them are missing
  rewrite(io, [](Tensors& tensors) { tensors.erase("grad.model.norm.weight"); });
  expect_said({folder}, "forward values only");
  expect_said({folder, "ranks=2", "ici_pipeline_parallelism=2"}, "forward values only");
  const std::string file = folder_ / "report.json";
  EXPECT_EQ(verify({folder, "--json", file}).status, 0);
  const auto item = nlohmann::json::parse(text_of(file)).at("cases").at(0);
  EXPECT_NE(item.at("remarks").at(0).get<std::string>().find("no gradients"), std::string::npos);
  rewrite(io, [](Tensors& tensors) { tensors.erase("loss"); });
  expect_refusal({folder}, "loss");  // targets without a loss
  rewrite(io, [](Tensors& tensors) { tensors.erase("targets"); });
  expect_said({folder}, "forward values only");
  change(io, "logits", 5, 9.0f);
  expect_difference({folder}, "logits");
}

TEST_F(ReplayedCase, BoundsOfACaseAreHonoured) {
  const fs::path folder = copy_of_pass("hf/llama3-rope-tiny"), file = folder / "bounds.json";
  write(file, R"({"logits": 1e-12})");
  expect_difference({folder}, "logits");
  expect_said({folder, "--tolerance", "1e-3"}, "pass");
  change(folder / "io.safetensors", "logits", 5, 9.0f);
  write(file, R"({"logits": 10, "hidden": 2e-5, "router weights": 1e-5, "loss": 1e-5, "gradients": 1e-4,
                  "loss in training": 1e-4, "gradient norm in training": 1e-3, "choices": 1e-5})");
  expect_said({folder}, "bounds of " + file.string());
  expect_difference({folder, "--tolerance", "1e-3"}, "logits");
}

TEST_F(ReplayedCase, WrongBoundsAreRefused) {
  const fs::path folder = copy_of_pass("hf/llama3-rope-tiny"), file = folder / "bounds.json";
  const std::pair<const char*, const char*> wrong[] = {
      {"[1]", "expected an object"},
      {"{", "bounds.json"},
      {R"({"logit": 1})", "\"logit\" is no kind of value; the kinds are choices, gradient norm"},
      {R"({"logits": "x"})", "logits: expected a positive number, got \"x\""},
      {R"({"logits": 0})", "expected a positive number, got 0"},
      {R"({"hidden": -1e-5})", "expected a positive number, got -1e-05"},
      {R"({"loss": null})", "expected a positive number, got null"},
  };
  for (const auto& [text, part] : wrong) {
    write(file, text);
    expect_refusal({folder}, part);
    expect_refusal({folder, "--tolerance", "1"}, part);
  }
}

}  // namespace
}  // namespace switchyard::verify_test
