// ChangingWeights: the weights of a model that makes texts, which change while it does. One object for each
// process. Process 0 prepares a change in any thread; then all ranks apply it between two calls of the model,
// or none does.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/model.h"
#include "engine/text_adapters.h"
#include "generate/generator.h"

namespace switchyard {

struct WeightChange {
  enum class Kind {
    adapter,       // an adapter comes to the place `number`
    drop_adapter,  // that place becomes free
    only_adapter,  // the adapter of all texts (adapter=FOLDER) becomes another one
    weights,       // the model's own weights become others
  };
  std::int64_t serial = 0;  // unlike that of every other change
  Kind kind = Kind::weights;
  std::string path = {};    // of the files; with drop_adapter: none
  std::int32_t number = 0;  // 1 .. n
};
std::string to_text(const WeightChange& change);
WeightChange change_of_text(const std::string& text);

// Weights that take the place of a model's.
struct OtherWeights {
  std::vector<ParameterSpec> specs;  // the model's own, without an adapter's
  Parameters::FillBlock fill;        // keeps `model` of weights_like()
};
// Returns the weights of `model`, which was opened with the weights at `path`. Error(usage) where it is
// another model than `run`, or its weights have other shapes or dtypes.
OtherWeights weights_like(const ModelOnMesh& run, const std::shared_ptr<const ModelOnRanks>& model,
                          const std::string& path);

class ChangingWeights {
 public:
  // Opens the model with the weights at `path` as if the command line had named them, without an adapter.
  using Open = std::function<ModelOnRanks(const std::string& path)>;
  ChangingWeights(ModelOnMesh run, Open open);

  // Reads what the change names, all of it once, so that damaged files are found here. Error(usage) in one
  // line where it does not fit the model. Any thread.
  void prepare(const WeightChange& change);
  // Puts the change into effect in this rank's parameters, and tells the generator. Collective. Returns why
  // nothing has changed; empty: it has. A process that has not prepared the change reads it now.
  std::string apply(Context& context, Parameters& parameters, Generator& generator,
                    const WeightChange& change);

 private:
  struct Ready {
    std::int64_t serial = 0;
    std::string problem = {};  // then there is nothing else
    bool of_adapter = true;
    AdapterPlaces places = {};                    // after the change
    std::shared_ptr<const Adapter> adapter = {};  // the model's, after the change
    std::vector<ParameterSpec> specs = {};        // that are replaced
    Parameters::FillBlock fill = {};
  };
  Ready read(const WeightChange& change) const;
  Ready read_weights(const WeightChange& change) const;
  std::vector<ParameterSpec> specs_of(const std::shared_ptr<const Adapter>& adapter) const;

  const ModelOnMesh run_;
  const Open open_;
  std::mutex mutex_;  // guards what follows
  AdapterPlaces places_;
  std::shared_ptr<const Ready> ready_;
};

}  // namespace switchyard
