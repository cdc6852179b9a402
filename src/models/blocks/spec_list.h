// SpecList: the weights of a model while they are listed.
#pragma once

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "models/parameters.h"

namespace switchyard {

// Functions add a weight by its kind: what it is drawn from, and which dims of it are a matrix.
class SpecList {
 public:
  explicit SpecList(const ModelConfig& model) : m_(model) {}

  void kernel(std::string name, Shape shape, std::vector<std::string> dims, std::int64_t fan_in,
              MatrixForm form = {0, 1}) {
    add(std::move(name), std::move(shape), std::move(dims), Initializer::truncated_normal,
        1 / std::sqrt(static_cast<double>(fan_in)));
    specs_.back().matrix = form;
  }
  void projection(std::string name, Shape shape, std::vector<std::string> dims, std::int64_t fan_in,
                  double factor = 1) {
    add(std::move(name), std::move(shape), std::move(dims), Initializer::normal,
        factor / std::sqrt(static_cast<double>(fan_in)));
    specs_.back().matrix = {0, 1};
  }
  void norm(std::string name, std::int64_t dim, std::string logical = "norm") {
    add(std::move(name), {dim}, {std::move(logical)},
        m_.norm_plus_one ? Initializer::zeros : Initializer::ones, 0);
  }
  void norm_of_heads(std::string name, Shape heads) {
    add(std::move(name), std::move(heads), {"", ""}, Initializer::ones, 0);
  }
  void bias(std::string name, Shape shape, std::vector<std::string> dims) {
    add(std::move(name), std::move(shape), std::move(dims), Initializer::zeros, 0);
  }
  void add(std::string name, Shape shape, std::vector<std::string> dims, Initializer initializer,
           double deviation) {
    specs_.push_back({std::move(name),
                      std::move(shape),
                      std::move(dims),
                      initializer,
                      deviation,
                      m_.weight_dtype,
                      true,
                      {}});
  }
  std::vector<ParameterSpec>& specs() { return specs_; }

 private:
  const ModelConfig& m_;
  std::vector<ParameterSpec> specs_;
};

}  // namespace switchyard
