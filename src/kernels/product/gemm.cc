#include "kernels/product/gemm.h"

#include <tuple>
#include <vector>

#include "core/error.h"
#include "kernels/product/cuda/operands.h"
#include "kernels/product/product.h"

namespace switchyard {
namespace {

// A view of two or three dims as [batch, rows, columns].
struct Matrices {
  explicit Matrices(const TensorView& x) : dtype(x.dtype()), first(x.device_address()) {
    CHECK(x.rank() == 2 || x.rank() == 3, "a matrix of {} dims", x.rank());
    const std::size_t row = x.rank() - 2;
    rows = x.dim(row), columns = x.dim(row + 1), leading = x.stride(row);
    if (x.rank() == 3) batch = x.dim(0), stride = x.stride(0);
    CHECK(columns <= 1 || x.stride(row + 1) == 1, "elements of a row are {} apart", x.stride(row + 1));
  }
  std::byte* at(std::int64_t i) const {
    return first + i * stride * static_cast<std::int64_t>(size_of(dtype));
  }
  std::int64_t inputs() const { return is_packed(dtype) ? rows * block_inputs(dtype) : rows; }
  std::int64_t outputs() const { return is_packed(dtype) ? columns * kBlockOutputs : columns; }
  DType dtype;
  std::byte* first;
  std::int64_t batch = 1, rows, columns, leading, stride = 0;
};

thread_local DeferredGemms* deferred = nullptr;

}  // namespace

DeferredGemms::DeferredGemms(ThreadPool& pool) : pool_(pool) {
  CHECK(deferred == nullptr, "products wait for another scope already");
  deferred = this;
}

DeferredGemms::~DeferredGemms() {
  deferred = nullptr;
}

// Takes problems that one kernel computes with those that wait: of the same types and form.
bool DeferredGemms::take(std::span<const GemmProblem> problems) {
  const auto form = [](const GemmProblem& p) {
    return std::tuple(p.k, p.dtype, p.weight_dtype, p.c_dtype, p.transpose_b);
  };
  for (const GemmProblem& p : problems) {
    const GemmProblem& first = waiting_.empty() ? p : waiting_.front();
    if (p.accumulate || !reads_few_rows(p) || form(p) != form(first)) return false;
  }
  waiting_.insert(waiting_.end(), problems.begin(), problems.end());
  return true;
}

void DeferredGemms::run() {
  run_products(pool_, "gemm", waiting_);
  waiting_.clear();
}

void gemm(ThreadPool& pool, const GemmArgs& args) {
  const Matrices a(args.a), b(args.b), c(args.c);
  const std::int64_t m = c.rows, n = c.columns, k = args.transpose_a ? a.rows : a.columns;
  CHECK((is_packed(b.dtype) || a.dtype == b.dtype) && a.batch == c.batch && b.batch == c.batch,
        "[gemm] {} of {}, {} of {}, into {}", a.batch, name_of(a.dtype), b.batch, name_of(b.dtype), c.batch);
  CHECK((args.transpose_a ? a.columns : a.rows) == m && (args.transpose_b ? b.outputs() : b.inputs()) == k &&
            (args.transpose_b ? b.inputs() : b.outputs()) == n,
        "[gemm] {}x{} and {}x{} into {}x{}", a.rows, a.columns, b.rows, b.columns, m, n);
  if (args.c.on_gpu()) return gpu::gemm(args);
  std::vector<GemmProblem> problems(static_cast<std::size_t>(c.batch));
  for (std::int64_t i = 0; i < c.batch; ++i) {
    problems[static_cast<std::size_t>(i)] = {.m = m,
                                             .n = n,
                                             .k = k,
                                             .dtype = a.dtype,
                                             .a = a.at(i),
                                             .transpose_a = args.transpose_a,
                                             .lda = a.leading,
                                             .b = b.at(i),
                                             .transpose_b = args.transpose_b,
                                             .ldb = b.leading,
                                             .weight_dtype = b.dtype,
                                             .c = c.at(i),
                                             .c_dtype = c.dtype,
                                             .ldc = c.leading,
                                             .accumulate = args.accumulate};
  }
  if (deferred == nullptr || !deferred->take(problems)) run_products(pool, "gemm", problems);
}

}  // namespace switchyard
