// Resume: finds the checkpoint from which a run resumes.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/layout.h"
#include "config/config.h"
#include "data/dataset.h"
#include "train/checkpointer.h"

namespace switchyard {

struct ResumePoint {
  std::vector<FoundCheckpoint> candidates;  // newest first; empty: the run starts from scratch
  bool own = false;                         // this run's own, not load_full_state_path's
  std::int64_t step = 0;                    // the step of the first candidate
  std::int64_t rows = 0;                    // rows of data that it has seen
  nlohmann::json data = {};                 // the manifest's data: what it says of the data it was trained on
};

// Finds the newest checkpoint in the run's own folder, with enable_checkpointing; without any, the one that
// load_full_state_path names. Skips unreadable manifests and reports them in `notes`. Error(usage) when none
// is readable or the newest has another model or optimizer.
ResumePoint find_resume_point(const Config& config, const std::string& checkpoints,
                              const std::vector<StoredTensor>& needed, std::vector<std::string>* notes);

// Notes that the run's own checkpoint was trained on other documents than `data` holds now, although the keys
// may be the same. Checkpoints of older versions have no fingerprint; then the descriptions are compared.
void note_other_contents(const ResumePoint& point, const Dataset& data, std::vector<std::string>* notes);

// Collective: restores the newest candidate with undamaged data and returns its manifest. `skipped` receives
// the skipped candidates. Error(usage) when none is undamaged.
Manifest restore_newest(Checkpointer& checkpointer, const ResumePoint& point,
                        std::vector<std::string>* skipped);

}  // namespace switchyard
