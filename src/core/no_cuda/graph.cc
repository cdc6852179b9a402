// Stream capture of a build without CUDA.
#include "core/graph.h"

#include "core/error.h"

namespace switchyard::gpu::capture {
namespace {

[[noreturn]] void no_capture() {
  CHECK(false, "stream capture in a build without CUDA");
  std::abort();
}

}  // namespace

void begin() {
  no_capture();
}
Captured end() {
  no_capture();
}
void abandon() {
  no_capture();
}
void launch(void*) {
  no_capture();
}

}  // namespace switchyard::gpu::capture
