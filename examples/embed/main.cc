// An example of the library: two engines train three steps, one makes tokens, one is saved, and an error is caught.
#include <switchyard/engine.h>

#include <cstdio>
#include <string>
#include <vector>

using namespace switchyard;

int main(int argc, char** argv) {
  const std::vector<std::string> model = {
      "decoder_block=mixtral",   "base_emb_dim=64",           "base_num_query_heads=4",
      "base_num_kv_heads=2",     "base_mlp_dim=96",           "num_experts=8",
      "num_experts_per_tok=2",   "base_num_decoder_layers=2", "vocab_size=257",
      "tokenizer_type=byte",     "max_target_length=64",      "learning_rate=0.01",
      "per_device_batch_size=4", "warmup_steps_fraction=0",   "dtype=float32"};
  // A second engine of the same model, its experts on two ranks of this process: the same numbers.
  std::vector<std::string> on_a_mesh = model;
  for (const char* setting : {"ranks=2", "ici_expert_parallelism=2", "per_device_batch_size=2"})
    on_a_mesh.push_back(setting);
  try {
    Engine one = Engine::open(Settings::parse(model)), two = Engine::open(Settings::parse(on_a_mesh));

    TrainBatch batch{{.rows = 4, .length = 32, .tokens = {}}};
    const std::vector<std::int32_t> text = one.encode("A switchyard sorts wagons. ");
    for (std::size_t i = 0; i < 4 * 32; ++i) batch.inputs.tokens.push_back(text[i % text.size()]);
    for (int step = 0; step < 3; ++step)
      std::printf("step %d: loss %.4f on one rank, %.4f on two\n", step, one.train_step(batch).loss,
                  two.train_step(batch).loss);

    const std::vector<std::int32_t> prompt = one.encode("A switch");
    TextDecoder decoder = one.text_decoder(prompt);
    std::string made;
    int tokens = 0;
    for (const std::int32_t token : one.generate(prompt, {.most_tokens = 20, .ends_by_model = false})) {
      made += decoder.add(token);  // whole characters
      ++tokens;
    }
    std::printf("%d tokens after \"A switch\": %s\n", tokens, (made + decoder.rest()).c_str());

    const ParameterInfo experts = two.parameter("layers.0.moe.wi_0");
    std::printf("%s: [%lld, %lld, %lld], split over %s\n", experts.name.c_str(), (long long)experts.shape[0],
                (long long)experts.shape[1], (long long)experts.shape[2], experts.axes[0].c_str());

    if (argc > 1) two.save(argv[1]);  // `switchyard generate FOLDER` opens it

    one.generate({99999});  // there is no such token
  } catch (const Error& error) {
    std::printf("caught: %s\n", error.what());
    return 0;
  }
  return 1;
}
