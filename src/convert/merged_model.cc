#include <map>

#include "checkpoint/layout.h"
#include "convert/model_source.h"
#include "core/error.h"
#include "engine/own_adapter.h"
#include "models/adapter.h"

namespace switchyard {
namespace {

class MergedModel : public ModelSource {
 public:
  MergedModel(std::unique_ptr<ModelSource> base, const std::string& path, const std::string& adapter)
      : base_(std::move(base)) {
    Config config = base_->config();
    config.set("load_parameters_path", path, "the base");
    const ModelConfig model = model_config(config);
    adapter_ = read_adapter(adapter, config, model);
    for (const ParameterSpec& spec : parameter_specs(model)) {
      const StoredParameter stored = stored_parameter(spec.name, spec.shape);
      for (std::size_t i = 0; i < stored.names.size(); ++i)
        weights_[stored.names[i]] = {spec, stored.is_stack ? static_cast<std::int64_t>(i) : -1};
    }
  }

  const Config& config() const override { return base_->config(); }
  Manifest manifest(DType dtype) const override { return base_->manifest(dtype); }
  std::vector<std::string> files() const override { return base_->files(); }
  std::vector<ExtraFile> extras() const override { return base_->extras(); }
  DType dtype(const std::string& tensor) const override { return base_->dtype(tensor); }
  bool is_quantized() const override { return base_->is_quantized(); }

  Tensor read(TensorMover& mover, const std::string& tensor, const Shape& shape, DType dtype) const override {
    const auto& [spec, expert] = weights_.at(tensor);
    if (adapter_.adapter.whole.contains(spec.name)) return adapter_.tensors.at(spec.name).cast(dtype);
    const auto how = adapter_.adapter.weights.find(spec.name);
    if (how == adapter_.adapter.weights.end()) return base_->read(mover, tensor, shape, dtype);
    const Tensor sum = base_->read(mover, tensor, shape, DType::f32).clone();
    const Tensor part =
        merged_weight(expert < 0 ? sum : sum.reshaped(one_of(spec.shape)), spec, how->second,
                      of_expert(adapter_.tensors.at(lora_a_of(spec.name, how->second)), expert),
                      of_expert(adapter_.tensors.at(lora_b_of(spec.name)), expert));
    return part.reshaped(shape).cast(dtype);
  }

 private:
  static Shape one_of(Shape shape) {
    shape[0] = 1;
    return shape;
  }
  static Tensor of_expert(const Tensor& x, std::int64_t expert) {
    return expert < 0 ? x : x.slice_rows(expert, expert + 1);
  }

  const std::unique_ptr<ModelSource> base_;
  PeftAdapter adapter_;
  std::map<std::string, std::pair<ParameterSpec, std::int64_t>> weights_;  // by the stored name
};

}  // namespace

std::unique_ptr<ModelSource> with_adapter_merged(std::unique_ptr<ModelSource> base, const std::string& path,
                                                 const std::string& adapter) {
  return std::make_unique<MergedModel>(std::move(base), path, adapter);
}

}  // namespace switchyard
