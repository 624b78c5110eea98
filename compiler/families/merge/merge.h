// The merge family puts together what attention gave for parts of the keys, on every GPU. templates/merge has its loop.
//
// A merge is a spec, and not a function of the APIs besides `prepare` and `run`. So it is stored, bundled, explained
// and captured like any other kernel, and its tensors are rows of the one table of operands.
#pragma once

#include "compiler/families/family.h"

namespace flashjit {

extern const FamilyRow kMerge;

}  // namespace flashjit
