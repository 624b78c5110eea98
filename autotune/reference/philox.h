// Random numbers come from a counter: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011.
#pragma once

#include <array>
#include <cstdint>

namespace flashjit::reference {

using PhiloxBlock = std::array<std::uint32_t, 4>;

inline PhiloxBlock philox(PhiloxBlock x, std::uint32_t key_0, std::uint32_t key_1, int rounds) {
  for (int round = 0; round < rounds; ++round) {
    const std::uint64_t a = std::uint64_t{0xD2511F53} * x[0], b = std::uint64_t{0xCD9E8D57} * x[2];
    x = {static_cast<std::uint32_t>(b >> 32) ^ x[1] ^ key_0, static_cast<std::uint32_t>(b),
         static_cast<std::uint32_t>(a >> 32) ^ x[3] ^ key_1, static_cast<std::uint32_t>(a)};
    key_0 += 0x9E3779B9;
    key_1 += 0xBB67AE85;
  }
  return x;
}

}  // namespace flashjit::reference
