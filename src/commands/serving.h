// Serving: the model on its ranks, the limits and the chat's settings that `serve` and `chat` share.
// run_serving: the loop that answers texts.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "commands/commands.h"
#include "core/startup.h"
#include "engine/changing_weights.h"
#include "engine/model_to_run.h"
#include "generate/deterministic_batches.h"
#include "serve/served_model.h"
#include "texts/loop.h"

namespace switchyard {

struct Serving {
  ModelOnRanks run;
  texts::Limits limits;
  serve::ServedModel served;
  std::shared_ptr<ChangingWeights> changing;
  bool evicts;                                         // Generator
  std::unique_ptr<RowIndependence> independence = {};  // of deterministic_batches=true
};

// Options of the command line that say how a model chats.
inline constexpr const char* kChatOptions[] = {"--tool-format", "--reasoning-format",
                                               "--trust-request-template"};

// Opens the model that the settings name and reads how it is served, with the words of
// commands/sampling_words.h for what requests leave out. Error(usage), also where the machine has not enough
// memory. `slots`: texts at once where the settings do not say.
Serving make_serving(const std::string& command, Processes& processes, const Options& options,
                     std::span<const std::string> settings, std::int64_t slots);

// A program does this while it serves, on process 0; functions may be empty.
struct ServingHooks {
  Tell tell = {};                                                         // gets notes
  std::function<void(std::int64_t read, std::int64_t all)> loading = {};  // bytes of weights
  std::function<void()> before_texts = {};         // on each rank, once weights are loaded
  std::function<void(const Startup&)> ready = {};  // then, with the seconds since the program's start
  std::function<void()> between = {};              // behind each call of the model
};

// Loads the weights and makes the inbox's texts until it is closed and none runs.
void run_serving(const Serving& serving, Processes& processes, texts::Inbox& inbox, texts::Observer& observer,
                 const ServingHooks& hooks);

}  // namespace switchyard
