// The textbook version of attention on the same device: scores, softmax and product as three steps through memory. For
// comparisons only: run() allocates the memory of S and P when a problem is larger than those before it, and locks.
#pragma once

#include <memory>
#include <string_view>

#include "flashjit/flashjit.hpp"

namespace flashjit {

// `engine` must come from Engine::create.
Result<std::shared_ptr<Kernel>> prepare_naive(Engine& engine, std::string_view spec);

}  // namespace flashjit
