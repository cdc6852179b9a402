// ServedWeights: what a server's texts are made with. It knows the adapters by name, takes changes from
// requests, one after another, and hands them to the model's loop. Of process 0; any thread may call any
// function, unless said otherwise.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "engine/changing_weights.h"
#include "serve/texts.h"
#include "texts/loop.h"
#include "texts/text_adapter.h"

namespace switchyard::serve {

// Texts that run while the weights change finish before, go on with the new weights, or end. The request that
// changes the weights says which.
enum class RunningTexts { finish, go_on, abort };

class ServedWeights {
 public:
  struct Model {
    std::vector<std::string> names;           // of the base
    std::string path;                         // of its weights
    std::string shapes;                       // names and shapes of all weights: part of the fingerprint
    std::vector<NamedAdapter> adapters = {};  // by number
    std::string only_adapter = {};            // the folder of an adapter of all texts
    std::int64_t places = 0;                  // most adapters at once
    // Folders below which requests may name adapters, and weights; none: no such requests.
    std::vector<std::string> adapter_folders = {}, weight_folders = {};
    std::function<void(const WeightChange&)> prepare = {};  // ChangingWeights::prepare
    std::function<bool(const std::string& path)> is_adapter = {};
    std::function<void()> forget = {};  // called when what is remembered of texts is of no more use
  };
  explicit ServedWeights(Model model);

  // Null: no adapter has the name.
  std::shared_ptr<const TextAdapter> find(const std::string& name) const;
  std::vector<std::shared_ptr<const TextAdapter>> adapters() const;
  // Returns a text that differs where the program's version, the files of the weights or those of the adapter
  // differ.
  std::string fingerprint(const TextAdapter* adapter = nullptr) const;

  // All three wait until the change has its effect. BadRequest, and then nothing has changed.
  // `in_place`: another adapter may have the name, which texts that are there keep.
  std::shared_ptr<const TextAdapter> load_adapter(const std::string& name, const std::string& path,
                                                  bool in_place);
  // Texts that use it keep it to their end.
  void drop_adapter(const std::string& name);
  struct Replaced {
    std::string hash, fingerprint;
    std::string adapter = {};  // its name, where the files were an adapter's
    double seconds = 0;
  };
  // `name`: of the adapter, where the files are one's and there are several.
  Replaced replace(const std::string& path, RunningTexts running, const std::string& name);

  // The model's thread. Returns the next change once it may begin.
  std::optional<Loop::Task> next_task(Inbox& inbox);
  // Ends a change; `problem` is why nothing changed.
  void done(const std::string& task, const std::string& problem, Inbox& inbox);
  // From now on no change has an effect.
  void stop();

 private:
  struct Waiting {
    WeightChange change;
    RunningTexts running;
    bool done = false;
    std::string problem = {};
  };
  // Fields of a request, for messages.
  struct FieldNames {
    const char *name, *path;
  };
  std::shared_ptr<const TextAdapter> change_adapter(const FieldNames& fields, const std::string& name,
                                                    const std::string& path, RunningTexts running);
  std::string fingerprint_of(const TextAdapter* adapter) const;
  std::int32_t free_number() const;
  bool is_adapter(const std::string& path) const;
  void prepare(const char* field, const WeightChange& change) const;
  void run(const char* field, const WeightChange& change, RunningTexts running);

  const Model model_;
  std::mutex one_change_;     // held from the reading of a change to its effect
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable ended_;
  std::string hash_, only_hash_;
  std::vector<std::shared_ptr<const TextAdapter>> named_;
  struct Place {
    std::weak_ptr<const TextAdapter> adapter = {};
    bool taken = false;  // the model has an adapter there
  };
  std::vector<Place> places_;
  std::int64_t serial_ = 0;
  Waiting* waiting_ = nullptr;
  std::optional<WeightChange> tidying_;      // a change that no request waits for
  std::unique_lock<std::mutex> of_tidying_;  // of one_change_, meanwhile
  bool stopped_ = false;
};

}  // namespace switchyard::serve
