// The files of the module share these. Each file defines a part of the module.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>

#include <memory>
#include <utility>
#include <vector>

#include "core.h"
#include "switchyard/engine.h"

namespace switchyard::python {

using Ids = std::vector<std::int32_t>;
using Tokens = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
using Floats = nb::ndarray<nb::numpy, float>;
using Held = std::shared_ptr<Core>;

// Python's memory from now on: an array whose values are not copied.
Floats array_of(std::vector<float> values, const std::vector<std::size_t>& shape);
nb::ndarray<nb::numpy, std::int32_t> ids_array(std::vector<std::int32_t> values,
                                               const std::vector<std::size_t>& shape);
// Error(usage) that names `what`, the call, for an id that has no 32 bits.
Ids ids_of(const char* what, const Tokens& tokens, std::int64_t vocabulary);
TokenBatch batch_of(const char* what, const Tokens& tokens, std::int64_t vocabulary);

void define_training(nb::module_& module, nb::class_<Core>& engine);

}  // namespace switchyard::python
