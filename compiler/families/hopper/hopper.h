// The hopper family: TMA, WGMMA, warp specialisation; sm_90a. templates/hopper has its loop.
#pragma once

#include <array>

#include "compiler/families/family.h"
#include "compiler/launch.h"
#include "compiler/program/product.h"
#include "templates/hopper/layout.h"

namespace flashjit {

extern const FamilyRow kHopper;

GridRule query_tiles(const KernelConfig& config);  // The grid of the items of its launch.
// candidates.cpp
void enumerate_hopper(const Problem& problem, const Schedule& pins, std::vector<Schedule>& out);
bool refuses_hopper(const Problem& problem, const Schedule& schedule, std::string* why);
Registers hopper_registers(const Problem& problem, const KernelConfig& config);
// cost.cpp
Prediction predict_hopper(const Problem& problem, const Schedule& schedule, const Shape& shape, const Work& work);
// passes.cpp
std::span<const Pass> hopper_passes();
std::array<Product, 2> hopper_products(const KernelConfig& config);

}  // namespace flashjit
