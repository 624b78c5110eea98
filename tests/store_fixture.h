// What tests of the store share: a folder of their own, and keys.
#pragma once

#include "runtime/store/key.h"
#include "runtime/store/entry.h"
#include "tests/temporary_folder.h"

namespace flashjit {

class StoreFolderTest : public testing::Test {
 protected:
  static StoreKey key(std::string_view name = "a") {
    KeyBuilder builder;
    builder.field("name", name);
    return builder.finish();
  }
  static Result<StoreEntry> must_not_make() { return invalid("this should be on disk"); }
  std::string store_path() const { return folder + "/store"; }
  std::string file_of(const StoreKey& key) const {
    return store_path() + "/v1/" + key.digest.substr(0, 2) + "/" + key.digest.substr(2);
  }

  const TemporaryFolder temporary;
  const std::string& folder = temporary.path();
};

}  // namespace flashjit
