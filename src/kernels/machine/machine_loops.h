// Loops that ask one core for one thing only, as fast as it can: what a machine's peaks are measured with.
//
// The instruction set is active_isa(). Each call works on the calling thread alone and takes no memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/dtype.h"

namespace switchyard {

// Multiplies and adds in registers, nothing read from or written to memory.
struct ProductLoop {
  const char* instruction;  // a literal
  double flops;             // of one step, 2 a multiply-add
  void (*run)(std::int64_t steps);
};
// Returns loops that multiply operands of `dtype` (f32 or bf16) and add in fp32. The fastest one gives the
// peak. Only measuring finds it: a dot product of bf16 pairs may be slower than widening and multiplying.
std::vector<ProductLoop> product_loops(DType dtype);
// Steps that take this thread about a millisecond: long beside the start of threads, and short, so that some
// rounds find all cores free.
std::int64_t millisecond_of(const ProductLoop& loop);

// Copies past the caches where the instruction set can (each byte is read once and written once, without the
// destination being read for ownership). bytes: a multiple of 512; both addresses multiples of 64.
void copy_loop(const std::byte* from, std::byte* to, std::size_t bytes);

// Reads and writes each byte in place; sizes and address as above.
void update_loop(std::byte* at, std::size_t bytes);

// Reads all bytes (a multiple of 512, the address one of 64) and returns something that depends on each.
std::uint64_t read_loop(const std::byte* from, std::size_t bytes);

// AMX only (CHECKed): loads, or stores, 1 KB tiles one after another over `bytes` (a multiple of 8 KB, the
// address one of 64), so many times over: to set up the tile registers takes as long as some 25 loads.
void tile_load_loop(const std::byte* from, std::size_t bytes, int passes);
void tile_store_loop(std::byte* to, std::size_t bytes, int passes);

}  // namespace switchyard
