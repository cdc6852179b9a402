// Converts a Hugging Face folder, GGUF file or checkpoint to a checkpoint.
#include <algorithm>
#include <filesystem>

#include "checkpoint/checkpoint_folder.h"
#include "checkpoint/layout.h"
#include "convert/directions.h"
#include "convert/model_source.h"
#include "convert/resumable_folder.h"
#include "convert/tensor_mover.h"
#include "core/cores.h"
#include "core/error.h"
#include "engine/carried_files.h"
#include "models/families/hub_source.h"
#include "models/packed_parameters.h"

namespace switchyard {
namespace {

// Returns a tensor's kind, under which the report counts it.
std::string kind_of(const std::string& name) {
  if (name == "embedding" || name == "head") return name;
  if (name.find(".experts.") != std::string::npos) return "experts";
  if (name.ends_with(".gate") || name.ends_with(".gate_bias")) return "router";
  if (name.ends_with("norm")) return "norms";
  return name.find(".attention.") != std::string::npos ? "attention" : "other layers";
}

std::unique_ptr<ModelSource> source_of(const ConvertRequest& request, const ConvertLine& line) {
  std::unique_ptr<ModelSource> source = is_hub_source(request.source)
                                            ? open_hub_model(request.source, line)
                                            : open_checkpoint_model(request.source, line);
  if (request.adapter.empty()) return source;
  return with_adapter_merged(std::move(source), request.source, request.adapter);
}

class ToSwitchyard {
 public:
  ToSwitchyard(const ConvertRequest& request, const ConvertLine& line)
      : request_(request), line_(line), source_(source_of(request, line)) {
    const std::vector<ParameterSpec> dense = parameter_specs(model_config(source_->config()));
    std::vector<ParameterSpec> held = dense;
    if (request.weights) {
      std::vector<std::string> notes;
      held = packed_specs(dense, *request.weights, &notes);
      for (const std::string& note : notes) line(note);
    }
    for (std::size_t i = 0; i < dense.size(); ++i) add(dense[i], held[i]);
  }

  ConvertReport run() {
    std::vector<StoredTensor> tensors;
    for (const Target& target : targets_) tensors.push_back(target.stored);
    const CheckpointLayout layout(std::move(tensors),
                                  request_.file_bytes.value_or(CheckpointLayout::kFileBytes));
    ConvertReport report = begin_report();
    const std::vector<ExtraFile> extras = source_->extras();  // before anything is written: it may be refused
    ResumableFolder folder(FileSystem::real(), request_.destination,
                           job_of(request_, report.target, source_->files()), "complete");
    for (const ExtraFile& extra : extras) {
      const std::string name = extra.name.substr(kCarriedFolder.size());
      if (name != "config.json") report.carried.push_back(name);
    }
    const std::vector<PlannedFile> files = plan_of(layout);
    if (!folder.is_done()) {
      std::vector<WrittenChunk> chunks;
      for (const PlannedFile& file : files) write_file(layout, file, folder, chunks, report);
      commit(FileSystem::real(), folder.place(), layout, source_->manifest(dense_dtype()), chunks, extras);
    }
    folder.finish();
    check_written();
    add_sizes(files, report);
    return report;
  }

 private:
  // A tensor of the checkpoint, and what it is made of.
  struct Target {
    StoredTensor stored;
    Shape shape;          // as the source has it
    std::int64_t inputs;  // of a packed matrix
  };

  void add(const ParameterSpec& dense, const ParameterSpec& held) {
    const StoredParameter from = stored_parameter(dense.name, dense.shape);
    const StoredParameter to = stored_parameter(held.name, held.shape);
    std::int64_t inputs = 1;
    for (std::size_t i = 0; i < held.matrix.inputs; ++i) inputs *= from.shape[i];
    for (const std::string& name : to.names) {
      const DType dtype = is_packed(held.dtype) ? held.dtype : dtype_of(name);
      targets_.push_back({{name, dtype, to.shape, false}, from.shape, inputs});
    }
  }

  DType dtype_of(const std::string& name) const {
    const DType stored = source_->dtype(name);
    if (keeps_its_dtype(name)) return stored;
    if (request_.dtype) return *request_.dtype;
    return request_.weights && source_->is_quantized() ? DType::bf16 : stored;
  }

  DType dense_dtype() const {
    const bool wide = std::any_of(targets_.begin(), targets_.end(), [](const Target& target) {
      return target.stored.dtype == DType::f32 && !keeps_its_dtype(target.stored.name);
    });
    return wide ? DType::f32 : DType::bf16;
  }

  ConvertReport begin_report() const {
    ConvertReport report;
    report.target = ConvertTarget::switchyard;
    for (const Target& target : targets_) {
      const std::string kind = kind_of(target.stored.name);
      const DType dtype = target.stored.dtype;
      auto row = std::find_if(report.kinds.begin(), report.kinds.end(),
                              [&](const ConvertedKind& k) { return k.kind == kind && k.dtype == dtype; });
      if (row == report.kinds.end()) row = report.kinds.insert(report.kinds.end(), {kind, dtype});
      ++row->tensors;
      row->parameters += num_elements(target.shape);
      row->bytes += num_elements(target.stored.shape) * static_cast<std::int64_t>(size_of(dtype));
      if (kind == "experts" && target.stored.name.ends_with(".wo")) ++report.experts;
      ++report.tensors;
      report.parameters += num_elements(target.shape);
    }
    return report;
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
    for (const Target& target : targets_) {
      const std::string& name = target.stored.name;
      if (!written.contains(name) || written.tensor(name).shape != target.stored.shape)
        fail_runtime("[convert] {}: was written without {}", request_.destination, name);
    }
  }

  Tensor made(const Target& target) {
    const StoredTensor& stored = target.stored;
    if (!is_packed(stored.dtype)) return source_->read(mover_, stored.name, target.shape, stored.dtype);
    const Tensor dense = source_->read(mover_, stored.name, target.shape, DType::f32);
    const Tensor packed(stored.dtype, stored.shape);
    if (!mover_.pack(dense, target.inputs, packed))
      fail_usage(
          "[convert] {} has a value that is no finite number, or too large for a scale in float16, which {} "
          "cannot hold",
          stored.name, name_of(stored.dtype));
    return packed;
  }

  // Chunks are hashed as they are written, or read again where an earlier attempt has written them.
  void write_file(const CheckpointLayout& layout, const PlannedFile& file, ResumableFolder& folder,
                  std::vector<WrittenChunk>& chunks, ConvertReport& report) {
    const bool kept = folder.has(file);
    if (!kept) {
      folder.write(file, [&](std::size_t i) {
        Tensor tensor = made(targets_[i]);
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

  const ConvertRequest& request_;
  const ConvertLine& line_;
  const std::unique_ptr<ModelSource> source_;
  std::vector<Target> targets_;
  TensorMover mover_{usable_cores()};
};

}  // namespace

ConvertReport convert_to_switchyard(const ConvertRequest& request, const ConvertLine& line) {
  return ToSwitchyard(request, line).run();
}

}  // namespace switchyard
