#include "pull/hash.h"

#include <fmt/format.h>
#include <openssl/evp.h>

namespace kinora {

struct ContentHash::State {
  EVP_MD_CTX* context = EVP_MD_CTX_new();
  ~State() { EVP_MD_CTX_free(context); }
};

ContentHash::ContentHash() : state_(std::make_unique<State>()) {}
ContentHash::ContentHash(ContentHash&&) noexcept = default;
ContentHash& ContentHash::operator=(ContentHash&&) noexcept = default;
ContentHash::~ContentHash() = default;

std::optional<ContentHash> ContentHash::for_name(std::string_view name, int64_t bytes) {
  const bool hex = name.find_first_not_of("0123456789abcdef") == std::string_view::npos;
  if (!hex || (name.size() != 64 && name.size() != 40)) return std::nullopt;
  ContentHash hash;
  EVP_DigestInit_ex(hash.state_->context, name.size() == 64 ? EVP_sha256() : EVP_sha1(), nullptr);
  if (name.size() == 40) hash.add(fmt::format("blob {}", bytes) + '\0');
  return hash;
}

void ContentHash::add(std::string_view bytes) {
  EVP_DigestUpdate(state_->context, bytes.data(), bytes.size());
}

std::string ContentHash::hex() {
  unsigned char digest[EVP_MAX_MD_SIZE];
  unsigned int length = 0;
  EVP_DigestFinal_ex(state_->context, digest, &length);
  std::string text;
  for (unsigned int i = 0; i < length; ++i) text += fmt::format("{:02x}", digest[i]);
  return text;
}

}  // namespace kinora
