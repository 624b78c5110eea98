// A kernel on disk has these bytes:
//   magic "FLASHJIT" | u32 version | u32 key bytes | u32 facts bytes | u64 payload bytes | key | facts | payload |
//   SHA-256
// Numbers are little-endian, and the checksum covers everything before it. The full text of the key is inside, so that
// an entry under a wrong name is noticed.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace flashjit {

// Facts are known about a kernel without running it, for example "registers" -> "128".
using StoreFacts = std::map<std::string, std::string, std::less<>>;

struct StoreEntry {
  std::string key_text;
  StoreFacts facts;
  std::vector<std::uint8_t> payload;
};

inline constexpr std::size_t kMaxEntryBytes = std::size_t{256} << 20;

std::vector<std::uint8_t> encode(const StoreEntry& entry);

// Returns nothing if a single bit is not as encode() wrote it.
std::optional<StoreEntry> decode(std::span<const std::uint8_t> bytes);

}  // namespace flashjit
