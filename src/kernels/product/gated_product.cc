// The table of what makes gate and up of gated experts on GPUs, and their activation, best first. A CPU has
// a form of its products for it (product.h).
#include "kernels/product/cuda/gated_product.h"

#include "kernels/registry/kernel.h"

namespace switchyard::gpu {
namespace {

constexpr Implementation<GmmPairArgs> kGatedProducts[] = {
    {"cuda_hopper", Gpu::hopper, hopper_gated_product, hopper_gated_refuses},
    {"cuda_composed", Gpu::any, composed_gated_product},
};

}  // namespace

void run_gated_product(const GmmPairArgs& args) {
  using Row = Implementation<GmmPairArgs>;
  registry::choose("gated_product", "gmm_pair", std::span<const Row>(kGatedProducts), true,
                   [&](const Row& row) { return row.refuses == nullptr ? nullptr : row.refuses(args); })
      .launch(args);
}

}  // namespace switchyard::gpu
