// The index families sum products over the heads of a query and, if the spec asks for it, list the keys with the
// largest sums. hopper_index multiplies elements of 8 bits by warpgroups, and index serves every GPU and dtype.
// templates/index has both loops.
#pragma once

#include "compiler/families/family.h"

namespace flashjit {

extern const FamilyRow kHopperIndex, kIndex;

}  // namespace flashjit
