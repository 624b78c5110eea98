// The quantize family turns rows of 16-bit elements into elements of 8 bits and scales, rotated if the spec says so, on
// every GPU. templates/quantize has its loop.
//
// A quantize is a spec like a merge, and not a function of the APIs besides `prepare` and `run`. So it is stored,
// bundled, explained and captured like any other kernel.
#pragma once

#include "compiler/families/family.h"

namespace flashjit {

extern const FamilyRow kQuantize;

}  // namespace flashjit
