// The sync family runs cp.async, ldmatrix and mma.sync on every GPU from sm_80 on. templates/sync has its loop.
// sync_narrow is the same loop for GPUs from sm_89 on: it multiplies elements of 8 bits as they are, while sync widens
// them.
#pragma once

#include <array>

#include "compiler/families/family.h"
#include "compiler/program/product.h"
#include "templates/sync/layout.h"

namespace flashjit {

extern const FamilyRow kSync, kSyncNarrow;

// These are in candidates.cpp.
void enumerate_sync(const Problem& problem, const Schedule& pins, std::vector<Schedule>& out);
void enumerate_sync_narrow(const Problem& problem, const Schedule& pins, std::vector<Schedule>& out);
bool refuses_sync(const Problem& problem, const Schedule& schedule, std::string* why);
Registers sync_registers(const Problem& problem, const KernelConfig& config);
// This is in cost.cpp.
Prediction predict_sync(const Problem& problem, const Schedule& schedule, const Shape& shape, const Work& work);
// These are in passes.cpp.
std::span<const Pass> sync_passes();
std::array<Product, 2> sync_products(const KernelConfig& config);

}  // namespace flashjit
