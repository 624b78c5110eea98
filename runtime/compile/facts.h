// Facts of a kernel, whether it was compiled, stored, in a bundle or made for the host.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/plan.h"
#include "flashjit/flashjit.hpp"
#include "runtime/store/entry.h"

namespace flashjit {

// Where a kernel came from: see Facts.
struct Origin {
  std::string source, layer, miss;
  std::vector<std::string> notes;  // about the way
};

// All but the time it took. `said`: what the compiler said of the kernel, as the store and bundles keep it; empty for a
// compiler that says nothing.
Facts facts_of(const Plan& plan, std::string_view key, const StoreFacts& said, std::size_t code_bytes, Origin origin);

// Empty: there is none of this name.
std::string fact(const StoreFacts& said, std::string_view name);

}  // namespace flashjit
