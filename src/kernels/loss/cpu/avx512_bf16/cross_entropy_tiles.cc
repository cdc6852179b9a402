#define SWITCHYARD_SOFT_TILES  // see kernels/cpu/tile_target.h
#include "kernels/loss/cpu/cross_entropy_tiles.cc"
