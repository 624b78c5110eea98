// Facts of a kernel have the same form whether it was compiled, stored, in a bundle or made for the host.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/plan.h"
#include "flashjit/flashjit.hpp"
#include "runtime/store/entry.h"

namespace flashjit {

// This tells where a kernel came from; see Facts.
struct Origin {
  std::string source, layer, miss;
  std::vector<std::string> notes;  // about the way to the kernel
};

// Returns all facts but the time that the kernel took. `said` has the compiler's statements about the kernel, as the
// store and bundles keep them. It is empty for a compiler that makes none.
Facts facts_of(const Plan& plan, std::string_view key, const StoreFacts& said, std::size_t code_bytes, Origin origin);

// Returns an empty text if there is no fact of this name.
std::string fact(const StoreFacts& said, std::string_view name);

}  // namespace flashjit
