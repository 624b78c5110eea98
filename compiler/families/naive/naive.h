// The textbook versions are three kernels, one after the other, through memory. They are for comparisons: pin
// family=naive, or family=naive_backward.
#pragma once

#include "compiler/families/family.h"

namespace flashjit {

extern const FamilyRow kNaive;
extern const FamilyRow kNaiveBackward;

}  // namespace flashjit
