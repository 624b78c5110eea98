// The sync family: cp.async, ldmatrix, mma.sync; every GPU from sm_80 on. templates/sync has its loop.
#pragma once

#include <array>

#include "compiler/families/family.h"
#include "compiler/program/product.h"
#include "templates/sync/layout.h"

namespace flashjit {

extern const FamilyRow kSync;

// candidates.cpp
void enumerate_sync(const Problem& problem, const Schedule& pins, std::vector<Schedule>& out);
bool refuses_sync(const Problem& problem, const Schedule& schedule, std::string* why);
Registers sync_registers(const Problem& problem, const KernelConfig& config);
// cost.cpp
Prediction predict_sync(const Problem& problem, const Schedule& schedule, const Shape& shape, const Work& work);
// passes.cpp
std::span<const Pass> sync_passes();
std::array<Product, 2> sync_products(const KernelConfig& config);

}  // namespace flashjit
