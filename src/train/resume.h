// Resume: which checkpoint a run goes on from.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/layout.h"
#include "config/config.h"
#include "train/checkpointer.h"

namespace switchyard {

struct ResumePoint {
  std::vector<FoundCheckpoint> candidates;  // newest first; empty: the run starts anew
  bool own = false;                         // of this run, not of load_full_state_path
  std::int64_t step = 0;                    // of the first candidate
  std::int64_t rows = 0;                    // of the data that it has seen
};

// With enable_checkpointing the newest checkpoint of the run's own folder; without any the one that
// load_full_state_path names. Manifests that cannot be read are passed over and told in `notes`. Error(usage)
// when none can be read or the newest is of another model or optimizer.
ResumePoint find_resume_point(const Config& config, const std::string& checkpoints,
                              const std::vector<StoredTensor>& needed, std::vector<std::string>* notes);

// Collective: restores the newest candidate whose data is whole and returns its manifest. What is passed over
// is told to `skipped`. Error(usage) when none is whole.
Manifest restore_newest(Checkpointer& checkpointer, const ResumePoint& point,
                        std::vector<std::string>* skipped);

}  // namespace switchyard
