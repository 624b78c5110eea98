// The textbook versions: three kernels, one after the other, through memory. For comparisons: pin family=naive, or
// family=naive_backward.
#pragma once

#include "compiler/families/family.h"

namespace flashjit {

extern const FamilyRow kNaive;
extern const FamilyRow kNaiveBackward;

}  // namespace flashjit
