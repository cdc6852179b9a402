// CacheDomain: whose cached tokens a request may begin with. What one key has sent is not found by another,
// since the number of cached tokens tells how far two prompts agree; a salt parts the requests of one key
// further. Tokens that were read with one adapter are none of another's. The domain travels with the request:
// through the memory of chats' tokens, the queue, and the slots of the KV cache.
#pragma once

#include <cstdint>
#include <string>

namespace switchyard::texts {

constexpr std::int64_t kNobody = -1;  // the key of requests to a server without keys

struct CacheDomain {
  std::int64_t key = kNobody;
  std::string salt = {};     // cache_salt of the request
  std::int64_t adapter = 0;  // TextAdapter::version; 0: none
  bool operator==(const CacheDomain&) const = default;
};

}  // namespace switchyard::texts
