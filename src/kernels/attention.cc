#include "kernels/attention.h"

#include "core/error.h"
#include "kernels/ref/attention_reference.h"

namespace switchyard {
void attention(ThreadPool&, const AttentionArgs& a, const void* q, const void* k, const void* v, void* out, float* lse) {
  if (a.dtype == DType::f32) {
    reference::attention(a, static_cast<const float*>(q), static_cast<const float*>(k), static_cast<const float*>(v),
                         static_cast<float*>(out), lse);
  } else {
    reference::attention(a, static_cast<const bfloat16*>(q), static_cast<const bfloat16*>(k),
                         static_cast<const bfloat16*>(v), static_cast<bfloat16*>(out), lse);
  }
}
template <typename T>
static void backward(const AttentionArgs& a, const void* q, const void* k, const void* v, const void* out,
                     const float* lse, const void* dout, void* dq, void* dk, void* dv) {
  reference::attention_backward(a, static_cast<const T*>(q), static_cast<const T*>(k), static_cast<const T*>(v),
                                static_cast<const T*>(out), lse, static_cast<const T*>(dout), static_cast<T*>(dq),
                                static_cast<T*>(dk), static_cast<T*>(dv));
}
void attention_backward(ThreadPool&, const AttentionArgs& a, const void* q, const void* k, const void* v,
                        const void* out, const float* lse, const void* dout, void* dq, void* dk, void* dv) {
  a.dtype == DType::f32 ? backward<float>(a, q, k, v, out, lse, dout, dq, dk, dv)
                        : backward<bfloat16>(a, q, k, v, out, lse, dout, dq, dk, dv);
}
}  // namespace switchyard
