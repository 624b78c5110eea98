// Entries of the kernel store: the input as a file, as a file whose checksum was put right, and as the parts of one
// whose lengths are right too. Whatever is accepted is what encode() writes.
#include "runtime/store/entry.h"

#include <algorithm>

#include "runtime/store/sha256.h"
#include "tests/fuzz/fuzz.h"

using namespace flashjit;
using fuzz::require;

namespace {

using Bytes = std::vector<std::uint8_t>;

void check(const Bytes& file) {
  const auto entry = decode(file);
  if (!entry) return;
  const auto digest = sha256(std::span(file).first(file.size() - 32));
  require(std::equal(digest.begin(), digest.end(), file.end() - 32), "an accepted entry has its checksum",
          entry->key_text);
  require(encode(*entry) == file, "an accepted entry is what encode writes", entry->key_text);
}

Bytes sealed(Bytes file) {
  const auto digest = sha256(file);
  file.insert(file.end(), digest.begin(), digest.end());
  return file;
}

// The first two bytes are the lengths of key and facts.
Bytes from_parts(std::span<const std::uint8_t> input) {
  if (input.size() < 2) return {};
  const auto parts = input.subspan(2);
  const std::size_t key = std::min<std::size_t>(input[0], parts.size()),
                    facts = std::min<std::size_t>(input[1], parts.size() - key);
  const std::string_view magic = "FLASHJIT";
  Bytes file(magic.begin(), magic.end());
  const auto put = [&](std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) file.push_back(static_cast<std::uint8_t>(value >> (8 * i)));
  };
  put(1, 4);
  put(key, 4);
  put(facts, 4);
  put(parts.size() - key - facts, 8);
  file.insert(file.end(), parts.begin(), parts.end());
  return file;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const Bytes input(data, data + size);
  check(input);
  check(sealed(input));
  check(sealed(from_parts(input)));
  return 0;
}
