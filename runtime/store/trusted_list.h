// A list of trusted files of code is for cases where owners and modes tell too little: shared directories, and bundles
// that came over a network. The list is the output of sha256sum, and has to be brought here in a trusted way.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/result.h"
#include "runtime/store/sha256.h"

namespace flashjit {

class TrustedList {
 public:
  // A line has 64 hexadecimal digits and a name, which is for people. Lines that begin with '#' and empty lines are
  // passed over. The error names a line that is neither, or tells why the list itself is not trusted. An empty path
  // gives null. Errors begin with `setting`, which named the file.
  static Result<std::shared_ptr<const TrustedList>> read(const std::string& path,
                                                         std::string_view setting = "FLASHJIT_TRUSTED_LIST");
  static Result<TrustedList> parse(std::string_view text, std::string_view path);

  const std::string& path() const { return path_; }
  bool has(const Sha256::Digest& file) const;

 private:
  std::string path_;
  std::vector<Sha256::Digest> digests_;  // sorted
};

}  // namespace flashjit
