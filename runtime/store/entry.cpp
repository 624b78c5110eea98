#include "runtime/store/entry.h"

#include <algorithm>
#include <cstring>

#include "runtime/store/sha256.h"

namespace flashjit {
namespace {

constexpr std::string_view kMagic = "FLASHJIT";
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kHeaderBytes = 8 + 4 + 4 + 4 + 8;
constexpr std::size_t kChecksumBytes = 32;

void put(std::vector<std::uint8_t>& to, std::uint64_t value, int bytes) {
  for (int i = 0; i < bytes; ++i) to.push_back(static_cast<std::uint8_t>(value >> (8 * i)));
}

void put(std::vector<std::uint8_t>& to, std::string_view text) { to.insert(to.end(), text.begin(), text.end()); }

std::uint64_t take(std::span<const std::uint8_t>& from, int bytes) {
  std::uint64_t value = 0;
  for (int i = 0; i < bytes; ++i) value |= std::uint64_t{from[static_cast<std::size_t>(i)]} << (8 * i);
  from = from.subspan(static_cast<std::size_t>(bytes));
  return value;
}

std::string print(const StoreFacts& facts) {
  std::string text;
  for (const auto& [name, value] : facts) {
    text += name + "=";
    for (const char c : value) {
      if (c == '\n' || c == '\\') text += '\\';
      text += c == '\n' ? 'n' : c;
    }
    text += '\n';
  }
  return text;
}

std::string unescape(std::string_view text) {
  std::string value;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool escaped = text[i] == '\\' && i + 1 < text.size();
    if (escaped) ++i;
    value += escaped && text[i] == 'n' ? '\n' : text[i];
  }
  return value;
}

std::optional<StoreFacts> parse_facts(const std::string_view whole) {
  StoreFacts facts;
  std::string_view text = whole;
  while (!text.empty()) {
    const std::size_t end = text.find('\n'), equals = text.find('=');
    if (end == std::string_view::npos || equals == std::string_view::npos || equals > end) return std::nullopt;
    facts.emplace(text.substr(0, equals), unescape(text.substr(equals + 1, end - equals - 1)));
    text.remove_prefix(end + 1);
  }
  // Facts that come twice, in another order or escaped without need were not written by encode().
  if (print(facts) != whole) return std::nullopt;
  return facts;
}

}  // namespace

std::vector<std::uint8_t> encode(const StoreEntry& entry) {
  const std::string facts = print(entry.facts);
  std::vector<std::uint8_t> bytes;
  bytes.reserve(kHeaderBytes + entry.key_text.size() + facts.size() + entry.payload.size() + kChecksumBytes);
  put(bytes, kMagic);
  put(bytes, kVersion, 4);
  put(bytes, entry.key_text.size(), 4);
  put(bytes, facts.size(), 4);
  put(bytes, entry.payload.size(), 8);
  put(bytes, entry.key_text);
  put(bytes, facts);
  bytes.insert(bytes.end(), entry.payload.begin(), entry.payload.end());
  const Sha256::Digest digest = sha256(bytes);
  bytes.insert(bytes.end(), digest.begin(), digest.end());
  return bytes;
}

std::optional<StoreEntry> decode(std::span<const std::uint8_t> bytes) {
  if (bytes.size() < kHeaderBytes + kChecksumBytes || bytes.size() > kMaxEntryBytes) return std::nullopt;
  if (std::memcmp(bytes.data(), kMagic.data(), kMagic.size()) != 0) return std::nullopt;
  const auto covered = bytes.first(bytes.size() - kChecksumBytes);
  const Sha256::Digest digest = sha256(covered);
  if (!std::equal(digest.begin(), digest.end(), bytes.last(kChecksumBytes).begin())) return std::nullopt;

  auto rest = covered.subspan(kMagic.size());
  if (take(rest, 4) != kVersion) return std::nullopt;
  const std::uint64_t key_bytes = take(rest, 4), facts_bytes = take(rest, 4), payload_bytes = take(rest, 8);
  // The checksum is no secret, so the lengths may still be anything.
  if (payload_bytes > rest.size() || key_bytes + facts_bytes + payload_bytes != rest.size()) return std::nullopt;
  const auto text = [&](std::uint64_t offset, std::uint64_t length) {
    return std::string_view(reinterpret_cast<const char*>(rest.data()) + offset, length);
  };
  auto facts = parse_facts(text(key_bytes, facts_bytes));
  if (!facts) return std::nullopt;
  const auto payload = rest.last(payload_bytes);
  return StoreEntry{std::string(text(0, key_bytes)), std::move(*facts), {payload.begin(), payload.end()}};
}

}  // namespace flashjit
