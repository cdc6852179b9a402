#include "kernels/cuda/flat_lists.h"
#include "kernels/cuda/portable.h"
#include "kernels/optimizer/newton_schulz_kernels.h"

namespace switchyard::gpu {
namespace {

// Blocks of one matrix after the other put their sums.
GPU_KERNEL square_matrices(const float* x, std::int64_t elements, std::int64_t blocks, double* sums) {
  const std::int64_t first = block_index() % blocks * kListElements;
  const float* const matrix = x + block_index() / blocks * elements;
  const std::int64_t end = first + kListElements < elements ? first + kListElements : elements;
  double squares = 0;
  for (std::int64_t i = first + thread_index(); i < end; i += kListThreads)
    squares += static_cast<double>(matrix[i]) * static_cast<double>(matrix[i]);
  put_block_sum(squares, sums + block_index());
}

// A block a matrix: its norm.
GPU_KERNEL norms_of_sums(const double* sums, std::int64_t blocks, double eps, double* norms) {
  GPU_SHARED(double, scratch, kListThreads / kWarp);
  double sum = 0;
  for (std::int64_t i = thread_index(); i < blocks; i += kListThreads)
    sum += sums[block_index() * blocks + i];
  sum = block_sum(sum, scratch);
  if (thread_index() == 0) norms[block_index()] = sqrt(sum) + eps;
}

GPU_KERNEL divide_matrices(float* x, std::int64_t elements, std::int64_t count, const double* norms) {
  const std::int64_t i = thread_of_grid();
  if (i >= count) return;
  const double norm = norms[i / elements];
  if (norm > 0) x[i] *= static_cast<float>(1 / norm);
}

GPU_KERNEL polynomial(const float* square, float* gram, std::int64_t side, std::int64_t count, float linear,
                      float cubic, float quintic) {
  const std::int64_t i = thread_of_grid();
  if (i >= count) return;
  const float value = cubic * gram[i] + quintic * square[i];
  gram[i] = i / side % side == i % side ? value + linear : value;
}

}  // namespace

void normalize_matrices(const NormalizeArgs& args) {
  const auto& [eps, x] = args;
  const std::int64_t matrices = x.dim(0), elements = x.dim(1) * x.dim(2),
                     blocks = divide_up(elements, kListElements);
  const Workspace workspace(x, static_cast<std::size_t>(matrices * (blocks + 1)) * sizeof(double));
  double *const sums = workspace.data<double>(), *const norms = sums + matrices * blocks;
  const std::int64_t count = matrices * elements;
  launch({.blocks = matrices * blocks, .threads = kListThreads}, square_matrices, x.device_data<float>(),
         elements, blocks, sums);
  launch({.blocks = count > 0 ? matrices : 0, .threads = kListThreads}, norms_of_sums, sums, blocks, eps,
         norms);
  launch(threads_for(count), divide_matrices, x.device_data<float>(), elements, count, norms);
}

void newton_schulz_polynomial(const PolynomialArgs& args) {
  launch(threads_for(args.gram.size()), polynomial, args.square.device_data<float>(),
         args.gram.device_data<float>(), args.gram.dim(2), args.gram.size(), args.linear, args.cubic,
         args.quintic);
}

}  // namespace switchyard::gpu
