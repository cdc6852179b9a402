#include "config/declaration.h"
#include "core/error.h"
#include "core/json_file.h"
#include "engine/command_config.h"
#include "engine/engine_impl.h"

namespace switchyard {

Settings Settings::parse(const std::vector<std::string>& arguments) {
  Settings settings;
  settings.checked_ = std::make_shared<const Checked>(
      Checked{config_to_run("settings", launch_from_environment().processes, arguments)});
  return settings;
}

std::string Settings::value(std::string_view key) const {
  const nlohmann::json all = checked_->config.resolved();
  const auto found = all.find(std::string(key));
  if (found == all.end()) {
    const std::string nearest = nearest_key(key);
    fail_usage("[engine] unknown key {}{}{}", key, nearest.empty() ? "" : "; the nearest known key is ",
               nearest);
  }
  return found->is_string() ? found->get<std::string>() : found->dump();
}

std::string Settings::json() const {
  return checked_->config.resolved().dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace switchyard
