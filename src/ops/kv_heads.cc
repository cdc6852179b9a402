#include "ops/kv_heads.h"

#include <cstring>

#include "core/error.h"

namespace switchyard {

std::vector<std::int64_t> kv_heads_of(const Context& c, const ArrayInfo& q, const ArrayInfo& k) {
  const std::int64_t per_kv = q.shape[2] / k.shape[2], count = q.local[2];
  const std::int64_t first = local_offset(*c.mesh, c.rank, q.shape, q.sharding)[2];
  const std::int64_t first_kv = local_offset(*c.mesh, c.rank, k.shape, k.sharding)[2];
  const bool even = count % per_kv == 0 || per_kv % count == 0;
  std::vector<std::int64_t> heads;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t head = (first + i) / per_kv - first_kv;
    CHECK(head >= 0 && head < k.local[2], "[attention] q is {}, k {}", to_string(q.sharding),
          to_string(k.sharding));
    if (!even || heads.empty() || heads.back() != head) heads.push_back(head);
  }
  return heads;
}

Tensor take_heads(Context& c, const Tensor& x, const std::vector<std::int64_t>& heads) {
  const auto count = static_cast<std::int64_t>(heads.size());
  if (count == x.dim(2) && heads.front() == 0 && heads.back() == count - 1) return x;
  Tensor out(x.dtype(), {x.dim(0), x.dim(1), count, x.dim(3)});
  const auto head = static_cast<std::size_t>(x.dim(3)) * size_of(x.dtype());
  c.pool->for_range(x.dim(0) * x.dim(1), 32, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin * count; i < end * count; ++i) {
      const std::int64_t from = i / count * x.dim(2) + heads[static_cast<std::size_t>(i % count)];
      std::memcpy(out.raw() + static_cast<std::size_t>(i) * head,
                  x.raw() + static_cast<std::size_t>(from) * head, head);
    }
  });
  return out;
}

}  // namespace switchyard
