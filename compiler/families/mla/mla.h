// The mla family: latent attention, where V is the first columns of K, 256 or 512, split along the keys; WGMMA and TMA,
// sm_90a. Its loop is printed, and calls templates/mla.
#pragma once

#include <vector>

#include "compiler/families/family.h"
#include "compiler/program/product.h"
#include "templates/mla/layout.h"

namespace flashjit {

extern const FamilyRow kMla;

// candidates.cpp
std::string why_not_mla(const AttentionSpec& spec, const Target& target);
void enumerate_mla(const Problem& problem, const Schedule& pins, std::vector<Schedule>& out);
bool refuses_mla(const Problem& problem, const Schedule& schedule, std::string* why);
Registers mla_registers(const Problem& problem, const KernelConfig& config);
// cost.cpp
Prediction predict_mla(const Problem& problem, const Schedule& schedule, const Shape& shape, const Work& work);
// passes.cpp
std::span<const Pass> mla_passes();
std::vector<Product> mla_products(const KernelConfig& config);

}  // namespace flashjit
