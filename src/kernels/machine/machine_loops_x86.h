// The x86 loops behind kernels/machine/machine_loops.h, and the FLOPs of one step of each product loop.
#pragma once

#include <cstddef>
#include <cstdint>

namespace switchyard::cpu {

constexpr double kFmaAvx2Flops = 12 * 8 * 2, kFmaAvx512Flops = 12 * 16 * 2, kDotAvx512Flops = 12 * 32 * 2,
                 kTileFlops = 8 * 16 * 16 * 32 * 2;

void fma_avx2(std::int64_t steps);
void fma_avx512(std::int64_t steps);
void dot_avx512(std::int64_t steps);  // AVX512-BF16
void tile_products(std::int64_t steps);

void copy_avx2(const std::byte* from, std::byte* to, std::size_t bytes);
void copy_avx512(const std::byte* from, std::byte* to, std::size_t bytes);
void update_avx2(std::byte* at, std::size_t bytes);
void update_avx512(std::byte* at, std::size_t bytes);
std::uint64_t read_avx2(const std::byte* from, std::size_t bytes);
std::uint64_t read_avx512(const std::byte* from, std::size_t bytes);
void load_tiles(const std::byte* from, std::size_t bytes, int passes);
void store_tiles(std::byte* to, std::size_t bytes, int passes);

}  // namespace switchyard::cpu
