// Masks beside lists of keys: what they say is written here a second time, in C++.
#pragma once

#include <functional>
#include <map>
#include <string>

#include "compiler/spec/spec.h"
#include "tests/random/case.h"

namespace flashjit::testing_random {

struct ListMask {
  std::string text;
  std::function<bool(const reference::Position&)> visible;  // empty: everything
  std::map<std::string, CaseTensor> tensors;                // that it reads
};

// Draws a mask for lists of the keys of a sequence, or none; `spec` gets the parameters that it reads.
ListMask draw_list_mask(const Case& c, AttentionSpec& spec);

}  // namespace flashjit::testing_random
