#include "engine/changing_weights.h"

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"
#include "engine/own_adapter.h"
#include "models/pipeline.h"

namespace switchyard {
namespace {

Parameters::FillBlock fill_of_adapter(std::shared_ptr<const PeftAdapter> adapter) {
  return with_adapter_weights(nullptr, std::move(adapter));
}

}  // namespace

std::string to_text(const WeightChange& change) {
  return nlohmann::json::array({change.serial, change.kind, change.path, change.number}).dump();
}

WeightChange change_of_text(const std::string& text) {
  const nlohmann::json parts = nlohmann::json::parse(text);
  return {parts[0], parts[1].get<WeightChange::Kind>(), parts[2], parts[3]};
}

ChangingWeights::ChangingWeights(ModelOnMesh run, Open open) : run_(std::move(run)), open_(std::move(open)) {
  for (const NamedAdapter& named : run_.named) places_.push_back(named.read);
}

std::vector<ParameterSpec> ChangingWeights::specs_of(const std::shared_ptr<const Adapter>& adapter) const {
  ModelConfig model = run_.model;
  model.adapter = adapter;
  std::vector<ParameterSpec> specs =
      adapter == nullptr ? std::vector<ParameterSpec>() : parameter_specs(model);
  std::erase_if(specs, [](const ParameterSpec& spec) { return !spec.of_adapter; });
  return specs;
}

OtherWeights weights_like(const ModelOnMesh& run, const std::shared_ptr<const ModelOnRanks>& model,
                          const std::string& path) {
  if (architecture_hash(model->model) != architecture_hash(run.model))
    fail_usage("[weights] {}: is another model than the one that runs ({} and {})", path,
               architecture_hash(model->model), architecture_hash(run.model));
  if (!model->fill) fail_usage("[weights] {}: expected weights", path);
  std::map<std::string, const ParameterSpec*> theirs;
  for (const ParameterSpec& spec : model->specs) theirs[spec.name] = &spec;
  OtherWeights other;
  for (const ParameterSpec& spec : run.specs) {
    if (spec.of_adapter) continue;
    const auto found = theirs.find(spec.name);
    if (found == theirs.end() || found->second->shape != spec.shape || found->second->dtype != spec.dtype)
      fail_usage("[weights] {}: {}: expected {} {}, got {}", path, spec.name, name_of(spec.dtype),
                 to_string(spec.shape),
                 found == theirs.end()
                     ? "nothing"
                     : fmt::format("{} {}", name_of(found->second->dtype), to_string(found->second->shape)));
    other.specs.push_back(spec);
  }
  other.fill = [model](const ParameterSpec& spec, const Box& block) { return model->fill(spec, block); };
  return other;
}

ChangingWeights::Ready ChangingWeights::read_weights(const WeightChange& change) const {
  OtherWeights other =
      weights_like(run_, std::make_shared<const ModelOnRanks>(open_(change.path)), change.path);
  return {.serial = change.serial,
          .of_adapter = false,
          .adapter = run_.model.adapter,
          .specs = std::move(other.specs),
          .fill = std::move(other.fill)};
}

ChangingWeights::Ready ChangingWeights::read(const WeightChange& change) const {
  if (change.kind == WeightChange::Kind::weights) return read_weights(change);
  Ready ready{.serial = change.serial, .places = places_};
  if (change.kind == WeightChange::Kind::only_adapter) {
    PeftAdapter read = read_adapter_to_run(change.path, run_.config, run_.model);
    if (read.adapter.whole != run_.model.adapter->whole)
      fail_usage("[weights] {}: has other whole weights than the adapter that runs", change.path);
    ready.adapter = std::make_shared<const Adapter>(read.adapter);
    ready.fill = fill_of_adapter(std::make_shared<const PeftAdapter>(std::move(read)));
  } else {
    check_several_adapters(run_.mesh, run_.model);
    const auto place = static_cast<std::size_t>(change.number - 1);
    ready.places.resize(std::max(ready.places.size(), place + 1));
    ready.places[place] = change.kind == WeightChange::Kind::drop_adapter
                              ? nullptr
                              : read_text_adapter(change.path, run_.config, run_.model);
    while (!ready.places.empty() && ready.places.back() == nullptr) ready.places.pop_back();
    ready.adapter = adapters_together(ready.places, run_.model.dtype);
    ready.fill = with_text_adapters(nullptr, ready.places);
  }
  ready.specs = specs_of(ready.adapter);
  return ready;
}

void ChangingWeights::prepare(const WeightChange& change) {
  const std::lock_guard lock(mutex_);
  Ready ready = read(change);
  if (change.kind == WeightChange::Kind::weights) {
    for (const ParameterSpec& spec : ready.specs) ready.fill(spec, {Shape(spec.shape.size()), spec.shape});
  }
  ready_ = std::make_shared<const Ready>(std::move(ready));
}

std::string ChangingWeights::apply(Context& context, Parameters& parameters, Generator& generator,
                                   const WeightChange& change) {
  std::shared_ptr<const Ready> ready;
  {
    const std::lock_guard lock(mutex_);
    if (ready_ == nullptr || ready_->serial != change.serial) {
      Ready own{.serial = change.serial};
      try {
        own = read(change);
      } catch (const Error& error) {
        own.problem = error.what();
      }
      ready_ = std::make_shared<const Ready>(std::move(own));
    }
    ready = ready_;
  }
  std::array<double, 1> failed{ready->problem.empty() ? 0.0 : 1.0};
  sum_over_run(context, failed);
  if (failed[0] > 0)
    return ready->problem.empty() ? "[weights] another process could not read " + change.path
                                  : ready->problem;
  Parameters made =
      Parameters::create_from_blocks(context, stage_specs(ready->specs, context.stage, run_.model),
                                     run_.model.init_seed, ready->fill, nullptr);
  parameters.replace(ready->of_adapter, std::move(made));
  if (ready->of_adapter) generator.follow_adapters(ready->adapter);
  const bool several =
      change.kind == WeightChange::Kind::adapter || change.kind == WeightChange::Kind::drop_adapter;
  if (!several) parameters.raise_version();
  const std::lock_guard lock(mutex_);
  if (several) places_ = ready->places;
  if (ready_ == ready) ready_ = nullptr;  // all ranks have it; files need not stay open
  return "";
}

}  // namespace switchyard
