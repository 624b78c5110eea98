// The quantize family: rows of 16-bit elements to elements of 8 bits and scales, rotated if asked. Every GPU.
// templates/quantize has its loop.
//
// As a merge, it is a spec and no function of the APIs beside `prepare` and `run`: so it is stored, bundled, explained
// and captured like any other kernel.
#pragma once

#include "compiler/families/family.h"

namespace flashjit {

extern const FamilyRow kQuantize;

}  // namespace flashjit
