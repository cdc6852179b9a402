// A warp takes a row that is short, a block one that is long. The gradient of scale is summed over pieces of
// rows, a thread to some columns, and then over the pieces.
#include "kernels/cuda/portable.h"
#include "kernels/cuda/wide.h"
#include "kernels/cuda/workspace.h"
#include "kernels/pointwise/kernels.h"
#include "kernels/pointwise/rms_norm_problem.h"

namespace switchyard::gpu {
namespace {

constexpr int kRmsNormThreads = 256;
constexpr std::int64_t kLongRow = 2048;  // elements: from here on a row has a block's threads

struct Rows {
  std::int64_t rows, dim, whole_dim;
  float eps, scale_offset;
  RowPass pass;
};

// The threads that share a row.
template <bool of_block>
struct Team {
  static constexpr int kSize = of_block ? kRmsNormThreads : kWarp;
  static constexpr int kOfBlock = kRmsNormThreads / kSize;
  GPU_FUNCTION static std::int64_t row() { return block_index() * kOfBlock + thread_index() / kSize; }
  GPU_FUNCTION static int member() { return thread_index() % kSize; }
};

template <bool of_block>
GPU_FUNCTION float team_sum(float x, float* scratch) {
  if constexpr (of_block)
    return block_sum(x, scratch);
  else
    return warp_sum(x);
}

// All have read before one writes.
template <bool of_block>
GPU_FUNCTION void team_barrier() {
  if constexpr (of_block)
    barrier();
  else
    warp_barrier();
}

template <typename T, typename S, int width, bool of_block>
GPU_KERNEL normalize(const T* x, const S* scale, T* y, float* rstd, Rows p) {
  using Of = Team<of_block>;
  GPU_SHARED(float, scratch, kRmsNormThreads / kWarp);
  const std::int64_t row = Of::row();
  if (row >= p.rows) return;  // the whole team
  const T* const from = x + row * p.dim;
  const std::int64_t first = Of::member() * width, step = Of::kSize * width;
  float sum = 0;
  if (p.pass == RowPass::rest) {
    sum = rstd[row];
  } else {
    for (std::int64_t j = first; j < p.dim; j += step) {
      float values[width];
      load_floats<width>(from + j, values);
      for (int i = 0; i < width; ++i) sum += values[i] * values[i];
    }
    sum = team_sum<of_block>(sum, scratch);
  }
  team_barrier<of_block>();
  const float inverse = 1.0f / sqrtf(sum / static_cast<float>(p.whole_dim) + p.eps);
  if (Of::member() == 0) rstd[row] = p.pass == RowPass::sum ? sum : inverse;
  if (p.pass == RowPass::sum) return;
  T* const to = y + row * p.dim;
  for (std::int64_t j = first; j < p.dim; j += step) {
    float values[width], scales[width];
    load_floats<width>(from + j, values);
    load_floats<width>(scale + j, scales);
    for (int i = 0; i < width; ++i) values[i] *= inverse * (scales[i] + p.scale_offset);
    store_floats<width>(values, to + j);
  }
}

// With u = dy * scale: dx = rstd * u - x * rstd^3 * mean(u * x).
template <typename T, typename S, int width, bool of_block>
GPU_KERNEL gradient_of_rows(const T* x, const S* scale, const float* rstd, const T* dy, T* dx, float* sums,
                            Rows p) {
  using Of = Team<of_block>;
  GPU_SHARED(float, scratch, kRmsNormThreads / kWarp);
  const std::int64_t row = Of::row();
  if (row >= p.rows) return;  // the whole team
  const std::int64_t at = row * p.dim, first = Of::member() * width, step = Of::kSize * width;
  float sum = 0;
  if (p.pass == RowPass::rest) {
    sum = sums[row];
  } else {
    for (std::int64_t j = first; j < p.dim; j += step) {
      float values[width], scales[width], gradients[width];
      load_floats<width>(x + at + j, values);
      load_floats<width>(scale + j, scales);
      load_floats<width>(dy + at + j, gradients);
      for (int i = 0; i < width; ++i) sum += gradients[i] * (scales[i] + p.scale_offset) * values[i];
    }
    sum = team_sum<of_block>(sum, scratch);
  }
  if (p.pass == RowPass::sum) {
    if (Of::member() == 0) sums[row] = sum;
    return;
  }
  const float inverse = rstd[row];
  const float of_x = inverse * inverse * (sum / static_cast<float>(p.whole_dim));
  for (std::int64_t j = first; j < p.dim; j += step) {
    float values[width], scales[width], gradients[width];
    load_floats<width>(x + at + j, values);
    load_floats<width>(scale + j, scales);
    load_floats<width>(dy + at + j, gradients);
    for (int i = 0; i < width; ++i)
      gradients[i] = inverse * (gradients[i] * (scales[i] + p.scale_offset) - values[i] * of_x);
    store_floats<width>(gradients, dx + at + j);
  }
}

// partial[piece, j] = the sum over the piece's rows of dy * x * rstd. A block is 32 threads of columns by
// `kDepth` of rows.
constexpr int kDepth = kRmsNormThreads / kWarp;

template <typename T, int width>
GPU_KERNEL gradient_of_scale(const T* x, const float* rstd, const T* dy, float* partial, std::int64_t rows,
                             std::int64_t dim, std::int64_t rows_of_piece) {
  GPU_SHARED(float, sums, kRmsNormThreads* width);
  const std::int64_t piece = block_index();
  const std::int64_t end = (piece + 1) * rows_of_piece < rows ? (piece + 1) * rows_of_piece : rows;
  const int lane = thread_index() % kWarp, depth = thread_index() / kWarp;
  const std::int64_t column = (static_cast<std::int64_t>(block_index_y()) * kWarp + lane) * width;
  float sum[width];
  for (int i = 0; i < width; ++i) sum[i] = 0;
  if (column < dim) {
    for (std::int64_t row = piece * rows_of_piece + depth; row < end; row += kDepth) {
      float values[width], gradients[width];
      load_floats<width>(x + row * dim + column, values);
      load_floats<width>(dy + row * dim + column, gradients);
      const float inverse = rstd[row];
      for (int i = 0; i < width; ++i) sum[i] += gradients[i] * values[i] * inverse;
    }
  }
  for (int i = 0; i < width; ++i) sums[i * kRmsNormThreads + thread_index()] = sum[i];
  barrier();
  if (depth != 0 || column >= dim) return;
  for (int i = 0; i < width; ++i) {
    float total = 0;
    for (int d = 0; d < kDepth; ++d) total += sums[i * kRmsNormThreads + d * kWarp + lane];
    partial[piece * dim + column + i] = total;
  }
}

// A block is 32 columns by `kDepth` pieces.
GPU_KERNEL sum_of_pieces(const float* partial, std::int64_t pieces, std::int64_t dim, float* dscale) {
  GPU_SHARED(float, sums, kRmsNormThreads);
  const int lane = thread_index() % kWarp, depth = thread_index() / kWarp;
  const std::int64_t column = block_index() * kWarp + lane;
  float sum = 0;
  if (column < dim) {
    for (std::int64_t piece = depth; piece < pieces; piece += kDepth) sum += partial[piece * dim + column];
  }
  sums[thread_index()] = sum;
  barrier();
  if (depth != 0 || column >= dim) return;
  sum = 0;
  for (int d = 0; d < kDepth; ++d) sum += sums[d * kWarp + lane];
  dscale[column] = sum;
}

Launch blocks_of(std::int64_t rows, std::int64_t dim) {
  return {.blocks = dim >= kLongRow ? rows : divide_up(rows, kRmsNormThreads / kWarp),
          .threads = kRmsNormThreads};
}

// body(T(), S(), width, of_block) with the elements' types and how rows are cut, as constants.
template <typename Body>
void with_row_form(const TensorView& x, const TensorView& scale, std::initializer_list<const void*> addresses,
                   const Body& body) {
  const std::int64_t dim = scale.size();
  with_float_type(x.dtype(), [&]<typename T>(T element) {
    with_float_type(scale.dtype(), [&]<typename S>(S of_scale) {
      with_width<T>(dim % kWide<T> == 0 && are_wide(addresses), [&](auto width) {
        if (dim >= kLongRow)
          body(element, of_scale, width, std::true_type());
        else
          body(element, of_scale, width, std::false_type());
      });
    });
  });
}

}  // namespace

void rms_norm(const RmsNormArgs& args) {
  const std::int64_t rows = args.rstd.size(), dim = args.scale.size();
  float* const rstd = args.rstd.device_data<float>();
  const void *const x = args.x.device_address(), *const scale = args.scale.device_address();
  void* const y = args.y.device_address();
  const auto pass_over_rows = [&](RowPass pass) {
    const Rows p{rows, dim, args.split != nullptr ? args.split->dim : dim, args.eps, args.scale_offset, pass};
    with_row_form(
        args.x, args.scale, {x, y, scale}, [&]<typename T, typename S>(T, S, auto width, auto of_block) {
          launch(blocks_of(rows, dim), normalize<T, S, width.value, of_block.value>, static_cast<const T*>(x),
                 static_cast<const S*>(scale), static_cast<T*>(y), rstd, p);
        });
  };
  if (args.split == nullptr) return pass_over_rows(RowPass::whole);
  pass_over_rows(RowPass::sum);
  args.split->add_up(args.rstd.reshaped({rows}));
  pass_over_rows(RowPass::rest);
}

void rms_norm_backward(const RmsNormBackwardArgs& args) {
  const std::int64_t rows = args.rstd.size(), dim = args.scale.size();
  const float* const rstd = args.rstd.device_data<float>();
  const void *const x = args.x.device_address(), *const scale = args.scale.device_address(),
                    *const dy = args.dy.device_address();
  void* const dx = args.dx.device_address();

  // Before dx, which may be dy. Pieces enough for all multiprocessors, of rows enough to be worth a sum.
  constexpr std::int64_t kMostPieces = 256, kFewestRows = 4 * kDepth;
  const std::int64_t rows_of_piece =
      std::max(kFewestRows, divide_up(divide_up(rows, kMostPieces), kDepth) * kDepth);
  const std::int64_t pieces = divide_up(rows, rows_of_piece);
  const Workspace partial(args.x, static_cast<std::size_t>(pieces * dim) * sizeof(float));
  with_float_type(args.x.dtype(), [&]<typename T>(T) {
    with_width<T>(dim % kWide<T> == 0 && are_wide({x, dy}), [&](auto width) {
      launch({.blocks = pieces,
              .threads = kRmsNormThreads,
              .blocks_y = static_cast<int>(divide_up(dim, kWarp * width.value))},
             gradient_of_scale<T, width.value>, static_cast<const T*>(x), rstd, static_cast<const T*>(dy),
             partial.data<float>(), rows, dim, rows_of_piece);
    });
  });
  launch({.blocks = divide_up(dim, kWarp), .threads = kRmsNormThreads}, sum_of_pieces, partial.data<float>(),
         pieces, dim, args.dscale.device_data<float>());

  const Workspace sums(args.x, args.split != nullptr ? static_cast<std::size_t>(rows) * sizeof(float) : 0);
  const auto pass_over_rows = [&](RowPass pass) {
    const Rows p{rows, dim, args.split != nullptr ? args.split->dim : dim, 0, args.scale_offset, pass};
    with_row_form(args.x, args.scale, {x, dy, dx, scale},
                  [&]<typename T, typename S>(T, S, auto width, auto of_block) {
                    launch(blocks_of(rows, dim), gradient_of_rows<T, S, width.value, of_block.value>,
                           static_cast<const T*>(x), static_cast<const S*>(scale), rstd,
                           static_cast<const T*>(dy), static_cast<T*>(dx), sums.data<float>(), p);
                  });
  };
  if (args.split == nullptr) return pass_over_rows(RowPass::whole);
  pass_over_rows(RowPass::sum);
  args.split->add_up(sums.view(DType::f32, {rows}));
  pass_over_rows(RowPass::rest);
}

}  // namespace switchyard::gpu
