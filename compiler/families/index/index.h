// The index families: sums of products over the heads of a query, and where the spec asks for it the keys with the largest.
// hopper_index multiplies elements of 8 bits by warpgroups; index is for every GPU and dtype. templates/index has both loops.
#pragma once

#include "compiler/families/family.h"

namespace flashjit {

extern const FamilyRow kHopperIndex, kIndex;

}  // namespace flashjit
