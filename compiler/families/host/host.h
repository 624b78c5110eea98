// The host family computes on processors, by LLVM (codegen/host).
#pragma once

#include "compiler/families/family.h"

namespace flashjit {

extern const FamilyRow kHost;

}  // namespace flashjit
