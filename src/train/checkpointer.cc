#include "train/checkpointer.h"

#include <signal.h>

#include <algorithm>
#include <cstring>
#include <optional>

#include "core/upload.h"
#include "kernels/machine/machine.h"
#include "kernels/pointwise/strided_copy.h"
#include "parallel/comm/stop_signal.h"

namespace switchyard {
namespace {

// Elements in a chunk, at most 4 bytes each, so that weights and state are cut alike.
constexpr std::int64_t kChunkElements = PieceWriter::kChunkBytes / 4;

std::size_t aligned(std::size_t bytes) {
  return (bytes + 63) / 64 * 64;
}

}  // namespace

CheckpointPlan checkpoint_plan(const Config& config) {
  CheckpointPlan plan;
  plan.enabled = config.get_bool("enable_checkpointing");
  plan.period = config.get_int("checkpoint_period");
  plan.keep =
      config.is_none("max_num_checkpoints_to_keep") ? 0 : config.get_int("max_num_checkpoints_to_keep");
  plan.in_background = config.get_bool("async_checkpointing");
  plan.on_start = config.get_bool("save_checkpoint_on_start");
  plan.on_completion = config.get_bool("save_checkpoint_on_completion");
  return plan;
}

std::vector<StoredTensor> stored_tensors(const std::vector<ParameterSpec>& specs,
                                         const UpdateConfig& update) {
  std::vector<StoredTensor> tensors;
  const bool adapter = std::ranges::any_of(specs, &ParameterSpec::of_adapter);
  for (const ParameterSpec& spec : specs) {
    if (adapter && !spec.of_adapter) continue;
    const StoredParameter stored = stored_parameter(spec.name, spec.shape);
    for (const std::string& name : stored.names) tensors.push_back({name, spec.dtype, stored.shape, false});
    for (const StateTensor& state : state_tensors(update, spec)) {
      for (const std::string& name : stored.names)
        tensors.push_back({name + state.suffix, state.dtype, stored.shape, true});
    }
  }
  return tensors;
}

Manifest manifest_of(const Config& config, const Mesh& mesh, int ranks) {
  Manifest manifest;
  manifest.version = SWITCHYARD_VERSION;
  manifest.config = config.resolved();
  manifest.model = config.get_string("decoder_block");
  for (const MeshAxis& axis : mesh.axes()) {
    if (axis.size > 1) manifest.mesh[axis.axis.name()] = axis.size;
  }
  manifest.ranks = ranks;
  for (const char* seed : {"init_weights_seed", "data_shuffle_seed"})
    manifest.rng[seed] = config.get_int(seed);
  return manifest;
}

Checkpointer::Checkpointer(Trainer& trainer, CheckpointPlan plan, const CheckpointLayout& layout,
                           std::string folder)
    : Checkpointer(trainer.context(), trainer.updater().shares(),
                   std::static_pointer_cast<BackgroundSave>(trainer.context().comm->shared(
                       "checkpoints",
                       [&]() -> std::shared_ptr<void> {
                         return std::make_shared<BackgroundSave>(FileSystem::real(), layout);
                       })),
                   {std::move(folder), ""}, plan, &trainer) {}

Checkpointer::Checkpointer(Context& context, const std::vector<Updater::Share>& shares,
                           std::shared_ptr<BackgroundSave> saver, SavePlace place)
    : Checkpointer(context, shares, std::move(saver), std::move(place), {.in_background = false}, nullptr) {}

Checkpointer::Checkpointer(Context& context, const std::vector<Updater::Share>& shares,
                           std::shared_ptr<BackgroundSave> saver, SavePlace place, CheckpointPlan plan,
                           Trainer* trainer)
    : context_(context),
      trainer_(trainer),
      plan_(plan),
      in_background_(plan.in_background),
      saver_(std::move(saver)),
      is_of_run_(place.name.empty()),
      place_(std::move(place)) {
  Communicator& comm = *context_.comm;
  all_ = everyone(comm, "run");
  const int here = comm.process_of(comm.rank());
  leader_ = *std::find_if(all_.ranks.begin(), all_.ranks.end(),
                          [&](int rank) { return comm.process_of(rank) == here; });
  one_process_ = std::all_of(all_.ranks.begin(), all_.ranks.end(),
                             [&](int rank) { return comm.process_of(rank) == here; });
  sources_ = find_sources(shares);
}

std::vector<Checkpointer::Source> Checkpointer::find_sources(
    const std::vector<Updater::Share>& shares) const {
  std::vector<Source> sources;
  const bool adapter = std::ranges::any_of(
      shares, [](const Updater::Share& share) { return share.parameter->spec.of_adapter; });
  for (const Updater::Share& share : shares) {
    const ParameterSpec& spec = share.parameter->spec;
    if (adapter && !spec.of_adapter) continue;
    const Tensor& weight = share.parameter->array.tensor();
    const Box block{
        local_offset(*context_.mesh, context_.rank, spec.shape, share.parameter->array.sharding()),
        weight.shape()};
    const StoredParameter stored = stored_parameter(spec.name, spec.shape);
    const auto add = [&](const Tensor& memory, const std::string& suffix) {
      Source source{memory, {}};
      for (Box& box : boxes_of_range(block, share.begin, share.begin + share.count, kChunkElements)) {
        if (!stored.is_stack) {
          source.boxes.emplace_back(saver_->layout().index_of(spec.name + suffix), std::move(box));
          continue;
        }
        const Box each{{box.start.begin() + 1, box.start.end()}, {box.shape.begin() + 1, box.shape.end()}};
        for (std::int64_t e = box.start[0]; e < box.start[0] + box.shape[0]; ++e) {
          const std::string& name = stored.names[static_cast<std::size_t>(e)];
          source.boxes.emplace_back(saver_->layout().index_of(name + suffix), each);
        }
      }
      sources.push_back(std::move(source));
    };
    add(weight.reshaped({weight.size()}).slice_rows(share.begin, share.begin + share.count), "");
    for (std::size_t i = 0; i < share.state.size(); ++i) add(share.state[i], i == 0 ? ".mu" : ".nu");
  }
  return sources;
}

bool Checkpointer::copies_fit() const {
  std::size_t bytes = 0;
  for (const Source& source : sources_) bytes += aligned(source.memory.bytes());
  const Communicator& comm = *context_.comm;
  const auto here = std::count_if(all_.ranks.begin(), all_.ranks.end(), [&](int rank) {
    return comm.process_of(rank) == comm.process_of(comm.rank());
  });
  // The copies of all ranks of this process, and half as much again for a step's other memory.
  const double wanted = 1.5 * static_cast<double>(bytes) * static_cast<double>(here);
  double lacking = wanted > static_cast<double>(available_memory_bytes()) ? 1 : 0;
  context_.comm->all_reduce(all_, host_view(std::span(&lacking, 1)));
  return lacking == 0;
}

std::vector<Tensor> Checkpointer::copied_sources() {
  std::size_t bytes = 0;
  for (const Source& source : sources_) bytes += aligned(source.memory.bytes());
  if (!staging_.defined()) {
    staging_ = Tensor(Memory(), DType::u8, {static_cast<std::int64_t>(bytes)});
  }
  std::vector<Tensor> copies;
  std::size_t at = 0;
  for (const Source& source : sources_) {
    const Tensor& from = source.memory;
    copies.emplace_back(from.dtype(), from.shape(), staging_.buffer(), at);
    if (from.view().on_gpu())
      copy(from.view(), copies.back().view());
    else
      strided_copy(*context_.pool, from.view(), copies.back().view());
    at += aligned(from.bytes());
  }
  return copies;
}

void Checkpointer::add_pieces() {
  std::vector<Tensor> memory;
  if (in_background_) {
    memory = copied_sources();
  } else {
    for (const Source& source : sources_) memory.push_back(to_host(source.memory));
  }
  std::vector<TensorPiece> pieces;
  for (std::size_t i = 0; i < sources_.size(); ++i) {
    const std::byte* data = memory[i].raw();
    for (const auto& [tensor, box] : sources_[i].boxes) {
      pieces.push_back({tensor, {box, data}});
      data += static_cast<std::size_t>(num_elements(box.shape)) * size_of(memory[i].dtype());
    }
  }
  saver_->add(std::move(pieces), std::move(memory));
}

void Checkpointer::barrier() {
  context_.comm->barrier(all_);
}

void Checkpointer::save(std::int64_t step, const Notes& notes) {
  const PhaseMark mark(context_.comm->position(), "checkpoint");
  finish();
  if (in_background_ && !staging_.defined()) in_background_ = copies_fit();
  add_pieces();
  if (is_of_run_) place_.name = std::to_string(step);
  if (context_.comm->rank() == 0) {
    notes_ = notes;
    notes_.manifest.step = step;
    create_files(saver_->files(), place_, saver_->layout());
  }
  barrier();  // all pieces and all files are there
  if (is_leader()) {
    saver_->start(place_, one_process_ ? commit_work({}) : BackgroundSave::Work());
  }
  barrier();  // so that nobody waits for what has not begun
  stage_ = Stage::writing;
  last_saved_ = step;
  if (!in_background_) finish();
}

BackgroundSave::Work Checkpointer::commit_work(std::vector<WrittenChunk> chunks) const {
  return [saver = saver_.get(), notes = notes_, place = place_, is_of_run = is_of_run_, keep = plan_.keep,
          one_process = one_process_, chunks = std::move(chunks)] {
    if (notes.first) notes.first();
    commit(saver->files(), place, saver->layout(), notes.manifest, one_process ? saver->chunks() : chunks,
           notes.extras);
    if (notes.last) notes.last(place.final());
    if (is_of_run) prune(saver->files(), place.parent, keep);
  };
}

// The chunks that all processes wrote, on rank 0.
std::vector<WrittenChunk> Checkpointer::gather_chunks() {
  const auto ranks = static_cast<std::size_t>(context_.comm->size());
  std::vector<std::int64_t> mine;  // tensor, hash, start, shape; one after the other
  if (is_leader()) {
    for (const auto& [tensor, chunk] : saver_->chunks()) {
      mine.push_back(static_cast<std::int64_t>(tensor));
      mine.push_back(static_cast<std::int64_t>(chunk.xxh3));
      mine.insert(mine.end(), chunk.box.start.begin(), chunk.box.start.end());
      mine.insert(mine.end(), chunk.box.shape.begin(), chunk.box.shape.end());
    }
  }
  std::vector<double> sizes(ranks, 0.0);
  sizes[static_cast<std::size_t>(all_.index)] = static_cast<double>(mine.size());
  context_.comm->all_reduce(all_, host_view(sizes));
  const bool receives = context_.comm->rank() == 0;
  std::vector<std::int64_t> zeros(ranks, 0), sent(ranks, 0), offsets(ranks, 0), received(ranks, 0);
  sent[0] = static_cast<std::int64_t>(mine.size());
  std::int64_t total = 0;
  for (std::size_t r = 0; receives && r < ranks; ++r) {
    offsets[r] = total;
    total += received[r] = static_cast<std::int64_t>(sizes[r]);
  }
  std::vector<std::int64_t> all(static_cast<std::size_t>(total));
  const auto as_rows = [](const std::vector<std::int64_t>& numbers) {
    return host_view(numbers).reshaped({std::ssize(numbers), sizeof(std::int64_t)});
  };
  context_.comm->ragged_all_to_all(all_, as_rows(mine), {zeros, sent}, as_rows(all), {offsets, received});
  std::vector<WrittenChunk> chunks;
  for (auto at = all.begin(); at != all.end();) {
    WrittenChunk written{static_cast<std::size_t>(*at++), {{}, static_cast<std::uint64_t>(*at++)}};
    const auto dims = static_cast<std::ptrdiff_t>(saver_->layout().tensors()[written.tensor].shape.size());
    written.chunk.box = {{at, at + dims}, {at + dims, at + 2 * dims}};
    at += 2 * dims;
    chunks.push_back(std::move(written));
  }
  return chunks;
}

// Collective, once every process has written its part.
void Checkpointer::start_commit() {
  saver_->wait();
  if (!one_process_) {
    std::vector<WrittenChunk> chunks = gather_chunks();
    if (context_.comm->rank() == 0) saver_->start_commit(commit_work(std::move(chunks)));
    barrier();
  }
  stage_ = Stage::committing;
}

int Checkpointer::poll(int signal) {
  const PhaseMark mark(context_.comm->position(), "checkpoint");
  saver_->check();
  constexpr std::size_t kSignals = std::size(kStopSignals);
  double flags[kSignals + 1];  // which signals ranks have noted, and whether one is not done with its writing
  for (std::size_t i = 0; i < kSignals; ++i) flags[i] = signal == kStopSignals[i] ? 1.0 : 0.0;
  flags[kSignals] = saver_->done() ? 0.0 : 1.0;
  context_.comm->all_reduce(all_, host_view(std::span(flags)));
  if (stage_ == Stage::writing && flags[kSignals] == 0) start_commit();
  const auto noted = std::find_if(flags, flags + kSignals, [](double count) { return count > 0; });
  return noted == flags + kSignals ? 0 : kStopSignals[noted - flags];
}

void Checkpointer::finish() {
  if (stage_ == Stage::writing) start_commit();
  if (stage_ == Stage::committing) {
    saver_->wait();
    barrier();
  }
  stage_ = Stage::idle;
}

bool Checkpointer::restore(const std::string& path, std::string& problem) {
  CHECK(trainer_ != nullptr);
  const PhaseMark mark(context_.comm->position(), "checkpoint");
  std::string own;
  try {
    const auto checkpoint = std::static_pointer_cast<const CheckpointFolder>(
        context_.comm->shared("checkpoint " + path, [&]() -> std::shared_ptr<void> {
          return std::make_shared<CheckpointFolder>(CheckpointFolder::open(path));
        }));
    std::optional<Upload> upload;
    if (context_.memory.device().is_gpu()) upload.emplace(context_.memory.uncharged(), *context_.pool);
    for (const Source& source : sources_) {
      const bool in_place = source.memory.memory().device().is_host();
      const Tensor host =
          in_place ? source.memory : Tensor(Memory(), source.memory.dtype(), source.memory.shape());
      std::byte* to = host.raw();
      for (const auto& [tensor, box] : source.boxes) {
        checkpoint->read(saver_->layout().tensors()[tensor].name, box, to);
        to += static_cast<std::size_t>(num_elements(box.shape)) * size_of(source.memory.dtype());
      }
      if (in_place) continue;
      if (upload)
        upload->send(host, source.memory.view());
      else
        copy(host.view(), source.memory.view());
    }
    if (upload) upload->finish();
  } catch (const Error& error) {
    own = error.what();
  }
  // The first rank that failed tells all why.
  std::vector<double> failed(all_.ranks.size(), 0.0);
  failed[static_cast<std::size_t>(all_.index)] = own.empty() ? 0 : 1;
  context_.comm->all_reduce(all_, host_view(failed));
  const auto first = std::find(failed.begin(), failed.end(), 1.0);
  if (first != failed.end()) {
    std::vector<char> text(1024, '\0');
    std::memcpy(text.data(), own.data(), std::min(own.size(), text.size() - 1));
    context_.comm->broadcast(all_, static_cast<int>(first - failed.begin()), host_view(text));
    problem = text.data();
    return false;
  }
  trainer_->updater().publish();
  trainer_->parameters().raise_version();
  barrier();
  return true;
}

}  // namespace switchyard
