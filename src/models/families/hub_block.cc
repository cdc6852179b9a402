// Reads blocks of our parameters from Hugging Face tensors, a few rows at a time.
#include <algorithm>
#include <cstring>
#include <vector>

#include "checkpoint/layout.h"
#include "checkpoint/transpose.h"
#include "core/error.h"
#include "models/families/hub_tensors.h"

namespace switchyard {
namespace {

constexpr std::int64_t kHubSlabBytes = std::int64_t{8} << 20;

// Indices that a box of dims has when these are merged to one, in order.
std::vector<std::int64_t> merged_indices(const Shape& shape, const Box& box) {
  std::vector<std::int64_t> indices;
  for_runs(shape, box, [&](std::int64_t from, std::int64_t, std::int64_t count) {
    for (std::int64_t i = 0; i < count; ++i) indices.push_back(from + i);
  });
  return indices;
}

// Reads blocks of one tensor of a model.
class HubBlockReader {
 public:
  HubBlockReader(const HubWeights& weights, const std::string& name, const HubTensors& form,
                 const HubCast& cast)
      : weights_(weights), name_(name), form_(form), cast_(cast) {
    if (weights.shape(name) != form.shape)
      fail_usage("[checkpoint] {}: tensor {} has shape {}, expected {}", weights.path(), name,
                 to_string(weights.shape(name)), to_string(form.shape));
  }

  // The box of our tensor `shape`, to `out`.
  void read(const Shape& shape, const Box& box, std::byte* out) const {
    if (num_elements(box.shape) == 0) return;
    if (form_.transposed)
      read_transposed(shape, box, out);
    else
      read_rows(shape, box, out);
  }

 private:
  std::int64_t most_rows() const {
    const std::int64_t rows = form_.shape.empty() ? 1 : form_.shape[0];
    const std::int64_t row_bytes = num_elements(form_.shape) / rows * std::int64_t{sizeof(float)};
    return std::max<std::int64_t>(1, kHubSlabBytes / row_bytes);
  }

  // Returns rows of the tensor in the type of the result, and releases the rows' pages of the file.
  Tensor take(std::int64_t begin, std::int64_t end) const {
    const bool exact = cast_.dtype == DType::f32;
    Tensor rows = exact ? weights_.take_values(name_, begin, end) : weights_.take_rows(name_, begin, end);
    if (!is_float(rows.dtype()))
      fail_usage("[checkpoint] {}: tensor {} is {}, expected floating point", weights_.path(), name_,
                 name_of(rows.dtype()));
    rows = rows.cast(cast_.dtype);
    if (cast_.factor == 1) return rows;
    const Tensor product = rows.cast(DType::f32).clone();
    for (float& v : product.span<float>()) v *= cast_.factor;
    return product.cast(cast_.dtype);
  }

  void read_rows(const Shape& shape, const Box& box, std::byte* out) const {
    const std::size_t element = size_of(cast_.dtype);
    if (shape.size() == 1 && form_.shape.size() == 2) {  // ours is one row there (TensorForm::row)
      const Tensor row = take(0, 1);
      std::memcpy(out, row.raw() + static_cast<std::size_t>(box.start[0]) * element,
                  static_cast<std::size_t>(box.shape[0]) * element);
      return;
    }
    const std::int64_t first = box.start.empty() ? 0 : box.start[0];
    const std::int64_t last = first + (box.shape.empty() ? 1 : box.shape[0]);
    // Rows there may have heads apart here: so many of them are one here.
    const std::int64_t inner = shape.size() > 1 && shape[0] > 0 ? form_.shape[0] / shape[0] : 1;
    for (std::int64_t row = first, most = std::max<std::int64_t>(1, most_rows() / inner); row < last;
         row += most) {
      Tensor slab = take(row * inner, std::min(last, row + most) * inner);
      if (inner > 1 || form_.shape.size() != shape.size()) {
        Shape apart = shape;
        apart[0] = slab.dim(0) / inner;
        slab = slab.reshaped(apart);
      }
      Box part = box;  // of the slab
      if (!shape.empty()) {
        part.start[0] = 0;
        part.shape[0] = slab.dim(0);
      }
      for_runs(slab.shape(), part, [&](std::int64_t from, std::int64_t to, std::int64_t count) {
        std::memcpy(out + static_cast<std::size_t>(to) * element,
                    slab.raw() + static_cast<std::size_t>(from) * element,
                    static_cast<std::size_t>(count) * element);
      });
      out += static_cast<std::size_t>(num_elements(part.shape)) * element;
    }
  }

