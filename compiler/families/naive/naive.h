// The textbook version: three kernels, one after the other, through memory. For comparisons: pin family=naive.
#pragma once

#include "compiler/families/family.h"

namespace flashjit {

extern const FamilyRow kNaive;

}  // namespace flashjit
