// The sync_backward family computes gradients of attention on every GPU from sm_80 on. templates/backward has its loop,
// which runs twice: for dK and dV, and for dQ.
#pragma once

#include "compiler/families/family.h"

namespace flashjit {

extern const FamilyRow kSyncBackward;

}  // namespace flashjit
