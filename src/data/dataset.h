// Datasets: batches addressed by step, so that a run can be resumed, and cut over ranks, without any state.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "core/tensor.h"
#include "tokenizer/tokenizer.h"

namespace switchyard {

// All i32 [B,S] with B the global batch. targets[b,s] is the token after inputs[b,s] in the same document. Positions
// begin at 0 in every document. Segmentation numbers the documents of a row from 1; in inputs 0 is padding, in targets 0
// marks a place without a target (padding, and the last token of a document).
struct Batch {
  Tensor inputs, targets, inputs_position, inputs_segmentation, targets_segmentation;
};

class Dataset {
 public:
  virtual ~Dataset() = default;
  virtual Batch next(std::int64_t step) = 0;  // the global batch of `step` >= 0; depends on nothing else
  virtual std::string description() const = 0;
};

// Uniform random tokens in [0, vocab), the same batch at every step, equal bit for bit to the reference's synthetic
// data: tokens = randint(key 0, (B, S+1)), inputs all but the last column, targets all but the first.
std::unique_ptr<Dataset> make_synthetic(std::int64_t batch, std::int64_t sequence, std::int64_t vocab);

struct TextData {
  std::unique_ptr<Dataset> train, eval;  // eval is null when eval_fraction is 0
};

// Text from files and folders. `paths` is one or several separated by ':'; a folder means every regular file below
// it, in sorted order; a file with a NUL byte is skipped with a notice on stderr. Each file is a document. Documents go to
// eval or train by a hash of their text, about eval_fraction of the bytes to eval, at least one document when there are two.
// Training rows are packed documents, in a new random order every epoch; batch `step` depends only on seed and step. Eval
// batches repeat in the same order. Error(usage) for missing paths, no text, or fewer tokens than one batch.
TextData make_text(const std::string& paths, const Tokenizer& tokenizer, std::int64_t batch, std::int64_t sequence,
                   std::uint32_t seed, double eval_fraction);

}  // namespace switchyard
