// Datasets: endless sequences of rows, addressed by position, so that a run can be resumed, even with another
// batch size or mesh, and be split over ranks without any state.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/tensor.h"
#include "core/thread_pool.h"
#include "tokenizer/tokenizer.h"

namespace switchyard {

// All i32 [B,S], where B is the number of rows. targets[b,s] is the token after inputs[b,s] in the same
// document. Positions start at 0 in every document. Segmentation numbers a row's documents from 1; 0 is
// padding in inputs, and in targets a position without a target (padding, and the last token of a document).
struct Batch {
  Tensor inputs, targets, inputs_position, inputs_segmentation, targets_segmentation;
  // The number of each token's adapter, where texts have several (models/adapter.h). Undefined: none has one.
  Tensor adapters = {};
  // f32 [B,S]: the factor of each target's loss. Undefined: each is 1.
  Tensor weights = {};

  // Returns the tensors that a model reads where it continues texts.
  std::vector<const Tensor*> parts_to_continue() const {
    std::vector<const Tensor*> parts{&inputs, &inputs_position, &inputs_segmentation};
    if (adapters.defined()) parts.push_back(&adapters);
    return parts;
  }
};

class Dataset {
 public:
  virtual ~Dataset() = default;
  // Reads rows first_row .. first_row + rows - 1 of the sequence. A row depends only on its position, so a
  // run sees the same rows in the same order for any batch size. Thread-safe.
  virtual Batch read(std::int64_t first_row, std::int64_t rows) = 0;
  // The number of rows in one pass over the data. After it, training data starts again (an epoch), and
  // held-out data is padding.
  virtual std::int64_t rows() const = 0;
  virtual std::string description() const = 0;
  // A hash of the documents that the rows are cut from; 0 for data that is made up.
  virtual std::uint64_t fingerprint() const { return 0; }
};

// One batch, of which each rank reads only its own rows.
struct BatchRows {
  // Rows first_row .. first_row + count - 1 of `data`, of `length` tokens each.
  BatchRows(Dataset& data, std::int64_t first_row, std::int64_t count, std::int64_t length);
  // A batch in memory.
  BatchRows(const Batch& batch);

  std::int64_t rows, sequence;
  std::function<Batch(std::int64_t begin, std::int64_t end)> read;  // rows [begin, end) of the batch
};

// Uniform random tokens in [0, vocab): the same `batch` rows again and again, equal bit for bit to the
// reference's synthetic data: tokens = randint(key 0, (B, S+1)), inputs all but the last column, targets all
// but the first.
std::unique_ptr<Dataset> make_synthetic(std::int64_t batch, std::int64_t sequence, std::int64_t vocab);

struct SplitData {
  std::unique_ptr<Dataset> train, eval;  // eval is null when no data is held out
};

// How documents are cut into rows, and how rows are ordered.
struct PackingOptions {
  std::int64_t batch = 1, sequence = 1;  // training data must fill one batch
  std::uint32_t seed = 0;                // seed of the order
  bool shuffle = true;                   // a new random order every epoch, which depends only on the seed
  bool pack = true;                      // rows hold several documents; false: one document per row
  bool truncate = true;  // without pack: the rest of a long document is dropped, not continued in more rows
  std::int64_t most_documents = -1;  // with pack, the most per row; -1: any number
};

struct TextOptions {
  double eval_fraction = 0;             // the held-out share, [0, 1)
  std::string column = "text";          // the key of a JSON record's text
  bool skip_records = true;             // JSON records without a text are skipped; false: refused
  bool add_bos = true, add_eos = true;  // around each document, if the tokenizer has them
  std::int64_t vocabulary = INT64_MAX;  // a document with an id from here on is refused
};

// Text from files and folders, kept in memory as tokens. `paths` is one path or several separated by ':'. A
// folder means the regular files below it, in sorted order, without hidden files and symbolic links. In
// a *.jsonl or *.ndjson file each line is a JSON object whose `column` is a document, in a *.json file each
// object or item of its array; any other file is one text. A file that holds no text is skipped with
// a notice on stderr (data/text_source.h).
//
// Held-out split: a file is cut at blank lines into sections of 4 to 8 KiB, and a hash of a section's text
// decides whether it is held out (about eval_fraction of all sections; equal sections are on the same side;
// at least one is held out when there are two). Neighbouring sections of a file on the same side form a
// document. A JSON line is both a section and a document. A row is S tokens of the concatenated documents,
// and their S targets, unless `packing` differs. Held-out rows keep their order. Error(usage) for missing
// paths, no text, a broken JSON line, fewer tokens than a batch needs, or a token that the model lacks.
SplitData make_text(const std::string& paths, const Tokenizer& tokenizer, const PackingOptions& packing,
                    const TextOptions& options, ThreadPool& pool);

}  // namespace switchyard