  // Ours is [inputs, outputs], the file's [outputs, inputs], each side one or more dims here.
  void read_transposed(const Shape& shape, const Box& box, std::byte* out) const {
    std::size_t dims = 1;  // of the inputs
    for (std::int64_t inputs = shape[0]; inputs < form_.shape[1]; ++dims) inputs *= shape[dims];
    const auto side = [&](const Shape& all, bool outputs) {
      const auto middle = all.begin() + static_cast<std::ptrdiff_t>(dims);
      return outputs ? Shape(middle, all.end()) : Shape(all.begin(), middle);
    };
    const auto indices = [&](bool outputs) {
      return merged_indices(side(shape, outputs), {side(box.start, outputs), side(box.shape, outputs)});
    };
    const std::vector<std::int64_t> inputs = indices(false), outputs = indices(true);
    const std::size_t element = size_of(cast_.dtype);
    const auto columns = static_cast<std::int64_t>(inputs.size());
    const bool whole_rows = columns == form_.shape[1];
    const std::int64_t most = most_rows();
    for (std::size_t begin = 0, end = 0; begin < outputs.size(); begin = end) {
      while (end < outputs.size() && outputs[end] < outputs[begin] + most) ++end;
      Tensor slab = take(outputs[begin], outputs[end - 1] + 1);
      const auto rows = static_cast<std::int64_t>(end - begin);
      if (!whole_rows || slab.dim(0) != rows) {
        const Tensor wanted(cast_.dtype, {rows, columns});
        std::byte* to = wanted.raw();
        for (std::size_t r = begin; r < end; ++r) {
          const std::byte* row =
              slab.raw() + static_cast<std::size_t>((outputs[r] - outputs[begin]) * slab.dim(1)) * element;
          for (const std::int64_t column : inputs) {
            std::memcpy(to, row + static_cast<std::size_t>(column) * element, element);
            to += element;
          }
        }
        slab = wanted;
      }
      transpose(element, slab.raw(), rows, columns, out + begin * element,
                static_cast<std::int64_t>(outputs.size()));
    }
  }

  const HubWeights& weights_;
  const std::string& name_;
  const HubTensors& form_;
  const HubCast& cast_;
};

}  // namespace

Tensor hub_block(const HubWeights& weights, const ModelFamily& family, const std::string& our_name,
                 const Shape& our_shape, const Box& box, const HubCast& cast) {
  CHECK(inside(box, our_shape) && is_float(cast.dtype), "{} of {} {}", to_string(box), our_name,
        to_string(our_shape));
  const HubTensors form = hub_tensors(family, our_name, our_shape);
  Tensor out(cast.dtype, box.shape);
  if (!stored_parameter(our_name, our_shape).is_stack) {
    HubBlockReader(weights, form.names.front(), form, cast).read(our_shape, box, out.raw());
    return out;
  }
  const auto below = [](const Shape& shape) { return Shape(shape.begin() + 1, shape.end()); };
  const Box each{below(box.start), below(box.shape)};
  for (std::int64_t e = 0; e < box.shape[0]; ++e) {
    const std::string& name = form.names[static_cast<std::size_t>(box.start[0] + e)];
    HubBlockReader(weights, name, form, cast).read(below(our_shape), each, out.slice_rows(e, e + 1).raw());
  }
  return out;
}

}  // namespace switchyard
