// The engine writes and restores checkpoints, and makes Hugging Face folders of them.
#include <algorithm>
#include <filesystem>
#include <span>
#include <string_view>
#include <utility>

#include "convert/convert.h"
#include "convert/hub_export.h"
#include "convert/hub_form.h"
#include "convert/resumable_folder.h"
#include "core/error.h"
#include "engine/carried_files.h"
#include "engine/engine_impl.h"
#include "train/checkpointer.h"

namespace switchyard {
namespace {

namespace fs = std::filesystem;

// Error(usage) where something stands at the place already.
void require_free(const char* what, const SavePlace& place) {
  std::error_code error;
  const fs::path path = place.final();
  if (!fs::exists(fs::symlink_status(path, error))) return;
  if (!fs::is_directory(path, error) || !fs::is_empty(path, error))
    fail_usage("[engine] {}: {} exists already; remove it, or name another folder", what, path.string());
}

struct RemovedAtEnd {
  const fs::path path;
  ~RemovedAtEnd() {
    std::error_code ignored;
    fs::remove_all(path, ignored);
  }
};

// One of the ranks that hold a shard writes it.
std::vector<Updater::Share> weights_alone(const Context& context, const Parameters& parameters) {
  std::vector<Updater::Share> shares;
  for (const Parameter& p : parameters.all()) {
    if (holders_of(context, p).index == 0) shares.push_back({&p, 0, p.array.tensor().size(), {}});
  }
  return shares;
}

std::vector<ExtraFile> files_to_carry(const ModelOnRanks& model, std::vector<std::string>* notes) {
  const Config& config = model.config;
  std::string from = config.get_string("load_parameters_path");
  if (from.empty()) from = config.get_string("load_full_state_path");
  RunTokenizer tokenizer;
  if (model.tokenizer != nullptr)
    tokenizer = {config.get_string("tokenizer_type"), config.get_string("tokenizer_path"),
                 model.tokenizer->eos()};
  return carried_by_run(from.empty() ? std::vector<ExtraFile>() : carried_files(from), from, tokenizer,
                        notes);
}

}  // namespace

void Engine::Impl::on_first_process(const std::function<void()>& work) {
  if (processes->count() == 1) return work();
  struct Told {
    bool failed = false;
    Error::Kind kind = Error::Kind::usage;
    char text[1024] = {};
  } told;
  if (processes->index() == 0) {
    try {
      work();
    } catch (const Error& error) {
      told.failed = true;
      told.kind = error.kind();
      std::string_view(error.what()).copy(told.text, sizeof(told.text) - 1);
    }
  }
  loop->run([&](Context& context) {
    Told now;
    if (context.comm->rank() == 0) now = told;
    context.comm->broadcast(everyone(*context.comm, "engine"), 0, host_view(std::span(&now, 1)));
    if (speaks(context)) told = now;
  });
  if (told.failed) throw Error(told.kind, told.text);
}

void Engine::Impl::restore(Context& context) {
  RankState& own = *state(context);
  const TrainConfig config_of_training = training();
  own.trainer.emplace(context, model, config_of_training, own.parameters);
  Checkpointer saves(*own.trainer, {},
                     CheckpointLayout(stored_tensors(on_ranks.specs, config_of_training.update)), "");
  std::vector<std::string> skipped;
  const Manifest manifest = restore_newest(saves, resume, &skipped);
  own.steps = manifest.step;
  if (const auto bad = manifest.data.find("bad_steps"); bad != manifest.data.end())
    own.trainer->bad_steps().restore(bad_step_state(*bad));
  if (context.comm->rank() == 0) on_ranks.notes.insert(on_ranks.notes.end(), skipped.begin(), skipped.end());
}

void Engine::Impl::write_checkpoint(const SavePlace& place, bool with_state,
                                    const std::vector<ExtraFile>& extras) {
  bool trained = false;
  loop->run([&](Context& context) {
    if (speaks(context)) trained = with_state && state(context)->trainer.has_value();
  });
  std::vector<StoredTensor> tensors =
      stored_tensors(on_ranks.specs, trained ? training().update : UpdateConfig());
  if (!trained) std::erase_if(tensors, [](const StoredTensor& tensor) { return tensor.optimizer; });
  const auto saver =
      std::make_shared<BackgroundSave>(FileSystem::real(), CheckpointLayout(std::move(tensors)));
  loop->run([&](Context& context) {
    RankState& own = *state(context);
    Checkpointer saves(context,
                       trained ? own.trainer->updater().shares() : weights_alone(context, own.parameters),
                       saver, place);
    Checkpointer::Notes notes;
    if (context.comm->rank() == 0) {
      notes = {manifest_of(config, mesh, mesh.size()), extras, {}};
      notes.manifest.data["rows"] = 0;  // a run that goes on has read nothing of its data
      if (trained) notes.manifest.data["bad_steps"] = to_json(own.trainer->bad_steps().state());
    }
    saves.save(trained ? own.steps : 0, notes);
  });
}

std::vector<std::string> Engine::save(const std::string& folder) {
  Impl& own = *impl_;
  own.refuse_packed("save", "`switchyard convert --weights` makes a checkpoint of such weights");
  const SavePlace place = new_place("[engine] save:", folder);
  std::vector<std::string> notes;
  std::vector<ExtraFile> extras;
  own.on_first_process([&] {
    require_free("save", place);
    extras = files_to_carry(own.on_ranks, &notes);
    make_folder(FileSystem::real(), place.temporary());  // fails before the ranks begin
  });
  own.write_checkpoint(place, true, extras);
  return notes;
}

std::vector<std::string> Engine::export_weights(const std::string& folder, std::string_view dtype) {
  Impl& own = *impl_;
  own.refuse_packed("export_weights", "a Hugging Face folder cannot hold them");
  ConvertRequest request;
  request.destination = folder;
  request.target = ConvertTarget::huggingface;
  if (!dtype.empty()) request.dtype = parse_float_dtype(dtype, "dtype");
  const HubForm form = hub_form(own.config);
  config_to_hub(form.config, "float32");
  const SavePlace place = new_place("[engine] export_weights:", folder),
                  weights{place.parent, ".weights-of-" + place.name};
  request.source = weights.final();
  std::vector<std::string> notes = form.notices;
  std::vector<ExtraFile> extras;
  own.on_first_process([&] {
    require_free("export_weights", place);
    extras = files_to_carry(own.on_ranks, &notes);
    make_folder(FileSystem::real(), weights.temporary());
  });
  own.write_checkpoint(weights, false, extras);
  own.on_first_process([&] {
    const RemovedAtEnd removed{weights.final()};
    convert(request, [](const std::string&) {});
  });
  return notes;
}

}  // namespace switchyard
