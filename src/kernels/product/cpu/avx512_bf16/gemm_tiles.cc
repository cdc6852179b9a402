#define SWITCHYARD_SOFT_TILES  // see kernels/cpu/tile_target.h
#include "kernels/product/cpu/gemm_tiles.cc"
