// Engine: all ranks of a session making texts; rank 0 has the batcher and tells the others what comes next.
#pragma once

#include <functional>
#include <mutex>
#include <vector>

#include "autograd/context.h"
#include "generate/generator.h"
#include "metrics/append_file.h"
#include "serve/batcher.h"

namespace switchyard::serve {

// Rows that every expert has got since the start, padding left out. Any thread.
class ExpertRows {
 public:
  struct Layer {
    std::int64_t layer;
    std::vector<double> rows;
  };
  void add(std::span<const double> rows, std::span<const std::int64_t> layers, std::size_t experts);
  std::vector<Layer> layers() const;

 private:
  mutable std::mutex mutex_;
  std::vector<Layer> layers_;
};

// Rank 0's part of it.
struct EngineHead {
  Batcher& batcher;
  ExpertRows& experts;
  std::function<void()> between = [] {};  // called between steps and while nothing is to do
  // Gets a record of each text that ends (routing/routing_file.h); the generator records, then.
  AppendFile* routing_record = nullptr;
};

// Until the batcher is done. `head` is null on all ranks but 0. Collective.
void run_engine(Context& context, const ModelConfig& model, Generator& generator, EngineHead* head);

}  // namespace switchyard::serve
