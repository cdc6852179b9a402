// Formulas that have one row for all CPUs.
#include <type_traits>
#include <utility>

#include "kernels/element/kernels.h"
#include "kernels/element/single.h"

#define ELEMENT inline

namespace switchyard::portable {
namespace {

template <class T>
using Number = Single;

#include "kernels/element/formulas-inl.h"
// The driver needs the formulas above.
#include "kernels/element/driver-inl.h"

}  // namespace

#define SWITCHYARD_DEFINE(name, formula, way, operands, results)              \
  void name(const Elements& elements, std::int64_t begin, std::int64_t end) { \
    run_formula<way, formula, operands>(elements, begin, end);                \
  }
SWITCHYARD_PORTABLE_FORMULAS(SWITCHYARD_DEFINE)

}  // namespace switchyard::portable
