// A build without CUDA.
#include "core/gpu.h"

#include "core/error.h"

namespace switchyard::gpu {
namespace {

[[noreturn]] void no_gpu() {
  CHECK(false, "work for a GPU in a build without CUDA");
  std::abort();
}

}  // namespace

std::string missing() {
  return "this build has no CUDA: configure with -DSWITCHYARD_CUDA=ON (make cuda)";
}
Properties properties() {
  no_gpu();
}
std::byte* allocate(std::size_t) {
  no_gpu();
}
void release(std::byte*) {
  no_gpu();
}
void copy(void*, const void*, std::size_t) {
  no_gpu();
}
void move(void*, const void*, std::size_t) {
  no_gpu();
}
void fill_zero(void*, std::size_t) {
  no_gpu();
}
void synchronize() {
  no_gpu();
}
bool is_idle() {
  no_gpu();
}
void* stream() {
  no_gpu();
}

}  // namespace switchyard::gpu
