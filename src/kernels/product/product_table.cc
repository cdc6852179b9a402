// All that can multiply matrices, best first. The first row that accepts a product computes it.
#include <algorithm>
#include <vector>

#include "core/error.h"
#include "kernels/cuda/launch_pool.h"
#include "kernels/product/blocks.h"
#include "kernels/product/composed.h"
#include "kernels/product/cpu/gemm_problem.h"
#include "kernels/product/cuda/gated_product.h"
#include "kernels/product/cuda/product.h"
#include "kernels/product/few_rows.h"
#include "kernels/product/integers.h"
#include "kernels/registry/kernel.h"

namespace switchyard {
namespace {

// A product as the rows read it. A CPU's row takes problems, one a group, all of which it accepted by
// the first; a GPU's takes all of the product, whose groups it finds on the device.
struct ProductCall {
  const Product& product;
  std::span<const GemmProblem> problems = {};
  gpu::DeviceProducts lowered = {};  // none: the product is more than a kernel takes
};

// ---- Reasons not to take a product

const char* refuse_unless_bf16(const GemmProblem& p) {
  return p.dtype == DType::bf16 ? nullptr : "the operands are not bfloat16";
}

const char* refuse_forms(const GemmProblem& p) {
  return p.is_plain() ? nullptr : "it takes plain products only";
}

// The reason for which every kernel of a CPU refuses a problem, so that the product is composed.
const char* refuse_more(const ProductCall& call, const GemmProblem& p) {
  if (p.is_plain()) return nullptr;
  if (p.packed() || !takes_gemm_forms(p.dtype)) return refuse_forms(p);
  if (p.b_next != nullptr && p.c_next == nullptr) return "gate and up are not wanted";
  if (!p.more.empty() && call.product.groups == Product::Groups::none)
    return "a sum of whole matrices is stored term by term";
  return nullptr;
}

const char* composed_refuses(const ProductCall& call) {
  const GemmProblem& p = call.problems.front();
  if (p.logits != nullptr) return "its results are logits";
  return refuse_more(call, p) == nullptr ? "a kernel takes it" : nullptr;
}

template <const char* (*refuses)(const GemmProblem&)>
const char* problem(const ProductCall& call) {
  const GemmProblem& p = call.problems.front();
  const char* const reason = refuse_more(call, p);
  return reason != nullptr ? reason : refuses(p);
}

constexpr const char* kMore = "it is more than a kernel takes";

const char* refuse_nothing(const gpu::DeviceProduct&) {
  return nullptr;
}

template <const char* (*refuses)(const gpu::DeviceProduct&)>
const char* product(const ProductCall& call) {
  if (call.lowered.empty()) return kMore;
  return call.lowered.size() > 1 ? "it takes one product" : refuses(call.lowered.front());
}

template <const char* (*refuses)(gpu::DeviceProducts)>
const char* products(const ProductCall& call) {
  if (call.lowered.empty()) return kMore;
  for (const gpu::DeviceProduct& one : call.lowered)
    if (one.weight_dtype != call.lowered.front().weight_dtype) return "the weights are of several types";
  return refuses(call.lowered);
}

const char* unpacked_refuses(const gpu::DeviceProduct& p) {
  return is_packed(p.weight_dtype) ? nullptr : "the weights are not packed";
}

const char* gated_refuses(const ProductCall& call) {
  if (call.product.terms.size() > 1 || call.product.parts > 1) return kMore;
  return call.product.gated == nullptr ? "it has no activation" : gpu::hopper_gated_refuses(call.product);
}

// ---- What a row calls

template <void (*launch)(const gpu::DeviceProduct&)>
void launches(const ProductCall& call) {
  launch(call.lowered.front());
}

template <void (*launch)(gpu::DeviceProducts)>
void launches_all(const ProductCall& call) {
  launch(call.lowered);
}

void launches_gated(const ProductCall& call) {
  gpu::hopper_gated_product(call.product);
}

template <void (*compose)(ThreadPool&, const Product&)>
void composes(const ProductCall& call) {
  gpu::LaunchPool pool;
  compose(pool, call.product);
}

void composes_on_cpu(ThreadPool& pool, const ProductCall& call) {
  composed_product(pool, call.product);
}

template <GemmBlockKernel* kernel>
void columns(ThreadPool& pool, const ProductCall& call) {
  run_columns(pool, call.problems, kernel);
}

template <GemmBlockKernel* kernel, const GemmRowPacking* packing = nullptr>
void blocks(ThreadPool& pool, const ProductCall& call) {
  run_blocks(pool, call.problems, kernel, packing);
}

#if defined(__x86_64__)
template <const IntegerGemm* gemm>
void integers(ThreadPool& pool, const ProductCall& call) {
  run_integers(pool, call.problems, *gemm);
}

void slices(ThreadPool& pool, const ProductCall& call) {
  run_slices(pool, call.problems);
}
#endif

// clang-format off
constexpr Implementation<ProductCall> kProducts[] = {
    {"cuda_hopper_gated", Gpu::hopper,    launches_gated,                      gated_refuses, &proofs::gated_product},
    {"cuda_few_rows_packed_mma", Gpu::any, launches_all<gpu::few_rows_packed_product>, products<gpu::few_rows_packed_refuses>, &proofs::few_rows_packed},
    {"cuda_few_rows_wgmma", Gpu::hopper,  launches_all<gpu::few_rows_wgmma>,   products<gpu::few_rows_wgmma_refuses>, &proofs::few_rows_wgmma},
    {"cuda_few_rows",   Gpu::any,         launches_all<gpu::few_rows_product>, products<gpu::few_rows_refuses>},
    {"cuda_unpack",     Gpu::any,         composes<unpacked_product>,          product<unpacked_refuses>},
    {"cuda_tma_split",  Gpu::hopper,      launches_all<gpu::split_product>,    products<gpu::split_refuses>, &proofs::split_product},
    {"cuda_tma",        Gpu::hopper,      launches_all<gpu::tma_product>,      products<gpu::tma_refuses>, &proofs::tma_product},
    {"cuda_wgmma",      Gpu::hopper,      launches<gpu::wgmma_product>,        product<gpu::wgmma_refuses>},
    {"cuda_mma",        Gpu::any,         launches<gpu::mma_product>,          product<gpu::mma_refuses>},
    {"cuda_plain",      Gpu::any,         launches<gpu::plain_product>,        product<refuse_nothing>},
    {"cuda_composed",   Gpu::any,         composes<composed_product>},
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
    {"composed",        Isa::ref,         composes_on_cpu,                 composed_refuses},
    {"ref",             Isa::ref,         blocks<ref::gemm_block>,         problem<refuse_forms>},
};
// clang-format on

using Row = Implementation<ProductCall>;

Work work_of(const char* op, std::span<const GemmProblem> problems) {
  const GemmProblem& first = problems.front();
  Work work{.kernel = op, .dtype = first.dtype, .weights = first.packed() ? first.weight_dtype : first.dtype};
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

const char* refusal_of(const Row& row, const ProductCall& call) {
  return row.refuses == nullptr ? nullptr : row.refuses(call);
}

const Row& choose(const ProductCall& call) {
  return registry::choose("product", call.product.op, std::span<const Row>(kProducts), call.product.on_gpu(),
                          [&](const Row& row) { return refusal_of(row, call); });
}

// The row of a CPU's problem, which is not recorded.
const Row* row_of(const ProductCall& call) {
  for (const Row& row : kProducts) {
    if (!row.on_gpu && registry::missing(row.isa) == nullptr && refusal_of(row, call) == nullptr) return &row;
  }
  return nullptr;
}

// The problems that a row computes together: they have one type of weights.
struct Share {
  const Row* row;
  DType weights;
  std::vector<GemmProblem> problems;
};

std::vector<Share> shares_of(const Product& product, std::span<const GemmProblem> problems) {
  std::vector<Share> shares;
  const GemmProblem* before = nullptr;
  const Row* row = nullptr;
  for (const GemmProblem& p : problems) {
    const bool is_alike = before != nullptr && before->m == p.m && before->n == p.n && before->k == p.k &&
                          before->ldb == p.ldb && before->weight_dtype == p.weight_dtype;
    if (!is_alike) row = row_of({.product = product, .problems = {&p, 1}});
    before = &p;
    auto share = std::ranges::find_if(
        shares, [&](const Share& s) { return s.row == row && s.weights == p.weight_dtype; });
    if (share == shares.end()) share = shares.insert(share, {row, p.weight_dtype, {}});
    share->problems.push_back(p);
  }
  return shares;
}

void multiply_on_cpu(ThreadPool& pool, const Product& product) {
  const ExpandedProduct all(product);
  if (all.problems.empty()) return;
  const std::vector<Share> shares = shares_of(product, all.problems);
  // A plan counts what a composition starts, each by itself.
  const bool composes = shares.front().row != nullptr && shares.front().row->run == composes_on_cpu;
  if (!composes && pool.skips(work_of(product.op, all.problems))) return;
  for (const Share& share : shares) {
    const ProductCall call{.product = product, .problems = share.problems};
    choose(call).run(pool, call);
  }
}

}  // namespace

void multiply(ThreadPool& pool, const Product& product) {
  registry::require_one_device(product.op, product, product.on_gpu());
  if (!product.on_gpu()) return multiply_on_cpu(pool, product);
  const std::vector<gpu::DeviceProduct> lowered = gpu::lowered(product);
  const ProductCall call{.product = product, .lowered = lowered};
  choose(call).launch(call);
}

}  // namespace switchyard
