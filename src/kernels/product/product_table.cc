// All that can multiply matrices, best first. The first row that accepts a product computes it.
#include <vector>

#include "core/error.h"
#include "kernels/cuda/planned.h"
#include "kernels/product/blocks.h"
#include "kernels/product/cuda/product.h"
#include "kernels/product/few_rows.h"
#include "kernels/product/integers.h"
#include "kernels/product/product.h"
#include "kernels/registry/kernel.h"

namespace switchyard {
namespace {

// A GPU takes one product, whose groups it finds on the device, or products of one a. The CPU takes problems,
// one a group.
struct ProductArgs {
  std::span<const GemmProblem> problems = {};
  gpu::ProductsArgs on_gpu = {};
};

const char* refuse_unless_bf16(const GemmProblem& p) {
  return p.dtype == DType::bf16 ? nullptr : "the operands are not bfloat16";
}

const char* refuse_forms(const GemmProblem& p) {
  return p.is_plain() ? nullptr : "it takes plain products only";
}

// ---- What a row calls

template <const char* (*refuses)(const GemmProblem&)>
const char* problem(const ProductArgs& args) {
  return refuses(args.problems.front());
}

template <const char* (*refuses)(const gpu::ProductArgs&)>
const char* product(const ProductArgs& args) {
  return args.on_gpu.size() > 1 ? "it takes one product" : refuses(args.on_gpu.front());
}

template <const char* (*refuses)(gpu::ProductsArgs)>
const char* products(const ProductArgs& args) {
  for (const gpu::ProductArgs& one : args.on_gpu)
    if (one.packed.dtype() != args.on_gpu.front().packed.dtype()) return "the weights are of several types";
  return refuses(args.on_gpu);
}

template <void (*launch)(const gpu::ProductArgs&)>
void launches(const ProductArgs& args) {
  for (const gpu::ProductArgs& one : args.on_gpu) launch(one);
}

template <void (*launch)(gpu::ProductsArgs)>
void launches_all(const ProductArgs& args) {
  launch(args.on_gpu);
}

// Products of one a that no kernel takes together.
void launch_each(const gpu::ProductArgs& product) {
  gpu::run_product("gemm", product);
}

const char* refuse_nothing(const gpu::ProductArgs&) {
  return nullptr;
}

template <GemmBlockKernel* kernel>
void columns(ThreadPool& pool, const ProductArgs& args) {
  run_columns(pool, args.problems, kernel);
}

template <GemmBlockKernel* kernel, const GemmRowPacking* packing = nullptr>
void blocks(ThreadPool& pool, const ProductArgs& args) {
  run_blocks(pool, args.problems, kernel, packing);
}

#if defined(__x86_64__)
template <const IntegerGemm* gemm>
void integers(ThreadPool& pool, const ProductArgs& args) {
  run_integers(pool, args.problems, *gemm);
}

void slices(ThreadPool& pool, const ProductArgs& args) {
  run_slices(pool, args.problems);
}
#endif

// clang-format off
constexpr Implementation<ProductArgs> kProducts[] = {
    {"cuda_few_rows_packed_mma", Gpu::any, launches_all<gpu::few_rows_packed_product>, products<gpu::few_rows_packed_refuses>},
    {"cuda_few_rows_wgmma", Gpu::hopper,  launches_all<gpu::few_rows_wgmma>,   products<gpu::few_rows_wgmma_refuses>},
    {"cuda_few_rows",   Gpu::any,         launches_all<gpu::few_rows_product>, products<gpu::few_rows_refuses>},
    {"cuda_unpack",     Gpu::any,         launches<gpu::unpacked_product>, product<gpu::unpacked_refuses>},
    {"cuda_tma_split",  Gpu::hopper,      launches_all<gpu::split_product>,    products<gpu::split_refuses>},
    {"cuda_tma",        Gpu::hopper,      launches_all<gpu::tma_product>,      products<gpu::tma_refuses>},
    {"cuda_wgmma",      Gpu::hopper,      launches<gpu::wgmma_product>,    product<gpu::wgmma_refuses>},
    {"cuda_mma",        Gpu::any,         launches<gpu::mma_product>,      product<gpu::mma_refuses>},
    {"cuda_plain",      Gpu::any,         launches<gpu::plain_product>,    product<refuse_nothing>},
    {"cuda_each",       Gpu::any,         launches<launch_each>},
#if defined(__x86_64__)
    {"integers_vnni",   Isa::avx512_bf16, integers<&cpu::integers_vnni>,   problem<integers_refuse>},
    {"integers_avx512", Isa::avx512,      integers<&cpu::integers_avx512>, problem<integers_refuse>},
    {"integers_avx2",   Isa::avx2,        integers<&cpu::integers_avx2>,   problem<integers_refuse>},
    {"few_rows_packed_avx512", Isa::avx512, columns<cpu::gemm_few_rows_packed_avx512>, problem<packed_columns_refuse>},
    {"few_rows_packed_avx2",   Isa::avx2,   columns<cpu::gemm_few_rows_packed_avx2>,   problem<packed_columns_refuse>},
    {"few_rows_slices", Isa::avx512_bf16, slices,                          problem<slices_refuse>},
    {"few_rows_avx512", Isa::avx512,      columns<cpu::gemm_few_rows_avx512>, problem<columns_refuse>},
    {"few_rows_avx2",   Isa::avx2,        columns<cpu::gemm_few_rows_avx2>,   problem<columns_refuse>},
    {"amx",             Isa::amx,         blocks<cpu::amx_tiles::gemm_block, &cpu::amx_tiles::row_packing>,   problem<refuse_unless_bf16>},
    {"avx512_bf16",     Isa::avx512_bf16, blocks<cpu::soft_tiles::gemm_block, &cpu::soft_tiles::row_packing>, problem<refuse_unless_bf16>},
    {"avx512",          Isa::avx512,      blocks<cpu::gemm_block_avx512>,  problem<refuse_forms>},
    {"avx2",            Isa::avx2,        blocks<cpu::gemm_block_avx2>,    problem<refuse_forms>},
#endif
    {"ref",             Isa::ref,         blocks<ref::gemm_block>},
};
// clang-format on

using Row = Implementation<ProductArgs>;

Work work_of(const char* op, std::span<const GemmProblem> problems) {
  Work work{op, problems.front().dtype};
  for (const auto& p : problems) {
    const auto m = static_cast<double>(p.m), n = static_cast<double>(p.n), k = static_cast<double>(p.depth());
    const double products = p.b_next == nullptr ? 1 : 2,
                 cs = (p.c_next == nullptr ? 1 : 2) + (p.hidden == nullptr ? 0 : 1);
    work.flops += 2 * m * n * k * products;
    work.bytes += m * k * static_cast<double>(size_of(p.dtype)) + weight_bytes(p, k * n * products) +
                  m * n * cs * static_cast<double>(size_of(p.c_dtype)) * (p.accumulate ? 2 : 1);
  }
  return work;
}

void check_form(const char* op, const GemmProblem& p) {
  if (p.packed()) {
    const std::int64_t inputs = p.transpose_b ? p.n : p.k, outputs = p.transpose_b ? p.k : p.n;
    CHECK(p.is_plain() && !p.transpose_a && inputs % block_inputs(p.weight_dtype) == 0 &&
              outputs % kBlockOutputs == 0,
          "[{}] {} weights [{}, {}] are no whole blocks, or the product is not plain", op,
          name_of(p.weight_dtype), inputs, outputs);
  }
  CHECK(
      p.is_plain() || takes_gemm_forms(p.dtype),
      "[{}] fused forms need AVX512-BF16 or AMX and bfloat16; the active instruction set is {}, the dtype {}",
      op, name_of(active_isa()), name_of(p.dtype));
  CHECK(is_float(p.dtype) && is_float(p.c_dtype), "[{}] {} into {}", op, name_of(p.dtype),
        name_of(p.c_dtype));
}

const char* refusal_of(const Row& row, const ProductArgs& args) {
  return row.refuses == nullptr ? nullptr : row.refuses(args);
}

const Row& choose(const char* op, const ProductArgs& args) {
  return registry::choose("product", op, std::span<const Row>(kProducts), !args.on_gpu.empty(),
                          [&](const Row& row) { return refusal_of(row, args); });
}

// The row of one problem, which is not recorded.
const Row* row_of(const GemmProblem& problem) {
  const ProductArgs args{.problems = {&problem, 1}};
  for (const Row& row : kProducts) {
    if (!row.on_gpu && registry::missing(row.isa) == nullptr && refusal_of(row, args) == nullptr) return &row;
  }
  return nullptr;
}

}  // namespace

bool takes_gemm_forms(DType dtype) {
  return dtype == DType::bf16 && active_isa() >= Isa::avx512_bf16;
}

bool reads_few_rows(const GemmProblem& p) {
  constexpr std::int64_t kMostRows = 8;
  return p.m <= kMostRows &&
         (integers_refuse(p) == nullptr || packed_columns_refuse(p) == nullptr ||
          columns_refuse(p) == nullptr || (takes_gemm_forms(p.dtype) && slices_refuse(p) == nullptr));
}

void run_products(ThreadPool& pool, const char* op, std::span<const GemmProblem> problems) {
  if (problems.empty() || pool.skips(work_of(op, problems))) return;
  check_form(op, problems.front());
  struct Share {
    const Row* row;
    std::vector<GemmProblem> problems;
  };
  std::vector<Share> shares;
  std::vector<const Row*> rows;
  for (const GemmProblem& p : problems) rows.push_back(row_of(p));
  for (std::size_t i = 0; i < problems.size(); ++i) {
    if (std::ranges::find(shares, rows[i], &Share::row) != shares.end()) continue;
    shares.push_back({&choose(op, {.problems = problems.subspan(i, 1)}), {}});
  }
  if (shares.size() == 1) return shares[0].row->run(pool, {.problems = problems});
  for (Share& share : shares) {
    for (std::size_t i = 0; i < problems.size(); ++i)
      if (rows[i] == share.row) share.problems.push_back(problems[i]);
    share.row->run(pool, {.problems = share.problems});
  }
}

namespace gpu {

void run_product(const char* op, const ProductArgs& args) {
  run_products(op, args);
}

void run_products(const char* op, ProductsArgs args) {
  choose(op, {.on_gpu = args}).launch({.on_gpu = args});
}

}  // namespace gpu
}  // namespace switchyard
