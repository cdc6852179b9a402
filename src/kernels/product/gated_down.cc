#include "kernels/product/gated_down.h"

#include "kernels/cuda/launch_pool.h"
#include "kernels/pointwise/elementwise.h"
#include "kernels/product/cuda/gated_product.h"
#include "kernels/product/grouped_matmul.h"
#include "kernels/product/scratch.h"
#include "kernels/registry/kernel.h"

namespace switchyard {
namespace {

std::size_t dhidden_bytes(const GatedDownBackwardArgs& args) {
  return args.gate.bytes();
}

void composed(ThreadPool& pool, const GatedDownBackwardArgs& args) {
  const Scratch dhidden(args.gate, args.gate.dtype(), args.gate.shape());
  gmm_dlhs(pool, {args.dy, args.wo, args.group_sizes, dhidden.view()});
  if (args.gate.size() > 0 || args.drow_weights.size() > 0)
    swiglu_backward(pool, {args.gate, args.up, args.row_weights, dhidden.view(), args.dgate, args.dup,
                           args.drow_weights});
  if (args.hidden.size() > 0) swiglu(pool, {args.gate, args.up, args.row_weights, args.hidden});
}

void composed_on_gpu(const GatedDownBackwardArgs& args) {
  gpu::LaunchPool pool;
  composed(pool, args);
}

Work gated_down_work(const GatedDownBackwardArgs& args) {
  const auto rows = static_cast<double>(args.gate.dim(0)), columns = static_cast<double>(args.gate.dim(1)),
             depth = static_cast<double>(args.dy.dim(1));
  return {.dtype = args.gate.dtype(),
          .flops = 2 * rows * columns * depth,
          .bytes = static_cast<double>(args.dy.bytes() + args.wo.bytes() + 5 * args.gate.bytes())};
}

constexpr Implementation<GatedDownBackwardArgs> kGatedDown[] = {
    {"cuda_hopper", Gpu::hopper, gpu::hopper_gated_down, gpu::hopper_gated_down_refuses, &proofs::gated_down},
    {"cuda_composed", Gpu::any, composed_on_gpu},
    {"portable", Isa::ref, composed, nullptr, dhidden_bytes},
};
constexpr Kernel<GatedDownBackwardArgs> kGatedDownBackward{"gated_down_backward", gated_down_work,
                                                           &GatedDownBackwardArgs::gate, kGatedDown};

void check(const char* name, const TensorView& x, DType dtype, const Shape& shape) {
  CHECK(x.dtype() == dtype && x.shape() == shape && x.is_contiguous(),
        "[gated_down_backward] {} is {} {}, expected {} {} without gaps", name, name_of(x.dtype()),
        to_string(x.shape()), name_of(dtype), to_string(shape));
}

}  // namespace

void gated_down_backward(ThreadPool& pool, const GatedDownBackwardArgs& args) {
  CHECK(args.gate.rank() == 2 && args.dy.rank() == 2 && args.wo.rank() == 3,
        "[gated_down_backward] gate {}, dy {}, wo {}", to_string(args.gate.shape()),
        to_string(args.dy.shape()), to_string(args.wo.shape()));
  const DType dtype = args.gate.dtype();
  const Shape& shape = args.gate.shape();
  check("dy", args.dy, dtype, {shape[0], args.dy.dim(1)});
  check("wo", args.wo, dtype, {args.group_sizes.size(), shape[1], args.dy.dim(1)});
  check("up", args.up, dtype, shape);
  check("dgate", args.dgate, dtype, shape);
  check("dup", args.dup, dtype, shape);
  check("hidden", args.hidden, dtype, shape);
  check("row_weights", args.row_weights, DType::f32, {shape[0]});
  check("drow_weights", args.drow_weights, DType::f32, {shape[0]});
  run(pool, kGatedDownBackward, args);
}

bool fuses_gated_down_backward(const GatedDownBackwardArgs& args) {
  return args.gate.on_gpu() && registry::missing(Gpu::hopper) == nullptr &&
         registry::unproven(&proofs::gated_down) == nullptr &&
         gpu::hopper_gated_down_refuses(args) == nullptr;
}

}  // namespace switchyard
