// The module asks the processor first, before anything else of the engine runs.
#include <nanobind/nanobind.h>

#include "core.h"

namespace switchyard::python {

// Raises ImportError for a processor that lacks what kernels need.
void require_processor(bool avx2, bool fma) {
  if (avx2 && fma) return;
  throw nb::import_error(
      "switchyard needs a processor with AVX2 and FMA (Intel from 2013, AMD from 2015 on); this one lacks "
      "them");
}

void define_processor(nb::module_& module) {
  __builtin_cpu_init();
  require_processor(__builtin_cpu_supports("avx2") != 0, __builtin_cpu_supports("fma") != 0);
  module.def("require_processor", &require_processor, nb::arg("avx2"), nb::arg("fma"),
             "Raises ImportError unless a processor with these is enough.");
}

}  // namespace switchyard::python
