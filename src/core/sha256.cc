#include "core/sha256.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>

#include "core/error.h"

namespace switchyard {

struct Sha256::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~State() { EVP_MD_CTX_free(context); }
};

Sha256::Sha256() : state_(std::make_unique<State>()) {
  CHECK(state_->context != nullptr && EVP_DigestInit_ex(state_->context, EVP_sha256(), nullptr) == 1,
        "SHA-256 is not to be had");
}
Sha256::~Sha256() = default;

void Sha256::add(std::span<const std::byte> bytes) {
  CHECK(EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()) == 1, "{} bytes", bytes.size());
}

std::string Sha256::hex() {
  std::array<unsigned char, 32> digest{};
  unsigned length = 0;
  CHECK(EVP_DigestFinal_ex(state_->context, digest.data(), &length) == 1 && length == digest.size(), "{}",
        length);
  std::string text;
  for (const unsigned char byte : digest) text += fmt::format("{:02x}", byte);
  return text;
}

}  // namespace switchyard
