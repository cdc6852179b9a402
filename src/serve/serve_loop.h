// The loop in which all ranks of a session serve texts:
// rank 0 has the batcher and tells the others each call.
#pragma once

#include <functional>

#include "autograd/context.h"
#include "generate/generator.h"
#include "metrics/append_file.h"
#include "serve/batcher.h"

namespace switchyard::serve {

// The part of the loop that only rank 0 has.
struct ServeHead {
  Batcher& batcher;
  RequestQueue& queue;
  Statistics& statistics;
  std::function<void()> between = [] {};  // called between calls of the model, and while there are none
  // Gets a record of each text that ends (routing/routing_file.h). Needs Generator::record_routing().
  AppendFile* routing_record = nullptr;
};

// Serves until the queue is closed and all running texts have ended.
// `head` is null on all ranks but 0. Collective.
void run_serve_loop(Context& context, const ModelConfig& model, Generator& generator, ServeHead* head);

}  // namespace switchyard::serve
