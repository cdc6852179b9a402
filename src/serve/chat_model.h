// A model's files and settings say this about its chats.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "config/config.h"
#include "serve/served_model.h"

namespace switchyard::serve {

// The folder's name, or else the model's name. `weights`: the folder or file with the weights.
std::string name_of_model(const Config& config, const std::filesystem::path& weights);

// Null where the model has no chat template. Error(usage).
std::shared_ptr<ChatModel> chat_model_of(const Config& config, const std::filesystem::path& weights);

}  // namespace switchyard::serve
