#include "data/epochs.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "data/packing.h"

namespace switchyard {
namespace {

class Ending : public Dataset {
 public:
  Ending(std::unique_ptr<Dataset> data, std::int64_t rows) : data_(std::move(data)), rows_(rows) {}
  std::int64_t rows() const override { return rows_; }
  std::string description() const override { return data_->description(); }
  std::uint64_t fingerprint() const override { return data_->fingerprint(); }

  Batch read(std::int64_t first_row, std::int64_t rows) override {
    const std::int64_t left = std::clamp<std::int64_t>(rows_ - first_row, 0, rows);
    if (left == rows) return data_->read(first_row, rows);
    const Batch some = data_->read(first_row, std::max<std::int64_t>(1, left));
    Batch out = empty_batch(rows, some.inputs.dim(1));
    copy_rows(some, 0, out, 0, left);
    return out;
  }

 private:
  std::unique_ptr<Dataset> data_;
  std::int64_t rows_;
};

}  // namespace

std::unique_ptr<Dataset> make_ending(std::unique_ptr<Dataset> data, std::int64_t rows) {
  CHECK(data != nullptr && rows >= 1, "{} rows", rows);
  return std::make_unique<Ending>(std::move(data), rows);
}

}  // namespace switchyard
