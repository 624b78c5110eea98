// The merge family: what attention gave for parts of the keys, put together. Every GPU. templates/merge has its loop.
//
// A merge is a spec, and no function of the APIs beside `prepare` and `run`: so it is stored, bundled, explained and
// captured like any other kernel, and its tensors are rows of the one table of operands.
#pragma once

#include "compiler/families/family.h"

namespace flashjit {

extern const FamilyRow kMerge;

}  // namespace flashjit
