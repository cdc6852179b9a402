// Presents a GGUF file as a Hugging Face model: its metadata as a config.json, its tensors under
// transformers' names (architectures.h lists the architectures).
//
// Weights that GGUF stores in another form are converted back: the architecture llama has rows of attn_q and
// attn_k in another order, experts are one tensor, kv_b_proj of deepseek2 is two tensors, one of them
// transposed, norms of qwen3next are 1 + weight (docs/design/gguf.md). Matrices that transformers fuses in
// one tensor have the names from families/fused_weights.h. Values are the blocks' float32 values, bit for
// bit, except those that are converted back by arithmetic.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "checkpoint/hub_weights.h"
#include "gguf/architectures.h"
#include "gguf/gguf_file.h"

namespace switchyard {

// The model's config.json as transformers would have it. Error(usage) naming the key for an unknown
// architecture, a value that config.json cannot express, or a key of something that is not computed here.
// `notice`: gets a line that names the keys without a meaning here, or "".
nlohmann::json hub_config_of(const GgufFile& file, std::string* notice = nullptr);

// A field that no published config.json has: "none", "inputs" or "inputs and output" of attention have
// biases, as the tensors say. It counts for every family.
inline constexpr const char* kGgufAttentionBiases = "gguf_attention_biases";

class GgufWeights : public HubWeights {
 public:
  // `config`: hub_config_of(file). Error(usage) naming the first tensor without a known name.
  GgufWeights(GgufFile file, const nlohmann::json& config);

  const std::string& path() const override { return file_.path(); }
  std::vector<std::string> names() const override;
  bool contains(const std::string& name) const override { return parts_.contains(name); }
  std::string stored_name(const std::string& name) const override;
  Shape shape(const std::string& name) const override { return at(name).shape; }
  std::string dtype(const std::string& name) const override;  // BF16 for BF16, else F32
  Tensor read(const std::string& name) const override;
  Tensor take_rows(const std::string& name, std::int64_t begin, std::int64_t end) const override;
  // int8 for Q8_0, Q5_0 and IQ4_NL, int4 for Q4_0, int4a for Q4_1, int5a for Q5_1, mxfp4 for MXFP4, and q4_k,
  // q5_k and q6_k.
  std::optional<DType> packed_dtype(const std::string& name) const override;
  Tensor take_blocks(const std::string& name) const override;
  const GgufFile& file() const { return file_; }

 private:
  // Runs of `run` rows, values or columns that the file stores in another order: of heads in `groups` groups
  // of `of_group`, the file has the first head of each group, then the second of each, and so on.
  struct Turns {
    std::int64_t run = 0, groups = 1, of_group = 1;
    std::int64_t there(std::int64_t i) const;
  };
  // How a weight is assembled from the file's tensors.
  struct Part {
    enum class Form {
      rows,      // the weight's rows are rows of the tensor, from `first` on
      runs,      // runs of `head` rows, one in each `stride` rows of the tensor, from `first` on
      permuted,  // as `rows`, in another order within each head of `head` rows; a vector: of `head` values
      kv_b,      // heads: `head` transposed rows of `tensor` (attn_k_b), then rows of `second` (attn_v_b)
    };
    // How the file's value relates to the weight's value.
    enum class Stored { as_is, plus_one, minus_exponential };
    Form form = Form::rows;
    std::string tensor, second;
    std::int64_t first = 0, head = 0;
    Shape shape;
    std::int64_t stride = 0;
    Turns turns = {}, columns = {};  // of row runs, and of column runs; a vector's values are columns
    Stored stored = Stored::as_is;

    std::int64_t width() const { return shape.size() == 1 ? shape[0] : num_elements(shape) / shape[0]; }
  };

  void add(const std::string& tensor, const GgufArchitecture& architecture, const nlohmann::json& config);
  void add_experts(const std::string& tensor, const std::string& name, std::string_view suffix,
                   std::string_view second = {});
  void add_latent_up_projection(const std::string& layer, const std::string& name,
                                const nlohmann::json& config);
  // For a layer of a model with delta nets: returns true when the tensor
  // `below` the layer is one that other families lack.
  bool add_delta_net(const std::string& tensor, const std::string& below, const std::string& prefix,
                     const GgufArchitecture& architecture, const nlohmann::json& config);
  const Part& at(const std::string& name) const;
  Tensor rows_of(const Part& part, std::int64_t begin, std::int64_t end, bool release) const;
  static std::int64_t permuted_there(std::int64_t row, std::int64_t head);
  static std::int64_t row_there(const Part& part, std::int64_t row);
  static void turn_back(const Part& part, std::span<float> row);

  GgufFile file_;
  std::map<std::string, Part> parts_;
};

}  // namespace switchyard
