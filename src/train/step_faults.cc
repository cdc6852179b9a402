#include "train/step_faults.h"

#include <cmath>
#include <functional>

namespace switchyard {
namespace {

// Applies `change` to the first element of x, through host memory.
void change_first(const Tensor& x, const std::function<void(const Tensor& element)>& change) {
  const Tensor first = x.reshaped({x.size()}).slice_rows(0, 1), host = to_host(first).clone();
  change(host);
  copy(host.view(), first.view());
}

}  // namespace

void put_number(const TensorView& to, double value) {
  const Tensor host(Memory(), to.dtype(), to.shape());
  if (to.dtype() == DType::f64)
    host.data<double>()[0] = value;
  else
    host.data<float>()[0] = static_cast<float>(value);
  copy(host.view(), to);
}

void break_a_gradient(const Parameters& parameters) {
  for (const Parameter& p : parameters.all()) {
    const Tensor& grad = p.array.value()->grad;
    if (!grad.defined()) continue;
    return change_first(grad, [](const Tensor& x) {
      x.dtype() == DType::f32 ? void(x.data<float>()[0] = NAN) : void(x.data<bfloat16>()[0] = bfloat16(NAN));
    });
  }
}

void flip_a_bit(const Parameters& parameters) {
  change_first(parameters.all().front().array.tensor(), [](const Tensor& x) { x.raw()[0] ^= std::byte{1}; });
}

}  // namespace switchyard
