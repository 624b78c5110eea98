// The hopper_backward family: gradients of attention for Hopper. templates/hopper_backward has its loops.
#pragma once

#include <vector>

#include "compiler/families/family.h"
#include "compiler/program/product.h"
#include "templates/hopper_backward/layout.h"

namespace flashjit {

extern const FamilyRow kHopperBackward;

std::span<const Pass> hopper_backward_passes();

// The products of the launch that makes dK and dV, and of the launch that makes dQ if there is one.
std::vector<Product> dk_dv_products(const KernelConfig& config);
std::vector<Product> dq_products(const KernelConfig& config);

}  // namespace flashjit
