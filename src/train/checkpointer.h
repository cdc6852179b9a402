// Checkpointer: a run's checkpoints, as one of its ranks sees them. docs/formats.md says what is written.
//
// Every rank writes its shares (train/update.h): so each byte is written once, by whichever process has it,
// and holds the whole tensors of the model whatever the mesh. All functions are collective but the
// constructor, and are called between steps.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "checkpoint/background_save.h"
#include "checkpoint/checkpoint_folder.h"
#include "train/trainer.h"

namespace switchyard {

// The keys about checkpoints.
struct CheckpointPlan {
  bool enabled = false;
  std::int64_t period = 0;  // steps
  std::int64_t keep = 0;    // 0: all
  bool in_background = true, on_start = true, on_completion = true;
};
CheckpointPlan checkpoint_plan(const Config& config);

// All tensors of a checkpoint: weights under their stored names, and optimizer state.
std::vector<StoredTensor> stored_tensors(const std::vector<ParameterSpec>& specs, const UpdateConfig& update);

// What a run is, for a manifest; step, data and phases are the saver's.
Manifest manifest_of(const Config& config, const Mesh& mesh, int ranks);

class Checkpointer {
 public:
  // `folder` is RUN/checkpoints. The trainer must outlive it.
  Checkpointer(Trainer& trainer, CheckpointPlan plan, const CheckpointLayout& layout, std::string folder);

  // What rank 0 adds to a save.
  struct Notes {
    Manifest manifest;
    std::vector<ExtraFile> extras;
    BackgroundSave::Work first;  // done before the checkpoint is valid; may run beside the next steps
  };
  // Saves the state after `step` steps, once the save before is done. With async_checkpointing it returns
  // when the state is copied. Error(runtime) when this or the last one failed.
  void save(std::int64_t step, const Notes& notes);

  // To be called after every step: moves a save on, throws what went wrong with it, and tells whether a
  // signal asks the run to stop: the same number on all ranks, 0 for none.
  int poll();

  // Returns when all is on the disk.
  void finish();

  // False once there was no room for a copy of the state: then saves are waited for.
  bool in_background() const { return in_background_; }
  std::int64_t last_saved() const { return last_saved_; }  // steps; -1: none
  void set_last_saved(std::int64_t step) { last_saved_ = step; }

  // Puts the state that a checkpoint holds into the trainer. False, alike on all ranks, when it cannot be
  // read or is damaged: then `problem` says why, and the state is undefined.
  bool restore(const std::string& path, std::string& problem);

 private:
  // A part of this rank's memory and the boxes of tensors that lie in it one after the other.
  struct Source {
    Tensor memory;
    std::vector<std::pair<std::size_t, Box>> boxes;  // tensor of the layout
  };
  std::vector<Source> find_sources() const;
  bool copies_fit() const;  // the same on all ranks
  std::vector<Tensor> copied_sources();
  void add_pieces();
  void start_commit();
  std::vector<WrittenChunk> gather_chunks();
  BackgroundSave::Work commit_work(std::vector<WrittenChunk> chunks) const;
  void barrier();
  bool is_leader() const { return leader_ == context_.comm->rank(); }

  Trainer& trainer_;
  Context& context_;
  const CheckpointPlan plan_;
  const std::string folder_;
  ProcessGroup all_;  // ranks of the run
  int leader_;        // first rank of this process
  bool one_process_;
  bool in_background_;
  std::shared_ptr<BackgroundSave> saver_;  // of this process
  std::vector<Source> sources_;
  Tensor staging_;  // the copy that is written in the background; recycled
  Notes notes_;     // of the save under way, on rank 0
  SavePlace place_;
  enum class Stage { idle, writing, committing } stage_ = Stage::idle;
  std::int64_t last_saved_ = -1;
};

}  // namespace switchyard
