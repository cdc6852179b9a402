// Hugging Face folder, or GGUF file -> checkpoint.
#include <filesystem>
#include <map>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/json_file.h"
#include "checkpoint/layout.h"
#include "convert/carried_files.h"
#include "convert/directions.h"
#include "convert/resumable_folder.h"
#include "convert/stored_names.h"
#include "convert/tensor_mover.h"
#include "core/cores.h"
#include "core/error.h"
#include "gguf/gguf_tokenizer.h"
#include "gguf/hub_source.h"
#include "models/same_model.h"

namespace switchyard {
namespace {

class ToSwitchyard {
 public:
  ToSwitchyard(const ConvertRequest& request, const ConvertLine& line)
      : request_(request),
        line_(line),
        source_(open_hub_source(request.source)),
        config_(config_of_hub(source_.config)),
        model_(model_config(config_)),
        weights_(*source_.weights) {
    const std::vector<ParameterSpec> specs = parameter_specs(model_);
    const HubFamily family = hub_family(source_.config);
    std::map<std::string, Shape> shapes;
    for (const auto& spec : specs) shapes[spec.name] = spec.shape;
    for (const auto& notice : check_hub_tensors(weights_, family, shapes, model_.layers))
      line_("left out: " + notice);
    pairs_ = stored_pairs(specs, family);
  }

  ConvertReport run() {
    std::vector<StoredTensor> tensors;
    for (const StoredPair& pair : pairs_) tensors.push_back({pair.ours, dtype_of(pair), pair.shape, false});
    const CheckpointLayout layout(std::move(tensors),
                                  request_.file_bytes.value_or(CheckpointLayout::kFileBytes));
    ConvertReport report = report_of(pairs_, ConvertTarget::switchyard);
    const std::vector<ExtraFile> extras = files_of_source();  // before anything is written: it may be refused
    ResumableFolder folder(FileSystem::real(), request_.destination,
                           job_of(request_, report.target, source_.files), "complete");
    for (const ExtraFile& extra : extras) {
      const std::string name = std::filesystem::path(extra.name).filename();
      if (name != "config.json") report.carried.push_back(name);
    }
    const std::vector<PlannedFile> files = plan_of(layout);
    if (!folder.is_done()) {
      std::vector<WrittenChunk> chunks;
      for (const PlannedFile& file : files) write_file(layout, file, folder, chunks, report);
      commit(FileSystem::real(), folder.place(), layout, manifest(layout), chunks, extras);
    }
    folder.finish();
    check_written();
    add_sizes(files, report);
    return report;
  }

 private:
  std::vector<ExtraFile> files_of_source() const {
    if (std::filesystem::is_directory(request_.source)) return files_of_hub(request_.source);
    const TokenizerFiles tokenizer = tokenizer_files_of(GgufFile::open(request_.source));
    const bool pieces = tokenizer.json.empty();
    return {{"tokenizer/config.json", source_.config.dump(2) + "\n"},
            {pieces ? "tokenizer/tokenizer.model" : "tokenizer/tokenizer.json",
             pieces ? tokenizer.model : tokenizer.json},
            {"tokenizer/tokenizer_config.json", tokenizer.config}};
  }

  static std::vector<PlannedFile> plan_of(const CheckpointLayout& layout) {
    std::vector<PlannedFile> files;
    for (const CheckpointLayout::File& file : layout.files())
      files.push_back({file.name, file.header, file.bytes, {}});
    for (std::size_t i = 0; i < layout.tensors().size(); ++i) {
      const auto& [file, offset] = layout.place(i);
      const StoredTensor& tensor = layout.tensors()[i];
      const auto bytes = num_elements(tensor.shape) * static_cast<std::int64_t>(size_of(tensor.dtype));
      files[file].tensors.push_back({i, offset, bytes});
    }
    return files;
  }

  void check_written() const {
    const CheckpointFolder written = CheckpointFolder::open(request_.destination);
    for (const StoredPair& pair : pairs_) {
      if (!written.contains(pair.ours) || written.tensor(pair.ours).shape != pair.shape)
        fail_runtime("[convert] {}: was written without {}", request_.destination, pair.ours);
    }
  }

  DType dtype_of(const StoredPair& pair) const {
    const DType stored = weights_.dtype(pair.theirs) == "BF16" ? DType::bf16 : DType::f32;
    return request_.dtype && !keeps_its_dtype(pair) ? *request_.dtype : stored;
  }

  Tensor moved(const StoredPair& pair) {
    return mover_.move(
        {pair.hub.shape, pair.shape, dtype_of(pair), 1, pair.hub.transposed,
         pair.hub.transposed ? pair.hub.shape[0] : 0},
        [&](std::int64_t begin, std::int64_t end) { return weights_.take_rows(pair.theirs, begin, end); });
  }

  // Chunks are hashed as they are written, or read again where an earlier attempt has written them.
  void write_file(const CheckpointLayout& layout, const PlannedFile& file, ResumableFolder& folder,
                  std::vector<WrittenChunk>& chunks, ConvertReport& report) {
    const bool kept = folder.has(file);
    if (!kept) {
      folder.write(file, [&](std::size_t i) {
        Tensor tensor = moved(pairs_[i]);
        add_chunks(layout.tensors()[i], i, tensor.raw(), chunks);
        return tensor;
      });
    } else {
      const SafetensorsFile written = SafetensorsFile::open(folder.place().temporary() + "/" + file.name);
      for (const PlannedFile::Place& place : file.tensors) {
        const StoredTensor& stored = layout.tensors()[place.tensor];
        add_chunks(stored, place.tensor, written.entries().at(stored.name).bytes.data(), chunks);
        written.release(stored.name);
      }
    }
    ++report.files;
    report.files_kept += kept;
    line_(fmt::format("{} {}", kept ? "kept" : "wrote", file.name));
  }

  void add_chunks(const StoredTensor& tensor, std::size_t index, const std::byte* data,
                  std::vector<WrittenChunk>& chunks) {
    for (Chunk& chunk : mover_.chunks_of(tensor, data)) chunks.push_back({index, std::move(chunk)});
  }

  Manifest manifest(const CheckpointLayout& layout) const {
    Manifest manifest;
    manifest.version = SWITCHYARD_VERSION;
    Config config = config_;
    const bool wide = std::any_of(
        layout.tensors().begin(), layout.tensors().end(),
        [](const StoredTensor& t) { return t.dtype == DType::f32 && !t.name.ends_with(".gate_bias"); });
    config.set("weight_dtype", wide ? "float32" : "bfloat16", "the weights");
    manifest.config = config.resolved();
    manifest.model = config.get_string("decoder_block");
    return manifest;
  }

  const ConvertRequest& request_;
  const ConvertLine& line_;
  const HubSource source_;
  Config config_;
  ModelConfig model_;
  const HubWeights& weights_;
  std::vector<StoredPair> pairs_;
  TensorMover mover_{usable_cores()};
};

}  // namespace

ConvertReport convert_to_switchyard(const ConvertRequest& request, const ConvertLine& line) {
  return ToSwitchyard(request, line).run();
}

}  // namespace switchyard
