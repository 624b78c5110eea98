// SHA-256 (FIPS 180-4) makes the names of store entries and protects their integrity.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace flashjit {

class Sha256 {
 public:
  using Digest = std::array<std::uint8_t, 32>;

  void update(const void* data, std::size_t bytes);
  void update(std::string_view text) { update(text.data(), text.size()); }
  Digest finish();  // The object cannot be used afterwards.

  using State = std::array<std::uint32_t, 8>;
  // Hashes blocks of 64 bytes on processors without instructions for it.
  static void portable_blocks(State& state, const std::uint8_t* data, std::size_t count);

 private:
  void blocks(const std::uint8_t* data, std::size_t count);

  State state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<std::uint8_t, 64> buffer_ = {};
  std::size_t buffered_ = 0;
  std::uint64_t total_ = 0;
};

Sha256::Digest sha256(std::span<const std::uint8_t> bytes);
std::string hex(const Sha256::Digest& digest);
std::string sha256_hex(std::string_view text);

}  // namespace flashjit
