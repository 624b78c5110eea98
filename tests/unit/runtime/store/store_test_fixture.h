// What the tests of a whole store share.
#pragma once

#include <filesystem>
#include <initializer_list>

#include "runtime/store/store.h"
#include "tests/store_fixture.h"

namespace flashjit {

class StoreTest : public StoreFolderTest {
 protected:
  static StoreEntry kernel(std::uint8_t fill = 7) {
    return {.key_text = "",
            .facts = {{"registers", "128"}, {"log", "two\nlines \\ and a backslash"}},
            .payload = std::vector<std::uint8_t>(5000, fill)};
  }
  static Result<StoreEntry> make() { return kernel(); }
  StoreOptions options() const { return {.directory = store_path()}; }

  void store_all(std::initializer_list<const char*> names, const StoreOptions& how) const {
    KernelStore store(how);
    for (const char* name : names) ASSERT_TRUE(store.fetch(key(name), make));
  }
  // The names among `names` that are on disk.
  std::string kept(std::initializer_list<const char*> names) const {
    std::string left;
    for (const char* name : names) left += std::filesystem::exists(file_of(key(name))) ? name : "";
    return left;
  }
};

}  // namespace flashjit
