// Checkpointer: one rank's view of a run's checkpoints. docs/run-files.md describes what is written.
//
// Every rank writes its shares (train/update.h). So each byte is written once, by any process that holds it,
// and a checkpoint has the model's whole tensors whatever the mesh. All functions except the constructor are
// collective, and are called between steps.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "checkpoint/background_save.h"
#include "checkpoint/checkpoint_folder.h"
#include "train/trainer.h"

namespace switchyard {

// The settings of the checkpoint keys.
struct CheckpointPlan {
  bool enabled = false;
  std::int64_t period = 0;  // in steps
  std::int64_t keep = 0;    // 0: all
  bool in_background = true, on_start = true, on_completion = true;
};
CheckpointPlan checkpoint_plan(const Config& config);

// All tensors of a checkpoint: weights under their stored names, and optimizer state.
std::vector<StoredTensor> stored_tensors(const std::vector<ParameterSpec>& specs, const UpdateConfig& update);

// A manifest that describes the run; the saver adds step, data and phases.
Manifest manifest_of(const Config& config, const Mesh& mesh, int ranks);

class Checkpointer {
 public:
  // For a run's checkpoints, in `folder`, RUN/checkpoints. The trainer must outlive it.
  Checkpointer(Trainer& trainer, CheckpointPlan plan, const CheckpointLayout& layout, std::string folder);
  // For one checkpoint of these shares, at `place`. The ranks of a process share a `saver`.
  Checkpointer(Context& context, const std::vector<Updater::Share>& shares,
               std::shared_ptr<BackgroundSave> saver, SavePlace place);

  // The data that rank 0 adds to a save.
  struct Notes {
    Manifest manifest;
    std::vector<ExtraFile> extras;
    BackgroundSave::Work first;  // runs before the checkpoint is valid; may overlap with the next steps
    std::function<void(const std::string& path)> last = {};  // the same, once it is
  };
  // Saves the state after `step` steps, once the previous save is done. With async_checkpointing it returns
  // when the state is copied. Error(runtime) when this save or the last one failed.
  void save(std::int64_t step, const Notes& notes);

  // Call it after every step: advances a save, throws its error, and returns the signal that asks the run to
  // stop, of those that ranks pass: the same number on all ranks, 0 for none.
  int poll(int signal);

  // Returns when everything is on disk.
  void finish();

  // False after there was no room for a copy of the state: save() then waits until it is written.
  bool in_background() const { return in_background_; }
  std::int64_t last_saved() const { return last_saved_; }  // in steps; -1: none
  void set_last_saved(std::int64_t step) { last_saved_ = step; }

  // Loads the state of a checkpoint into the trainer, which must be there (CHECK). Returns false, the same on
  // all ranks, when the checkpoint is unreadable or damaged: `problem` then says why, and the trainer's
  // state is undefined.
  bool restore(const std::string& path, std::string& problem);

 private:
  // A part of this rank's memory, and the boxes of tensors that it holds one after the other.
  struct Source {
    Tensor memory;
    std::vector<std::pair<std::size_t, Box>> boxes;  // index of the tensor in the layout
  };
  Checkpointer(Context& context, const std::vector<Updater::Share>& shares,
               std::shared_ptr<BackgroundSave> saver, SavePlace place, CheckpointPlan plan, Trainer* trainer);
  std::vector<Source> find_sources(const std::vector<Updater::Share>& shares) const;
  bool copies_fit() const;  // the same on all ranks
  std::vector<Tensor> copied_sources();
  void add_pieces();
  void start_commit();
  std::vector<WrittenChunk> gather_chunks();
  BackgroundSave::Work commit_work(std::vector<WrittenChunk> chunks) const;
  void barrier();
  bool is_leader() const { return leader_ == context_.comm->rank(); }

  Context& context_;
  Trainer* const trainer_;
  const CheckpointPlan plan_;
  ProcessGroup all_;  // all ranks of the run
  int leader_;        // first rank of this process
  bool one_process_;
  bool in_background_;
  std::shared_ptr<BackgroundSave> saver_;  // shared by this process's ranks
  std::vector<Source> sources_;
  Tensor staging_;        // the copy that is written in the background; reused
  Notes notes_;           // for the save in progress, on rank 0
  const bool is_of_run_;  // named by their steps; old ones are removed
  SavePlace place_;       // of the save in progress
  enum class Stage { idle, writing, committing } stage_ = Stage::idle;
  std::int64_t last_saved_ = -1;
};

}  // namespace switchyard
