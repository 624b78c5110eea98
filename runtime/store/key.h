// The name of a compiled kernel: a digest over everything that decides its bytes.
#pragma once

#include <string>
#include <string_view>

#include "runtime/store/sha256.h"

namespace flashjit {

struct StoreKey {
  std::string digest;  // 64 hex digits
  std::string text;    // one line per field, for people: short values as they are, long ones by their own digest
};

// Fields are labelled and length-prefixed in the digest, so that no two lists of fields can run into the same bytes.
class KeyBuilder {
 public:
  KeyBuilder();
  // `digest`: SHA-256 of the value in hex, where that is known already.
  void field(std::string_view label, std::string_view value, std::string_view digest = {});
  StoreKey finish();

 private:
  void hash(std::string_view bytes);

  Sha256 digest_;
  std::string text_;
};

}  // namespace flashjit
