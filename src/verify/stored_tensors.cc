#include "verify/stored_tensors.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <cmath>
#include <cstring>
#include <limits>
#include <string_view>

#include "core/error.h"
#include "core/json_file.h"
#include "core/sha256.h"

namespace switchyard {
namespace {

constexpr std::int64_t kHashedValues = std::int64_t{1} << 21;  // at once
constexpr double kUlp = 0x1p-23;  // the most that an ulp of a value is of the largest one
constexpr std::string_view kValuesPrefix = "tensor.";

std::int64_t rows_in(const Shape& shape) {
  return shape.empty() || shape.back() == 0 ? 0 : num_elements(shape) / shape.back();
}

Shape stated_shape(const std::string& path, const std::string& name, const nlohmann::json& tensor) {
  const auto dims = tensor.at("shape").get<std::vector<std::int64_t>>();
  if (dims.size() > kMostDims)
    fail_usage("[verify] {}: states {} dims of tensor {}", path, dims.size(), in_quotes(name));
  return Shape(dims.begin(), dims.end());
}

// Returns "layer 3" for `blk.3.…` and `model.layers.3.…`.
std::string place_in_file(const std::string& name) {
  for (const std::string_view prefix : {"blk.", "model.layers."}) {
    if (!name.starts_with(prefix)) continue;
    std::int64_t layer = 0;
    const char* const end = name.data() + name.size();
    const auto [stop, status] = std::from_chars(name.data() + prefix.size(), end, layer);
    if (status == std::errc() && stop != end && *stop == '.') return fmt::format("layer {}", layer);
  }
  return "";
}

// Floats as integers in their order, both zeros as 0.
std::int64_t ordered(float value) {
  const auto bits = std::bit_cast<std::int32_t>(value);
  return bits >= 0 ? bits : -(std::int64_t{bits} - std::numeric_limits<std::int32_t>::min());
}

bool within_an_ulp(float a, float b) {
  if (std::isnan(a) || std::isnan(b))
    return std::bit_cast<std::uint32_t>(a) == std::bit_cast<std::uint32_t>(b);
  return std::abs(ordered(a) - ordered(b)) <= 1;
}

class StoredTensorCheck {
 public:
  StoredTensorCheck(const TensorReader& reader, const StatedTensors& stated)
      : reader_(reader), stated_(stated) {}

  void check_names() const {
    const auto& tensors = stated_.tensors;
    if (!tensors.is_object() || tensors.empty())
      fail_usage("[verify] {}: states no tensor of {}: nothing would be compared", stated_.path,
                 reader_.path);
    for (const std::string& name : reader_.needed) {
      if (!tensors.contains(name))
        fail_usage("[verify] {}: does not state tensor {} of {}", stated_.path, in_quotes(name),
                   reader_.path);
    }
    for (const auto& [name, tensor] : tensors.items()) {
      if (!reader_.contains(name))
        fail_usage("[verify] {}: states tensor {}, which {} does not have", stated_.path, in_quotes(name),
                   reader_.path);
      const Shape shape = stated_shape(stated_.path, name, tensor), own = reader_.shape(name);
      if (shape != own)
        fail_usage("[verify] {}: states tensor {} as {}, in {} it is {}", stated_.path, in_quotes(name),
                   to_string(shape), reader_.path, to_string(own));
    }
    for (const auto& [name, entry] : stated_.values.entries()) {
      if (!name.starts_with(kValuesPrefix)) continue;
      const std::string of = name.substr(kValuesPrefix.size());
      if (!tensors.contains(of) || !tensors.at(of).contains("rows"))
        fail_usage("[verify] {}: holds rows of {}, of which {} states none", stated_.values.path(),
                   in_quotes(of), stated_.path);
    }
  }

  Row check(const std::string& name, const nlohmann::json& tensor) const {
    Row row{name, place_in_file(name), "tensors", {}, 0};
    if (hash_of(name) == tensor.at("sha256").get<std::string>()) return row;
    const double unknown = std::numeric_limits<double>::quiet_NaN();
    row.error = {unknown, unknown};
    row.failure = "other values than its hash says";
    if (!tensor.contains("rows")) return row;
    const Tensor want = stated_rows(name, tensor), got = own_rows(name, tensor);
    if (want.size() == 0) return row;
    row.error = difference(got, want);
    if (!has_offset(tensor.at("type").get<std::string>())) return row;
    row.tolerance = kUlp;
    std::int64_t apart = 0;
    for (std::int64_t i = 0; i < want.size(); ++i)
      apart += within_an_ulp(got.data<float>()[i], want.data<float>()[i]) ? 0 : 1;
    if (apart > 0)
      row.failure = fmt::format("{} of {} values off by more than an ulp", apart, want.size());
    else if (std::memcmp(got.raw(), want.raw(), want.bytes()) != 0)
      row.failure = "";
    else  // then rounding is not what makes the hash another one
      row.failure = "other values outside the rows that are given";
    return row;
  }

 private:
  std::string hash_of(const std::string& name) const {
    const Shape shape = reader_.shape(name);
    const std::int64_t rows = rows_in(shape);
    const std::int64_t most = rows == 0 ? 1 : std::max<std::int64_t>(1, kHashedValues / shape.back());
    Sha256 hash;
    for (std::int64_t begin = 0; begin < rows; begin += most)
      hash.add(std::as_bytes(reader_.rows(name, begin, std::min(rows, begin + most)).span<float>()));
    return hash.hex();
  }

  Tensor stated_rows(const std::string& name, const nlohmann::json& tensor) const {
    const std::string stored = std::string(kValuesPrefix) + name;
    const auto count = static_cast<std::int64_t>(tensor.at("rows").size());
    const Shape shape = reader_.shape(name);
    Tensor values = stated_.values.read(stored);
    if (shape.empty() || values.shape() != Shape{count, shape.back()} || values.dtype() != DType::f32)
      fail_usage("[verify] {}: {} is {} {}, expected {} rows of tensor {} in float32", stated_.values.path(),
                 in_quotes(stored), name_of(values.dtype()), to_string(values.shape()), count,
                 to_string(shape));
    return values;
  }

  Tensor own_rows(const std::string& name, const nlohmann::json& tensor) const {
    const auto wanted = tensor.at("rows").get<std::vector<std::int64_t>>();
    const Shape shape = reader_.shape(name);
    const Tensor out(DType::f32, {static_cast<std::int64_t>(wanted.size()), shape.back()});
    std::byte* to = out.raw();
    for (const std::int64_t at : wanted) {
      if (at < 0 || at >= rows_in(shape))
        fail_usage("[verify] {}: states row {} of tensor {} {}", stated_.path, at, in_quotes(name),
                   to_string(shape));
      const Tensor one = reader_.rows(name, at, at + 1);
      std::memcpy(to, one.raw(), one.bytes());
      to += one.bytes();
    }
    return out;
  }

  const TensorReader& reader_;
  const StatedTensors& stated_;
};

}  // namespace

bool has_offset(const std::string& type) {
  constexpr std::string_view kTypes[] = {"Q4_1", "Q5_1", "Q2_K", "Q4_K", "Q5_K"};
  return std::ranges::find(kTypes, type) != std::end(kTypes);
}

void compare_stored_tensors(const TensorReader& reader, const StatedTensors& stated, CaseReport& report) {
  const StoredTensorCheck check(reader, stated);
  check.check_names();
  for (const auto& [name, tensor] : stated.tensors.items()) report.rows.push_back(check.check(name, tensor));
}

}  // namespace switchyard
