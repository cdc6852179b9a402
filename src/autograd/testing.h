// Helpers for the tests of autograd/, ops/ and moe/: local ranks on a mesh,
// blocks of global tensors, comparisons.
//
// A test states global tensors and shardings. Every rank makes its blocks, runs the same program and puts its
// results into a Gathered. Gathered checks that ranks which should hold the
// same values do, and assembles the global tensors.
#pragma once

#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "autograd/op.h"
#include "core/rng.h"
#include "core/testing.h"
#include "parallel/comm/local.h"

namespace switchyard::autograd_test {

// The axis rules of configs/base.yml.
inline std::vector<AxisRule> default_rules() {
  std::vector<AxisRule> rules;
  const YAML::Node base = YAML::LoadFile(std::string(kSourceFolder) + "/configs/base.yml");
  for (const auto& rule : base["logical_axis_rules"]) {
    AxisRule r{rule[0].as<std::string>(), {}};
    if (rule[1].IsScalar())
      r.axes.push_back(rule[1].as<std::string>());
    else
      for (const auto& axis : rule[1]) r.axes.push_back(axis.as<std::string>());
    rules.push_back(std::move(r));
  }
  return rules;
}

// The rounds of a property test: `usual`, and fifty times as many under `make soak`.
inline int trials(int usual) {
  return std::getenv("SWITCHYARD_SOAK") != nullptr ? 50 * usual : usual;
}

// Runs body on every rank of the mesh, each with `threads` threads.
inline void on_mesh(const Mesh& mesh, const std::function<void(Context&)>& body, int threads = 1) {
  static const std::vector<AxisRule> rules = default_rules();
  const AxisRules axis_rules(rules, mesh);
  run_local_ranks(mesh.size(), 60, [&](Communicator& comm) {
    ThreadPool pool(threads);
    Context context;
    context.rank = comm.rank();
    context.mesh = &mesh;
    context.rules = &axis_rules;
    context.comm = &comm;
    context.pool = &pool;
    body(context);
  });
}

inline Tensor random_tensor(const Shape& shape, std::uint32_t seed, float scale = 1) {
  Tensor t(DType::f32, shape);
  rng_fill_normal(rng_key(seed), 0, t.span<float>());
  for (float& v : t.span<float>()) v *= scale;
  return t;
}

inline Tensor random_integers(const Shape& shape, std::uint32_t seed, std::int32_t low, std::int32_t high) {
  Tensor t(DType::i32, shape);
  std::uint64_t i = 0;
  for (std::int32_t& v : t.span<std::int32_t>()) v = rng_randint(rng_key(seed), i++, low, high);
  return t;
}

// Calls visit(local element, global element) for every element of a rank's block.
template <typename Visit>
void visit_block(const Mesh& mesh, int rank, const Shape& shape, const Sharding& sharding, Visit visit) {
  const Shape local = local_shape(mesh, shape, sharding), offset = local_offset(mesh, rank, shape, sharding);
  for (std::int64_t i = 0; i < num_elements(local); ++i) {
    std::int64_t rest = i, at = 0, stride = 1;
    for (std::size_t d = shape.size(); d-- > 0;) {
      at += (offset[d] + rest % local[d]) * stride;
      rest /= local[d];
      stride *= shape[d];
    }
    visit(i, at);
  }
}

// A rank's block of a global tensor (f32 or i32). Over partial axes the ranks get different terms of the sum:
// noise on the others, and the remainder on the first rank.
inline Tensor block_of(const Mesh& mesh, int rank, const Tensor& global, const Sharding& sharding) {
  Tensor local(global.dtype(), local_shape(mesh, global.shape(), sharding));
  const int parts = mesh.product(sharding.partial), part = mesh.index_along(rank, sharding.partial);
  visit_block(mesh, rank, global.shape(), sharding, [&](std::int64_t to, std::int64_t from) {
    if (global.dtype() == DType::i32) {
      local.data<std::int32_t>()[to] = global.data<std::int32_t>()[from];
      return;
    }
    auto noise = [&](int p) {
      return rng_normal(rng_key(977), static_cast<std::uint64_t>(from) * 64 + static_cast<std::uint64_t>(p));
    };
    float value = part == 0 ? global.data<float>()[from] : noise(part);
    for (int p = 1; part == 0 && p < parts; ++p) value -= noise(p);
    local.data<float>()[to] = value;
  });
  return local;
}

inline Array leaf(const Context& c, const Tensor& global, const Sharding& sharding, bool requires_grad = true,
                  DType dtype = DType::f32) {
  Tensor block = block_of(*c.mesh, c.rank, global, sharding);
  if (is_float(global.dtype())) block = block.cast(dtype);
  return make_leaf(block, global.shape(), sharding, requires_grad && is_float(global.dtype()));
}

// A leaf sharded by the default rules.
inline Array leaf_by_rules(const Context& c, const Tensor& global,
                           const std::vector<std::string>& logical_dims, bool requires_grad = true,
                           DType dtype = DType::f32) {
  return leaf(c, global, c.rules->resolve(logical_dims, global.shape()).sharding, requires_grad, dtype);
}

class Gathered {
 public:
  explicit Gathered(const Mesh& mesh) : mesh_(mesh), pieces_(static_cast<std::size_t>(mesh.size())) {}

