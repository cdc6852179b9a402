// The engine's adapters of texts.
#include <algorithm>
#include <utility>

#include "config/declaration.h"
#include "core/error.h"
#include "engine/engine_impl.h"

namespace switchyard {

std::shared_ptr<const texts::TextAdapter> Engine::Impl::adapter_of(const char* what,
                                                                   const std::string& name) const {
  if (name.empty()) return nullptr;
  const std::scoped_lock lock(adapters_mutex);
  std::vector<std::string> names;
  for (const auto& adapter : adapters) {
    if (adapter->name == name) return adapter;
    names.push_back(adapter->name);
  }
  fail_usage("[engine] {}: no adapter is called {}{}", what, name, nearest_hint(name, names));
}

void Engine::Impl::change_adapters(const WeightChange& change) {
  if (changing == nullptr)
    changing = std::make_unique<ChangingWeights>(
        on_ranks, [](const std::string&) -> ModelOnRanks { fail_usage("[engine] expected an adapter"); });
  if (change.kind == WeightChange::Kind::adapter) on_first_process([&] { changing->prepare(change); });
  std::string problem;
  loop->run([&](Context& context) {
    loop_of_texts(context);
    RankState& own = *state(context);
    const std::string why = changing->apply(context, *own.of_texts, *own.generator, change);
    if (speaks(context)) problem = why;
  });
  if (!problem.empty()) fail_usage("{}", problem);
}

void Engine::add_adapter(const std::string& name, const std::string& folder) {
  Impl& own = *impl_;
  own.require_layout(own.text_rows);
  const std::scoped_lock lock(own.adapters_mutex);
  const auto refuse = [&](const std::string& why) { fail_usage("[engine] add_adapter: {}", why); };
  if (own.model.adapter != nullptr) refuse("the model has an adapter of its own; open it without");
  if (name.empty()) refuse("expected a name, got none");
  if (std::ranges::any_of(own.adapters, [&](const auto& one) { return one->name == name; }))
    refuse(fmt::format("{} is there already: remove it first", name));
  const std::int64_t places = own.config.get_int("lora_slots");
  std::int32_t number = 1;
  while (std::ranges::any_of(own.adapters, [&](const auto& one) { return one->number == number; })) ++number;
  if (number > places) refuse(fmt::format("all {} places of lora_slots are taken", places));
  const WeightChange change{
      .serial = ++own.changes, .kind = WeightChange::Kind::adapter, .path = folder, .number = number};
  own.change_adapters(change);
  own.adapters.push_back(std::make_shared<const texts::TextAdapter>(
      texts::TextAdapter{.name = name, .number = number, .version = change.serial}));
}

void Engine::remove_adapter(const std::string& name) {
  Impl& own = *impl_;
  const std::int32_t number = [&] {
    if (name.empty()) fail_usage("[engine] remove_adapter: expected a name, got none");
    return own.adapter_of("remove_adapter", name)->number;
  }();
  const std::scoped_lock lock(own.adapters_mutex);
  {
    const std::scoped_lock texts_lock(own.texts_mutex);
    if (own.streams > 0) fail_usage("[engine] remove_adapter: texts are being made, which may have {}", name);
  }
  own.change_adapters({.serial = ++own.changes, .kind = WeightChange::Kind::drop_adapter, .number = number});
  std::erase_if(own.adapters, [&](const auto& one) { return one->name == name; });
}

std::vector<std::string> Engine::adapters() const {
  const std::scoped_lock lock(impl_->adapters_mutex);
  std::vector<std::string> names;
  for (const auto& adapter : impl_->adapters) names.push_back(adapter->name);
  return names;
}

}  // namespace switchyard
