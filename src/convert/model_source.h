// ModelSource: a model whose weights become a checkpoint, tensor by tensor as checkpoints hold them.
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
  virtual const Config& config() const = 0;  // of the model
  // What the new checkpoint's manifest says but for files, extras and tensors. `dtype`: of its dense weights.
  virtual Manifest manifest(DType dtype) const = 0;
  virtual std::vector<std::string> files() const = 0;  // paths, by which conversions are told apart
  virtual std::vector<ExtraFile> extras() const = 0;   // "tokenizer/tokenizer.json", …; Error(usage)
  // Of a stored tensor by our name: f32 or bf16.
  virtual DType dtype(const std::string& tensor) const = 0;
  // Whether values stand there in a few bits, and `dtype` is only wide enough for them.
  virtual bool is_quantized() const = 0;
  // One such tensor, of our shape, as `dtype`.
  virtual Tensor read(TensorMover& mover, const std::string& tensor, const Shape& shape,
                      DType dtype) const = 0;
};

// A Hugging Face folder or a GGUF file: Error(usage) for tensors that are not its config's. What is left out
// is told to `line`.
std::unique_ptr<ModelSource> open_hub_model(const std::string& path, const ConvertLine& line);
// A checkpoint, or the newest of a run: its weights without the optimizer's state. Error(usage) for tensors
// that are not its config's, or are packed already.
std::unique_ptr<ModelSource> open_checkpoint_model(const std::string& path, const ConvertLine& line);

}  // namespace switchyard
