#include "kernels/delta_net/gated_delta.h"

#include "core/error.h"
#include "kernels/delta_net/gated_delta_problem.h"
#include "kernels/delta_net/kernels.h"
#include "kernels/registry/kernel.h"
#include "kernels/registry/simd_rows.h"

namespace switchyard {
namespace {

void check_like(const char* op, const char* name, const TensorView& x, DType dtype, const Shape& shape) {
  CHECK(x.dtype() == dtype && x.shape() == shape && x.is_contiguous(), "[{}] {} {} of {}, expected {} of {}",
        op, name, to_string(x.shape()), name_of(x.dtype()), to_string(shape), name_of(dtype));
}

// Checks what both passes read.
void check_inputs(const char* op, const GatedDeltaArgs& a) {
  CHECK(a.q.rank() == 4 && a.v.rank() == 4 && is_float(a.q.dtype()) && a.q.dim(2) > 0 &&
            a.v.dim(2) % a.q.dim(2) == 0 && a.chunk > 0,
        "[{}] q {} of {}, v {}, chunks of {}", op, to_string(a.q.shape()), name_of(a.q.dtype()),
        to_string(a.v.shape()), a.chunk);
  const Shape numbers{a.q.dim(0), a.q.dim(1), a.v.dim(2)};
  check_like(op, "q", a.q, a.q.dtype(), a.q.shape());
  check_like(op, "k", a.k, a.q.dtype(), a.q.shape());
  check_like(op, "v", a.v, a.q.dtype(), {numbers[0], numbers[1], numbers[2], a.v.dim(3)});
  check_like(op, "g", a.g, DType::f32, numbers);
  check_like(op, "beta", a.beta, DType::f32, numbers);
  if (a.segments.defined()) check_like(op, "segments", a.segments, DType::i32, {numbers[0], numbers[1]});
  if (a.state.defined())
    check_like(op, "state", a.state, DType::f32, {numbers[0], numbers[2], a.q.dim(3), a.v.dim(3)});
}

GatedDeltaProblem problem_of(const GatedDeltaArgs& a) {
  GatedDeltaProblem p;
  p.dtype = a.q.dtype();
  p.length = a.q.dim(1);
  p.key_heads = a.q.dim(2);
  p.value_heads = a.v.dim(2);
  p.key_width = a.q.dim(3);
  p.value_width = a.v.dim(3);
  p.chunk = a.chunk;
  p.unit_vectors = a.unit_vectors;
  p.scale = a.scale;
  p.q = a.q.kernel_address();
  p.k = a.k.kernel_address();
  p.v = a.v.kernel_address();
  p.g = a.g.kernel_data<float>();
  p.beta = a.beta.kernel_data<float>();
  p.segments = a.segments.kernel_data<std::int32_t>();
  p.state = a.state.kernel_data<float>();
  return p;
}

template <GatedDeltaKernel* kernel>
void forward(ThreadPool& pool, const GatedDeltaArgs& args) {
  GatedDeltaProblem p = problem_of(args);
  p.out = args.out.kernel_address();
  pool.for_range(args.q.dim(0) * p.key_heads, 1,
                 [&](std::int64_t begin, std::int64_t end) { kernel(p, begin, end); });
}

template <GatedDeltaKernel* kernel>
void backward(ThreadPool& pool, const GatedDeltaBackwardArgs& args) {
  GatedDeltaProblem p = problem_of(args.forward);
  p.dout = args.dout.kernel_address();
  p.dq = args.dq.kernel_address();
  p.dk = args.dk.kernel_address();
  p.dv = args.dv.kernel_address();
  p.dg = args.dg.kernel_data<float>();
  p.dbeta = args.dbeta.kernel_data<float>();
  pool.for_range(args.forward.q.dim(0) * p.key_heads, 1,
                 [&](std::int64_t begin, std::int64_t end) { kernel(p, begin, end); });
}

// Counts `passes` products of a token with a state, and as many with a chunk.
Work work_of(const GatedDeltaArgs& a, double passes) {
  const double vectors = static_cast<double>(a.v.size() / std::max<std::int64_t>(1, a.v.dim(3)));
  const double state = static_cast<double>(a.q.dim(3) * a.v.dim(3)),
               chunk = static_cast<double>(a.chunk * (a.q.dim(3) + a.v.dim(3)));
  return {.dtype = a.q.dtype(),
          .flops = passes * vectors * (2 * state + chunk),
          .bytes = passes * static_cast<double>(a.q.bytes() + a.v.bytes())};
}

Work forward_work(const GatedDeltaArgs& args) {
  return work_of(args, 3);
}

Work backward_work(const GatedDeltaBackwardArgs& args) {
  return work_of(args.forward, 10);
}

constexpr Implementation<GatedDeltaArgs> kGatedDeltaForwards[] = {{"cuda", Gpu::any, gpu::gated_delta},
                                                                  SWITCHYARD_SIMD_ROWS(forward, gated_delta)};
constexpr Implementation<GatedDeltaBackwardArgs> kGatedDeltaBackwards[] = {
    {"cuda", Gpu::any, gpu::gated_delta_backward}, SWITCHYARD_SIMD_ROWS(backward, gated_delta_backward)};
constexpr Kernel<GatedDeltaArgs> kGatedDelta{"gated_delta", forward_work, &GatedDeltaArgs::q,
                                             kGatedDeltaForwards};
constexpr Kernel<GatedDeltaBackwardArgs> kGatedDeltaBackward{
    "gated_delta_backward", backward_work, &GatedDeltaBackwardArgs::dout, kGatedDeltaBackwards};

}  // namespace

void gated_delta(ThreadPool& pool, const GatedDeltaArgs& args) {
  constexpr const char* kOp = "gated_delta";
  check_inputs(kOp, args);
  check_like(kOp, "out", args.out, args.q.dtype(), args.v.shape());
  run(pool, kGatedDelta, args);
}

void gated_delta_backward(ThreadPool& pool, const GatedDeltaBackwardArgs& args) {
  constexpr const char* kOp = "gated_delta_backward";
  const GatedDeltaArgs& a = args.forward;
  check_inputs(kOp, a);
  CHECK(!a.state.defined(), "[{}] a state is given", kOp);
  check_like(kOp, "dout", args.dout, a.q.dtype(), a.v.shape());
  check_like(kOp, "dq", args.dq, a.q.dtype(), a.q.shape());
  check_like(kOp, "dk", args.dk, a.q.dtype(), a.q.shape());
  check_like(kOp, "dv", args.dv, a.q.dtype(), a.v.shape());
  check_like(kOp, "dg", args.dg, DType::f32, a.g.shape());
  check_like(kOp, "dbeta", args.dbeta, DType::f32, a.g.shape());
  run(pool, kGatedDeltaBackward, args);
}

}  // namespace switchyard
