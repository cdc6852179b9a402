#define SWITCHYARD_SOFT_TILES  // see kernels/cpu/tile_target.h
#include "kernels/attention/cpu/attention_forward_tiles.cc"
