// MoeLayer: the Mixture-of-Experts layer of a model (router, experts, shared experts), forward and backward,
// for a program that holds the weights and the rest of the model itself.
//
//   const MoeLayer layer = MoeLayer::open(Settings::parse({"model_name=deepseek3-tiny", "ranks=4"}));
//   MoeLayer::Result made = layer.forward(x, weights, all);                 // y, balance loss
//   std::vector<FloatArray> gradients = layer.backward(std::move(made.kept), dy, 1, all);
//
// Every forward keeps a graph of its own: a program may run several forwards before a backward, and call
// their backwards in any order.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "switchyard/engine.h"

namespace switchyard {

enum class FloatType { float32, bfloat16 };

// An array in the host's memory with its last dim contiguous and no gaps. `owner` keeps `data` valid. Without
// an owner the caller does, for a forward until its Kept is gone. Memory at a multiple of 64 bytes is used in
// place; other memory is copied. Without `data`: no array.
struct FloatArray {
  FloatType type = FloatType::float32;
  std::vector<std::int64_t> shape;
  const void* data = nullptr;
  std::shared_ptr<const void> owner = nullptr;
};

struct LayerWeight {
  std::string name;                 // "gate", "gate_bias", "wi_0", "shared.wo"; as in the names of parameters
  std::vector<std::int64_t> shape;  // gate [M,E]; wi_0, wi_1 [E,M,H]; wo [E,H,M]
  double deviation = 0;             // standard deviation of a random start; 0: it starts with zeros
  bool trained = true;              // false: it has no gradient
};

class MoeLayer {
 public:
  // A forward leaves this for its backward. It frees itself, on any thread.
  class Kept {
   public:
    Kept();
    Kept(Kept&&) noexcept;
    Kept& operator=(Kept&&) noexcept;
    ~Kept();
    bool empty() const { return graph_ == nullptr; }

   private:
    friend class MoeLayer;
    struct Graph;
    std::unique_ptr<Graph> graph_;
  };
  struct Result {
    FloatArray y;             // [B,S,M], in the type of x
    double balance_loss = 0;  // times load_balance_loss_weight; a model's loss adds the mean over its layers
    Kept kept;                // empty where nothing is differentiated
  };

  // The first MoE layer of the model that the settings describe, on their mesh, in this process. Error(usage)
  // for a model without one, and for settings that a layer cannot keep, such as weights from files and
  // devices but the CPU.
  static MoeLayer open(const Settings& settings);
  MoeLayer(MoeLayer&&) noexcept;
  MoeLayer& operator=(MoeLayer&&) = delete;
  ~MoeLayer();  // ends the rank threads

  const std::vector<LayerWeight>& weights() const;
  std::int64_t width() const;  // M

  // Runs the layer on x [B,S,M], in x's type; where `dtype` is set, x has that type. `weights`: as weights()
  // lists them, each in either type; gate_bias in float32. `segments` [B*S]: 0 is padding, which gets zeros;
  // empty: there is none. `differentiated`: x first, then each weight, the arrays that backward() may be
  // asked about; empty: none, and nothing is kept. x and the weights must not change before the backward.
  Result forward(const FloatArray& x, std::span<const FloatArray> weights,
                 const std::vector<bool>& differentiated = {},
                 std::span<const std::int32_t> segments = {}) const;

  // The gradients of sum(y * dy) + balance_loss * dloss for the arrays that `wanted` names among
  // `differentiated`, each in the type of its array; without data where not wanted. dy: [B,S,M] in the type
  // of x; no array means zeros.
  std::vector<FloatArray> backward(Kept kept, const FloatArray& dy, double dloss,
                                   const std::vector<bool>& wanted) const;

 private:
  struct Impl;
  explicit MoeLayer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace switchyard
