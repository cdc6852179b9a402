// Datasets: endless sequences of rows, addressed by position, so that a run can be resumed, with another
// batch size or mesh, and be cut over ranks without any state.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "core/tensor.h"
#include "core/thread_pool.h"
#include "tokenizer/tokenizer.h"

namespace switchyard {

// All i32 [B,S] with B the number of rows. targets[b,s] is the token after inputs[b,s] in the same document.
// Positions begin at 0 in every document. Segmentation numbers the documents of a row from 1; in inputs 0 is
// padding, in targets 0 marks a place without a target (padding, and the last token of a document).
struct Batch {
  Tensor inputs, targets, inputs_position, inputs_segmentation, targets_segmentation;
};

class Dataset {
 public:
  virtual ~Dataset() = default;
  // Rows first_row .. first_row + rows - 1 of the sequence. A row depends on its position only, so however a
  // run is cut into batches it sees the same rows in the same order. Thread-safe.
  virtual Batch read(std::int64_t first_row, std::int64_t rows) = 0;
  // Rows until everything has been seen once. Then training data begins again (an epoch), held-out data is
  // padding.
  virtual std::int64_t rows() const = 0;
  virtual std::string description() const = 0;
};

// One batch, of which each rank reads its own rows only.
struct BatchRows {
  // Rows first_row .. first_row + count - 1 of `data`, of `length` tokens each.
  BatchRows(Dataset& data, std::int64_t first_row, std::int64_t count, std::int64_t length);
  // A batch in memory.
  BatchRows(const Batch& batch);

  std::int64_t rows, sequence;
  std::function<Batch(std::int64_t begin, std::int64_t end)> read;  // rows [begin, end) of the batch
};

// Uniform random tokens in [0, vocab), the same `batch` rows again and again, equal bit for bit to the
// reference's synthetic data: tokens = randint(key 0, (B, S+1)), inputs all but the last column, targets all
// but the first.
std::unique_ptr<Dataset> make_synthetic(std::int64_t batch, std::int64_t sequence, std::int64_t vocab);

struct SplitData {
  std::unique_ptr<Dataset> train, eval;  // eval is null where nothing is held out
};

// How rows are cut from documents and ordered.
struct PackingOptions {
  std::int64_t batch = 1, sequence = 1;  // training data must fill one batch
  std::uint32_t seed = 0;                // of the order
  bool shuffle = true;                   // a new random order every epoch, which depends on the seed only
  bool pack = true;                      // documents follow each other in rows; false: one document a row
  bool truncate = true;  // without pack: what a row has no room for is left out, not in further rows
  std::int64_t most_documents = -1;  // with pack, of a row; -1: any number
};

struct TextOptions {
  double eval_fraction = 0;             // the share that is held out, [0, 1)
  std::string column = "text";          // the key of a JSON line that holds its text
  bool add_bos = true, add_eos = true;  // around a document, as far as the tokenizer has them
};

// Text from files and folders, kept in memory as tokens. `paths` is one or several separated by ':'. A folder
// means the regular files below it, in sorted order, without hidden files and symbolic links. In a *.jsonl or
// *.ndjson file each line is a JSON object whose `column` is a document; of any other file the whole text,
// and one with a NUL byte is skipped with a notice on stderr.
//
// Held-out split: a file is cut at blank lines into sections of 4 to 8 KiB, and a hash of a section's text
// decides whether it is held out (about eval_fraction of them; equal sections share their fate; at least one
// when there are two). The neighbouring sections of a file on the same side form a document. A JSON line is a
// section and a document. Rows are S tokens of all documents in a row, and their S targets, or what `packing`
// says. Held-out rows keep their order. Error(usage) for missing paths, no text, a broken JSON line, or fewer
// tokens than a batch needs.
SplitData make_text(const std::string& paths, const Tokenizer& tokenizer, const PackingOptions& packing,
                    const TextOptions& options, ThreadPool& pool);

}  // namespace switchyard
