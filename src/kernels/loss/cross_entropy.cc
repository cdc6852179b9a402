#include "kernels/loss/cross_entropy.h"

#include "core/error.h"
#include "kernels/cuda/kernels.h"
#include "kernels/loss/cross_entropy_problem.h"

namespace switchyard {
namespace {

// An operand without gaps.
std::byte* contiguous_operand(const TensorView& x, const char* name) {
  CHECK(x.is_contiguous(), "[cross_entropy] {} is a view of {} with gaps", name, to_string(x.shape()));
  return x.device_address();
}

// [rows] f32
float* row_values(const TensorView& x, const CrossEntropyProblem& problem, const char* name) {
  CHECK(x.dtype() == DType::f32 && x.size() == problem.rows && x.is_contiguous(),
        "[cross_entropy] {} is {} {} for {} rows", name, name_of(x.dtype()), to_string(x.shape()),
        problem.rows);
  return x.device_data<float>();
}

CrossEntropyProblem problem_of(const CrossEntropyLogits& a) {
  CHECK(a.hidden.rank() >= 2 && a.weight.rank() == 2, "[cross_entropy] hidden {} and weight {}",
        to_string(a.hidden.shape()), to_string(a.weight.shape()));
  const std::int64_t emb = a.weight.dim(a.weight_vocab_major ? 1 : 0);
  CHECK(is_float(a.hidden.dtype()) && a.weight.dtype() == a.hidden.dtype() &&
            a.hidden.shape().back() == emb && a.targets.dtype() == DType::i32 &&
            a.hidden.size() == a.targets.size() * emb,
        "[cross_entropy] hidden {} {}, weight {} {}, targets {} {}", name_of(a.hidden.dtype()),
        to_string(a.hidden.shape()), name_of(a.weight.dtype()), to_string(a.weight.shape()),
        name_of(a.targets.dtype()), to_string(a.targets.shape()));
  CrossEntropyProblem problem;
  problem.rows = a.targets.size();
  problem.emb = emb;
  problem.vocab = a.weight.dim(a.weight_vocab_major ? 0 : 1);
  problem.vocab_begin = a.vocab_begin;
  problem.dtype = a.hidden.dtype();
  problem.hidden = contiguous_operand(a.hidden, "hidden");
  problem.weight = contiguous_operand(a.weight, "weight");
  problem.weight_vocab_major = a.weight_vocab_major;
  problem.targets = reinterpret_cast<const std::int32_t*>(contiguous_operand(a.targets, "targets"));
  problem.logit_soft_cap = a.logit_soft_cap;
  problem.whole_vocab = a.whole_vocab;
  return problem;
}

float* dhidden_of(const TensorView& dhidden, const CrossEntropyLogits& logits) {
  CHECK(dhidden.dtype() == DType::f32 && dhidden.size() == logits.hidden.size(),
        "[cross_entropy] gradient {} {} of hidden {}", name_of(dhidden.dtype()), to_string(dhidden.shape()),
        to_string(logits.hidden.shape()));
  return reinterpret_cast<float*>(contiguous_operand(dhidden, "dhidden"));
}

void* dweight_of(const TensorView& dweight, const CrossEntropyLogits& logits) {
  CHECK(dweight.dtype() == logits.weight.dtype() && dweight.shape() == logits.weight.shape(),
        "[cross_entropy] gradient {} {} of weight {} {}", name_of(dweight.dtype()),
        to_string(dweight.shape()), name_of(logits.weight.dtype()), to_string(logits.weight.shape()));
  return contiguous_operand(dweight, "dweight");
}

}  // namespace

void linear_cross_entropy(ThreadPool& pool, const LinearCrossEntropyArgs& args) {
  const CrossEntropyProblem problem = problem_of(args.logits);
  float *const lse = row_values(args.lse, problem, "lse"), *const target_logit = row_values(
                                                               args.target_logit, problem, "target_logit");
  if (args.logits.hidden.on_gpu()) return gpu::linear_cross_entropy(args);
  run_linear_cross_entropy(pool, problem, lse, target_logit);
}

void linear_cross_entropy_backward(ThreadPool& pool, const LinearCrossEntropyBackwardArgs& args) {
  const CrossEntropyProblem problem = problem_of(args.logits);
  const float *const lse = row_values(args.lse, problem, "lse"),
                     *const softmax = row_values(args.softmax_coefficient, problem, "softmax_coefficient"),
                     *const target = row_values(args.target_coefficient, problem, "target_coefficient");
  float* const dhidden = dhidden_of(args.dhidden, args.logits);
  void* const dweight = dweight_of(args.dweight, args.logits);
  if (args.logits.hidden.on_gpu()) return gpu::linear_cross_entropy_backward(args);
  run_linear_cross_entropy_backward(pool, problem, lse, softmax, target, dhidden, dweight);
}

std::int64_t loss_rows_at_once(const CrossEntropyLogits& logits) {
  const CrossEntropyProblem problem = problem_of(logits);
  return logits.hidden.on_gpu() ? gpu::loss_rows_at_once(logits) : loss_rows_at_once(problem);
}

void linear_cross_entropy_with_gradients(ThreadPool& pool, const LossGradientsArgs& args) {
  const CrossEntropyProblem problem = problem_of(args.logits);
  const LossGradientsProblem gradients{
      .lse = row_values(args.lse, problem, "lse"),
      .target_logit = row_values(args.target_logit, problem, "target_logit"),
      .softmax_coefficient = row_values(args.softmax_coefficient, problem, "softmax_coefficient"),
      .target_coefficient = row_values(args.target_coefficient, problem, "target_coefficient"),
      .dhidden = dhidden_of(args.dhidden, args.logits),
      .dweight = dweight_of(args.dweight, args.logits),
      .summed = args.summed};
  if (args.logits.hidden.on_gpu()) return gpu::linear_cross_entropy_with_gradients(args);
  run_linear_cross_entropy_with_gradients(pool, problem, gradients);
}

}  // namespace switchyard
