#include "kernels/machine/machine_loops.h"

#include <chrono>
#include <cstring>

#include "core/error.h"
#include "kernels/machine/machine_loops_x86.h"
#include "kernels/registry/isa.h"

namespace switchyard {
namespace {

constexpr int kScalarChains = 64;

// Multiplies and adds with the instructions that any processor of this kind has.
void scalar_products(std::int64_t steps) {
  float sum[kScalarChains];
  for (float& s : sum) s = 1.0f;
  volatile float factor = 0.999f, summand = 0.001f;
  const float x = factor, y = summand;
  for (std::int64_t i = 0; i < steps; ++i) {
    for (float& s : sum) s = s * x + y;
  }
  volatile float sink = 0;
  for (const float s : sum) sink = sink + s;
}

constexpr ProductLoop kScalar{"scalar multiply, add", 2 * kScalarChains, scalar_products};
#if defined(__x86_64__)
constexpr ProductLoop kAvx2{"AVX2 fma", cpu::kFmaAvx2Flops, cpu::fma_avx2};
constexpr ProductLoop kAvx512{"AVX-512 fma", cpu::kFmaAvx512Flops, cpu::fma_avx512};
constexpr ProductLoop kDot{"AVX512-BF16 dot", cpu::kDotAvx512Flops, cpu::dot_avx512};
constexpr ProductLoop kTiles{"AMX bf16 tile product", cpu::kTileFlops, cpu::tile_products};
#endif

}  // namespace

std::vector<ProductLoop> product_loops(DType dtype) {
  CHECK(is_float(dtype), "products of {}", name_of(dtype));
#if defined(__x86_64__)
  const Isa isa = active_isa();
  if (isa == Isa::amx && dtype == DType::bf16) return {kTiles};
  if (isa == Isa::avx512_bf16 && dtype == DType::bf16) return {kAvx512, kDot};
  if (isa >= Isa::avx512) return {kAvx512};
  if (isa == Isa::avx2) return {kAvx2};
#endif
  return {kScalar};
}

void copy_loop(const std::byte* from, std::byte* to, std::size_t bytes) {
#if defined(__x86_64__)
  if (active_isa() >= Isa::avx512) return cpu::copy_avx512(from, to, bytes);
  if (active_isa() == Isa::avx2) return cpu::copy_avx2(from, to, bytes);
#endif
  std::memcpy(to, from, bytes);
}

void update_loop(std::byte* at, std::size_t bytes) {
#if defined(__x86_64__)
  if (active_isa() >= Isa::avx512) return cpu::update_avx512(at, bytes);
  if (active_isa() == Isa::avx2) return cpu::update_avx2(at, bytes);
#endif
  for (std::size_t i = 0; i < bytes; ++i) at[i] ^= std::byte{0x55};
}

std::int64_t millisecond_of(const ProductLoop& loop) {
  using Clock = std::chrono::steady_clock;
  std::int64_t steps = 64;
  while (true) {
    const auto begin = Clock::now();
    loop.run(steps);
    if (Clock::now() - begin > std::chrono::microseconds(700)) return steps;
    steps *= 2;
  }
}

std::uint64_t read_loop(const std::byte* from, std::size_t bytes) {
#if defined(__x86_64__)
  if (active_isa() >= Isa::avx512) return cpu::read_avx512(from, bytes);
  if (active_isa() == Isa::avx2) return cpu::read_avx2(from, bytes);
#endif
  std::uint64_t sum[8] = {}, word = 0;
  for (std::size_t i = 0; i < bytes; i += sizeof sum) {
    for (std::size_t j = 0; j < 8; ++j) {
      std::memcpy(&word, from + i + 8 * j, 8);
      sum[j] ^= word;
    }
  }
  for (std::size_t j = 1; j < 8; ++j) sum[0] ^= sum[j];
  return sum[0];
}

void tile_load_loop([[maybe_unused]] const std::byte* from, [[maybe_unused]] std::size_t bytes,
                    [[maybe_unused]] int passes) {
  CHECK(active_isa() == Isa::amx, "tiles with {}", name_of(active_isa()));
#if defined(__x86_64__)
  cpu::load_tiles(from, bytes, passes);
#endif
}

void tile_store_loop([[maybe_unused]] std::byte* to, [[maybe_unused]] std::size_t bytes,
                     [[maybe_unused]] int passes) {
  CHECK(active_isa() == Isa::amx, "tiles with {}", name_of(active_isa()));
#if defined(__x86_64__)
  cpu::store_tiles(to, bytes, passes);
#endif
}

}  // namespace switchyard
