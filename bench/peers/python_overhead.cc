// The C++ side of python_overhead.py: an engine that does a work for each line of standard input, and prints
// the seconds that it took. Its arguments are the engine's settings.
#include <chrono>
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "switchyard/engine.h"

using namespace switchyard;

int main(int argc, char** argv) {
  const std::vector<std::string> settings(argv + 1, argv + argc);
  Engine engine = Engine::open(Settings::parse(settings));
  // The rows are those of Worker.rows() in python_overhead.py.
  const auto ids = [&](std::int64_t rows, std::int64_t length) {
    TokenBatch batch{rows, length, {}};
    for (std::int64_t i = 0; i < rows * length; ++i)
      batch.tokens.push_back(static_cast<std::int32_t>(i * 31 % engine.vocabulary()));
    return batch;
  };
  std::vector<std::vector<std::int32_t>> prompts;
  for (std::int32_t i = 0; i < 8; ++i) prompts.push_back(std::vector<std::int32_t>(16, i + 1));
  const Sampling sampling{.most_tokens = 64, .ends_by_model = false};
  double sum = 0;  // nothing is left out
  std::cout << "ready" << std::endl;
  for (std::string work; std::getline(std::cin, work);) {
    const auto begin = std::chrono::steady_clock::now();
    if (work == "forward") sum += engine.forward(ids(8, 512)).values.back();
    if (work == "train_step") sum += engine.train_step({ids(8, 128)}).loss;
    if (work == "generate") sum += engine.complete({prompts[0]}, sampling)[0].tokens.back();
    if (work == "stream")
      for (const std::int32_t token : engine.generate(prompts[0], sampling)) sum += token;
    if (work == "eight") sum += engine.complete(prompts, sampling)[7].tokens.back();
    std::cout << std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() << std::endl;
  }
  return sum == 0;
}