  void put(const Context& c, const std::string& name, const Array& x) {
    put(c, name, x.tensor(), x.shape(), x.sharding());
  }
  void put_grad(const Context& c, const std::string& name, const Array& x) {
    const Tensor grad = x.grad().defined() ? x.grad() : Tensor::zeros(x.dtype(), x.info().local);
    put(c, name, grad, x.shape(), dual(mesh_, x.sharding()));
  }
  void put(const Context& c, const std::string& name, const Tensor& local, const Shape& shape,
           const Sharding& sharding) {
    pieces_[static_cast<std::size_t>(c.rank)][name] = {
        is_float(local.dtype()) ? local.cast(DType::f32).clone() : local.clone(), shape, sharding};
  }

  // Returns the global tensor. Adds a test failure when ranks that should agree differ.
  Tensor get(const std::string& name) const {
    const Piece& first = pieces_[0].at(name);
    Tensor global = Tensor::zeros(first.local.dtype(), first.shape);
    for (int rank = 0; rank < mesh_.size(); ++rank) {
      const Piece& piece = pieces_[static_cast<std::size_t>(rank)].at(name);
      EXPECT_EQ(piece.sharding, first.sharding) << name;
      const int original = original_of(rank, piece.sharding);
      if (original != rank) {
        EXPECT_TRUE(std::equal(piece.local.raw(), piece.local.raw() + piece.local.bytes(),
                               pieces_[static_cast<std::size_t>(original)].at(name).local.raw()))
            << name << ": ranks " << rank << " and " << original << " hold different values";
        continue;
      }
      visit_block(mesh_, rank, piece.shape, piece.sharding, [&](std::int64_t from, std::int64_t to) {
        if (global.dtype() == DType::i32)
          global.data<std::int32_t>()[to] = piece.local.data<std::int32_t>()[from];
        else
          global.data<float>()[to] += piece.local.data<float>()[from];
      });
    }
    return global;
  }

 private:
  struct Piece {
    Tensor local;
    Shape shape;
    Sharding sharding;
  };
  // The rank at coordinate 0 of every axis over which the values are whole.
  int original_of(int rank, const Sharding& sharding) const {
    return mesh_.group(rank, dual(mesh_, sharding).partial).front();
  }

  const Mesh& mesh_;
  std::vector<std::map<std::string, Piece>> pieces_;
};

// True when max|got - want| <= tolerance * max(max|want|, 1e-6) and nothing is NaN.
inline ::testing::AssertionResult close(const Tensor& got, const Tensor& want, double tolerance) {
  if (got.shape() != want.shape()) {
    return ::testing::AssertionFailure()
           << to_string(got.shape()) << ", expected " << to_string(want.shape());
  }
  double worst = 0, largest = 1e-6;
  std::int64_t where = 0;
  for (std::int64_t i = 0; i < want.size(); ++i) {
    const double w = want.data<float>()[i], difference = std::abs(got.data<float>()[i] - w);
    largest = std::max(largest, std::abs(w));
    if (!(difference <= worst)) {
      worst = difference;
      where = i;
    }
    if (std::isnan(worst)) break;
  }
  if (worst <= tolerance * largest) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << "relative difference " << worst / largest << " over " << tolerance << ", largest at element "
         << where << " of " << to_string(want.shape()) << ": " << got.data<float>()[where] << ", expected "
         << want.data<float>()[where];
}

inline ::testing::AssertionResult identical(const Tensor& got, const Tensor& want) {
  if (got.shape() != want.shape() || got.dtype() != want.dtype())
    return ::testing::AssertionFailure() << "other form";
  if (std::equal(got.raw(), got.raw() + got.bytes(), want.raw())) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "bits differ";
}

inline double dot(const Tensor& a, const Tensor& b) {
  double sum = 0;
  for (std::int64_t i = 0; i < a.size(); ++i)
    sum += static_cast<double>(a.data<float>()[i]) * b.data<float>()[i];
  return sum;
}

// Makes small random choices for tests: a counter on one key.
class Chooser {
 public:
  explicit Chooser(std::uint32_t seed) : key_(rng_key(seed)) {}
  std::int64_t below(std::int64_t n) { return rng_randint(key_, next_++, 0, static_cast<std::int32_t>(n)); }
  template <typename T>
  const T& of(const std::vector<T>& values) {
    return values[static_cast<std::size_t>(below(static_cast<std::int64_t>(values.size())))];
  }

  // Every axis splits a dim, is partial (when allowed) or leaves the tensor whole; each dim keeps the axes
  // that divide it.
  Sharding sharding(const Mesh& mesh, const Shape& shape, bool partial) {
    Sharding s = replicated(shape.size());
    std::vector<MeshAxis> axes = mesh.axes();
    for (std::size_t i = axes.size(); i > 1; --i)
      std::swap(axes[i - 1], axes[static_cast<std::size_t>(below(static_cast<std::int64_t>(i)))]);
    for (const MeshAxis& axis : axes) {
      if (axis.size == 1) continue;
      const std::int64_t choice = below(static_cast<std::int64_t>(shape.size()) + 2);
      if (choice == 0 && partial) s.partial.push_back(axis.axis);
      if (choice < 2) continue;
      const auto d = static_cast<std::size_t>(choice - 2);
      if (shape[d] % (mesh.product(s.dims[d]) * axis.size) == 0) s.dims[d].push_back(axis.axis);
    }
    return s;
  }

 private:
  RngKey key_;
  std::uint64_t next_ = 0;
};

}  // namespace switchyard::autograd_test
