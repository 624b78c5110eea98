// This file says which files of code may be used, where owners and modes say too little: shared directories and bundles that
// came over a network. The list is what sha256sum prints, and is brought here in a way that is trusted.
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
  // Lines of 64 hexadecimal digits and a name, which is for people; lines that begin with '#', and empty ones, are
  // passed over. Error: names the line that is neither, or says why the file is not believed itself. Nothing for an
  // empty path. Errors begin with `setting`, which named the file.
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
