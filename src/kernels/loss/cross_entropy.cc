#include "kernels/loss/cross_entropy.h"

#include <algorithm>

#include "core/error.h"
#include "core/tensor.h"
#include "kernels/loss/cross_entropy_problem.h"
#include "kernels/loss/reference/cross_entropy_reference.h"
#include "kernels/registry/kernel.h"

namespace switchyard {
namespace {

// ---- What a row calls

CrossEntropyProblem problem_of(const CrossEntropyLogits& a) {
  return {.rows = a.targets.size(),
          .emb = a.hidden.shape().back(),
          .vocab = local_columns(a),
          .vocab_begin = a.vocab_begin,
          .dtype = a.hidden.dtype(),
          .hidden = a.hidden.kernel_address(),
          .weight = a.weight.kernel_address(),
          .weight_vocab_major = a.weight_vocab_major,
          .targets = a.targets.kernel_data<std::int32_t>(),
          .logit_soft_cap = a.logit_soft_cap,
          .rows_at_once = loss_rows_at_once(a)};
}

CrossEntropyProblem problem_of(const LinearCrossEntropyArgs& args) {
  CrossEntropyProblem p = problem_of(args.logits);
  p.lse = args.lse.kernel_data<float>();
  p.target_logit = args.target_logit.kernel_data<float>();
  return p;
}

// The arguments of both that make gradients.
template <typename Args>
CrossEntropyProblem gradient_problem_of(const Args& args) {
  CrossEntropyProblem p = problem_of(args.logits);
  p.lse = args.lse.template kernel_data<float>();
  p.softmax = args.softmax_coefficient.template kernel_data<float>();
  p.target = args.target_coefficient.template kernel_data<float>();
  p.dhidden = args.dhidden.template kernel_data<float>();
  p.dweight = args.dweight.kernel_address();
  p.weight_trains = args.dweight.defined();
  return p;
}

CrossEntropyProblem problem_of(const LinearCrossEntropyBackwardArgs& args) {
  return gradient_problem_of(args);
}

CrossEntropyProblem problem_of(const LossGradientsArgs& args) {
  CrossEntropyProblem p = gradient_problem_of(args);
  p.target_logit = args.target_logit.kernel_data<float>();
  p.summed = &args.summed;
  return p;
}

template <CrossEntropyKernel* kernel, typename Args>
void on(ThreadPool& pool, const Args& args) {
  kernel(pool, problem_of(args));
}

template <CrossEntropyRefusal* refuses, typename Args>
const char* refusal(const Args& args) {
  return refuses(problem_of(args));
}

// `refuses`, and a refusal of calls that want no gradient of the weight: the implementation always makes it.
template <CrossEntropyRefusal* refuses, typename Args>
const char* with_weight(const Args& args) {
  if (!args.dweight.defined()) return "the weight's gradient is not wanted";
  return refuses(problem_of(args));
}

template <CrossEntropyBytes* workspace, typename Args>
std::size_t bytes(const Args& args) {
  return workspace(problem_of(args));
}

void reference_forward(ThreadPool&, const CrossEntropyProblem& p) {
  p.dtype == DType::f32 ? reference::linear_cross_entropy<float>(p, p.lse, p.target_logit)
                        : reference::linear_cross_entropy<bfloat16>(p, p.lse, p.target_logit);
}

void reference_backward(ThreadPool&, const CrossEntropyProblem& p) {
  const auto run = [&]<typename T>(T* dweight) {
    reference::linear_cross_entropy_backward<T>(p, static_cast<const float*>(p.lse), p.softmax, p.target,
                                                p.dhidden, dweight);
  };
  p.dtype == DType::f32 ? run(static_cast<float*>(p.dweight)) : run(static_cast<bfloat16*>(p.dweight));
}

// Calls `summed` for block after block.
void sum_blocks(const LossGradientsArgs& args) {
  const std::int64_t rows = args.lse.size(), block = loss_rows_at_once(args.logits);
  for (std::int64_t row = 0; row < rows; row += block) args.summed(row, std::min(rows, row + block));
}

// Loss and gradients one after the other: the logits are made twice.
void apart(ThreadPool& pool, const LossGradientsArgs& args) {
  linear_cross_entropy(pool, {args.logits, args.lse, args.target_logit});
  sum_blocks(args);
  linear_cross_entropy_backward(pool, {args.logits, args.lse, args.softmax_coefficient,
                                       args.target_coefficient, args.dhidden, args.dweight});
}

// ---- The tables

template <typename Args>
const char* narrow_gpu_refuses(const Args& args) {
  return gpu::narrow_loss_refuses(args.logits);
}

// The product of logits, which gradients make again, and those of both gradients.
template <int most, typename Args>
Work work_of(const Args& args) {
  int products = most;
  if constexpr (most > 1) products -= args.dweight.defined() ? 0 : 1;
  const CrossEntropyLogits& a = args.logits;
  const auto rows = static_cast<double>(a.targets.size()), emb = static_cast<double>(a.hidden.shape().back()),
             vocab = static_cast<double>(local_columns(a));
  return {.dtype = a.hidden.dtype(),
          .flops = 2 * products * rows * emb * vocab,
          .bytes = products * (rows * emb + emb * vocab) * static_cast<double>(size_of(a.hidden.dtype()))};
}

namespace amx = cpu::amx_tiles;
namespace soft = cpu::soft_tiles;
using namespace logit_blocks;
using cpu::row_gradient_avx2, cpu::row_gradient_avx512;
using cpu::row_sum_update_avx2, cpu::row_sum_update_avx512;

constexpr Implementation<LinearCrossEntropyArgs> kForwards[] = {
    {"cuda_hopper_narrow", Gpu::hopper, gpu::narrow_cross_entropy, narrow_gpu_refuses, &proofs::narrow_loss},
    {"cuda", Gpu::any, gpu::linear_cross_entropy},
#if defined(__x86_64__)
    {"fused amx", Isa::amx, on<amx::cross_entropy>, refusal<amx::cross_entropy_refuses>,
     bytes<amx::cross_entropy_bytes>},
    {"fused avx512_bf16", Isa::avx512_bf16, on<soft::cross_entropy>, refusal<soft::cross_entropy_refuses>,
     bytes<soft::cross_entropy_bytes>},
    {"from hot sums", Isa::avx512_bf16, on<hot>, refusal<hot_refuses>, bytes<hot_bytes>},
    {"tiled avx512", Isa::avx512, on<tiled<row_sum_update_avx512>>, nullptr, bytes<tiled_bytes>},
    {"tiled avx2", Isa::avx2, on<tiled<row_sum_update_avx2>>, nullptr, bytes<tiled_bytes>},
#endif
    {"ref", Isa::ref, on<reference_forward>},
};

constexpr Implementation<LinearCrossEntropyBackwardArgs> kBackwards[] = {
    {"cuda_hopper_narrow", Gpu::hopper, gpu::narrow_cross_entropy_backward, narrow_gpu_refuses,
     &proofs::narrow_loss_backward},
    {"cuda", Gpu::any, gpu::linear_cross_entropy_backward},
#if defined(__x86_64__)
    {"fused amx", Isa::amx, on<amx::cross_entropy_backward>, refusal<amx::cross_entropy_refuses>,
     bytes<amx::cross_entropy_backward_bytes>},
    {"fused avx512_bf16", Isa::avx512_bf16, on<soft::cross_entropy_backward>,
     refusal<soft::cross_entropy_refuses>, bytes<soft::cross_entropy_backward_bytes>},
    {"from hot sums", Isa::avx512_bf16, on<hot_backward>, refusal<hot_refuses>, bytes<hot_backward_bytes>},
    {"tiled avx512", Isa::avx512, on<tiled_backward<row_gradient_avx512>>, nullptr,
     bytes<tiled_backward_bytes>},
    {"tiled avx2", Isa::avx2, on<tiled_backward<row_gradient_avx2>>, nullptr, bytes<tiled_backward_bytes>},
#endif
    {"ref", Isa::ref, on<reference_backward>},
};

constexpr Implementation<LossGradientsArgs> kGradients[] = {
    {"cuda_hopper_narrow", Gpu::hopper, gpu::narrow_cross_entropy_with_gradients, narrow_gpu_refuses,
     &proofs::narrow_loss_gradients},
    {"cuda", Gpu::any, gpu::linear_cross_entropy_with_gradients},
#if defined(__x86_64__)
    {"fused amx", Isa::amx, on<amx::cross_entropy_gradients>, refusal<amx::cross_entropy_gradients_refuses>,
     bytes<amx::cross_entropy_gradients_bytes>},
    {"fused avx512_bf16", Isa::avx512_bf16, on<soft::cross_entropy_gradients>,
     refusal<soft::cross_entropy_gradients_refuses>, bytes<soft::cross_entropy_gradients_bytes>},
    {"narrow avx512", Isa::avx512, on<cpu::narrow_gradients_avx512>,
     with_weight<cpu::narrow_gradients_refuse>, bytes<cpu::narrow_gradients_bytes>},
    {"kept avx512", Isa::avx512, on<kept_gradients<row_sum_update_avx512, row_gradient_avx512>>,
     refusal<kept_gradients_refuse>, bytes<kept_gradients_bytes>},
    {"narrow avx2", Isa::avx2, on<cpu::narrow_gradients_avx2>, with_weight<cpu::narrow_gradients_refuse>,
     bytes<cpu::narrow_gradients_bytes>},
    {"kept avx2", Isa::avx2, on<kept_gradients<row_sum_update_avx2, row_gradient_avx2>>,
     refusal<kept_gradients_refuse>, bytes<kept_gradients_bytes>},
#endif
    {"apart", Isa::ref, apart},
};

constexpr Kernel<LinearCrossEntropyArgs> kForward{"linear_cross_entropy", work_of<1>,
                                                  &LinearCrossEntropyArgs::lse, kForwards};
constexpr Kernel<LinearCrossEntropyBackwardArgs> kBackward{"linear_cross_entropy_backward", work_of<3>,
                                                           &LinearCrossEntropyBackwardArgs::lse, kBackwards};
constexpr Kernel<LossGradientsArgs> kWithGradients{"linear_cross_entropy_gradients", work_of<3>,
                                                   &LossGradientsArgs::lse, kGradients};

// ---- Checks

void check_logits(const CrossEntropyLogits& a) {
  CHECK(a.hidden.rank() >= 2 && a.weight.rank() == 2, "[cross_entropy] hidden {} and weight {}",
        to_string(a.hidden.shape()), to_string(a.weight.shape()));
  const std::int64_t emb = a.weight.dim(a.weight_vocab_major ? 1 : 0);
  CHECK(is_float(a.hidden.dtype()) && a.weight.dtype() == a.hidden.dtype() &&
            a.hidden.shape().back() == emb && a.targets.dtype() == DType::i32 &&
            a.hidden.size() == a.targets.size() * emb && a.hidden.is_contiguous() &&
            a.weight.is_contiguous() && a.targets.is_contiguous(),
        "[cross_entropy] hidden {} {}, weight {} {}, targets {} {}", name_of(a.hidden.dtype()),
        to_string(a.hidden.shape()), name_of(a.weight.dtype()), to_string(a.weight.shape()),
        name_of(a.targets.dtype()), to_string(a.targets.shape()));
}

// [rows] f32
void check_rows(const CrossEntropyLogits& logits, const TensorView& x, const char* name) {
  CHECK(x.dtype() == DType::f32 && x.size() == logits.targets.size() && x.is_contiguous(),
        "[cross_entropy] {} is {} {} for {} rows", name, name_of(x.dtype()), to_string(x.shape()),
        logits.targets.size());
}

template <typename Args>
void check_gradients(const Args& args) {
  const TensorView &hidden = args.logits.hidden, &weight = args.logits.weight, &dhidden = args.dhidden,
                   &dweight = args.dweight;
  check_rows(args.logits, args.softmax_coefficient, "softmax_coefficient");
  check_rows(args.logits, args.target_coefficient, "target_coefficient");
  CHECK(dhidden.dtype() == DType::f32 && dhidden.size() == hidden.size() && dhidden.is_contiguous(),
        "[cross_entropy] gradient {} {} of hidden {}", name_of(dhidden.dtype()), to_string(dhidden.shape()),
        to_string(hidden.shape()));
  if (!dweight.defined()) return;
  CHECK(dweight.dtype() == weight.dtype() && dweight.shape() == weight.shape() && dweight.is_contiguous(),
        "[cross_entropy] gradient {} {} of weight {} {}", name_of(dweight.dtype()),
        to_string(dweight.shape()), name_of(weight.dtype()), to_string(weight.shape()));
}

}  // namespace

void linear_cross_entropy(ThreadPool& pool, const LinearCrossEntropyArgs& args) {
  check_logits(args.logits);
  check_rows(args.logits, args.lse, "lse");
  check_rows(args.logits, args.target_logit, "target_logit");
  run(pool, kForward, args);
}

void linear_cross_entropy_backward(ThreadPool& pool, const LinearCrossEntropyBackwardArgs& args) {
  check_logits(args.logits);
  check_rows(args.logits, args.lse, "lse");
  check_gradients(args);
  run(pool, kBackward, args);
}

std::int64_t loss_rows_at_once(const CrossEntropyLogits& logits) {
  const std::int64_t columns = logits.whole_vocab > 0 ? logits.whole_vocab : local_columns(logits);
  return loss_rows_of(columns, logits.hidden.on_gpu());
}

void linear_cross_entropy_with_gradients(ThreadPool& pool, const LossGradientsArgs& args) {
  check_logits(args.logits);
  check_rows(args.logits, args.lse, "lse");
  check_rows(args.logits, args.target_logit, "target_logit");
  check_gradients(args);
  const Implementation<LossGradientsArgs>& chosen = choose(kWithGradients, args);
  if (chosen.run == apart) return apart(pool, args);  // two ops, in a plan, too
  run(pool, kWithGradients, args);
  if (!args.lse.is_abstract() || args.lse.on_gpu()) return;
  // A plan of CPUs computes nothing, but counts what ranks add up while the implementation has its workspace.
  const Buffer held(pool.counts_workspace() ? chosen.workspace(args) : 0);
  sum_blocks(args);
}

}  // namespace switchyard
