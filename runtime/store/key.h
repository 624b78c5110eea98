// The name of a compiled kernel is a digest over everything that decides its bytes.
#pragma once

#include <string>
#include <string_view>

#include "runtime/store/sha256.h"

namespace flashjit {

struct StoreKey {
  std::string digest;  // 64 hex digits
  // The text is for people. It has one line per field, with short values as they are and long ones by their own digest.
  std::string text;
};

// In the digest, fields are labelled and their lengths stand before them, so that no two lists of fields can run into
// the same bytes.
class KeyBuilder {
 public:
  KeyBuilder();
  // `digest` is the SHA-256 of the value in hex, if it is known already.
  void field(std::string_view label, std::string_view value, std::string_view digest = {});
  StoreKey finish();

 private:
  void hash(std::string_view bytes);

  Sha256 digest_;
  std::string text_;
};

}  // namespace flashjit
