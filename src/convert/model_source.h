// ModelSource: a model to convert to a checkpoint, read tensor by tensor as checkpoints hold them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/save.h"
#include "config/config.h"
#include "convert/convert.h"
#include "convert/tensor_mover.h"

namespace switchyard {

class ModelSource {
 public:
  virtual ~ModelSource() = default;
  virtual const Config& config() const = 0;  // the model's config
  // The new checkpoint's manifest without files, extras and tensors. `dtype`: of its dense weights.
  virtual Manifest manifest(DType dtype) const = 0;
  virtual std::vector<std::string> files() const = 0;  // paths; they tell conversions apart
  virtual std::vector<ExtraFile> extras() const = 0;   // "tokenizer/tokenizer.json", …; Error(usage)
  // The dtype of a stored tensor, by our name: f32 or bf16.
  virtual DType dtype(const std::string& tensor) const = 0;
  // True when values are stored in a few bits, and `dtype` is only wide enough to hold them.
  virtual bool is_quantized() const = 0;
  // Reads one tensor in our shape, as `dtype`.
  virtual Tensor read(TensorMover& mover, const std::string& tensor, const Shape& shape,
                      DType dtype) const = 0;
};

// Opens a Hugging Face folder or a GGUF file. Error(usage) for tensors that do not belong to its config.
// `line` receives a line for each tensor that is skipped.
std::unique_ptr<ModelSource> open_hub_model(const std::string& path, const ConvertLine& line);
// `base` with an adapter (a folder of PEFT, or a run) added to its weights: W + scale · a·b in float32,
// rounded once. `path`: of the base. Error(usage) for an adapter of another model.
std::unique_ptr<ModelSource> with_adapter_merged(std::unique_ptr<ModelSource> base, const std::string& path,
                                                 const std::string& adapter);
// Opens a checkpoint, or the newest one of a run: weights without the optimizer's state. Error(usage) for
// tensors that do not belong to its config, or are packed already.
std::unique_ptr<ModelSource> open_checkpoint_model(const std::string& path, const ConvertLine& line);

}  // namespace switchyard
