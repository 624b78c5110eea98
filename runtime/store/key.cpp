#include "runtime/store/key.h"

#include <fmt/format.h>

namespace flashjit {
namespace {

// It has to be raised when the meaning of a key, of the facts or of the payload changes.
constexpr std::string_view kSchema = "2";
constexpr std::size_t kShown = 200;

}  // namespace

KeyBuilder::KeyBuilder() { field("schema", kSchema); }

void KeyBuilder::hash(std::string_view bytes) {
  std::uint8_t length[8];
  for (int i = 0; i < 8; ++i) length[i] = static_cast<std::uint8_t>(std::uint64_t{bytes.size()} >> (8 * i));
  digest_.update(length, sizeof length);
  digest_.update(bytes);
}

void KeyBuilder::field(std::string_view label, std::string_view value, std::string_view digest) {
  // Long values enter as their digest, which the text needs anyway, because most of the time of a key goes into reading
  // them. The mark tells a digest from a short value that looks like one.
  const bool shown = value.size() <= kShown && value.find('\n') == std::string_view::npos;
  const auto shortened = [&] {
    return fmt::format("sha256 {} ({} bytes)", digest.empty() ? sha256_hex(value) : digest, value.size());
  };
  const std::string text = shown ? std::string(value) : shortened();
  hash(label);
  hash(shown ? "value" : "digest");
  hash(text);
  text_ += fmt::format("{}: {}\n", label, text);
}

StoreKey KeyBuilder::finish() { return {hex(digest_.finish()), std::move(text_)}; }

}  // namespace flashjit
