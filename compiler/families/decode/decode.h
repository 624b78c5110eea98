// The decode family: few queries over many keys, split along the keys; mma.sync, every GPU from sm_80 on.
// templates/decode has its loop.
#pragma once

#include <array>

#include "compiler/families/family.h"
#include "compiler/launch.h"
#include "compiler/program/product.h"
#include "templates/decode/layout.h"

namespace flashjit {

extern const FamilyRow kDecode;

// A load takes this time. Memory is busy while as many bytes are being loaded as it reads in that time.
constexpr double kLoadUs = 1.3;

// decode.cpp
GridRule decode_grid(const KernelConfig& config, const Target& target);  // The grid of the first launch.
// candidates.cpp
std::string why_not_decode(const AttentionSpec& spec, const Target& target);
void enumerate_decode(const Problem& problem, const Schedule& pins, std::vector<Schedule>& out);
bool refuses_decode(const Problem& problem, const Schedule& schedule, std::string* why);
Registers decode_registers(const Problem& problem, const KernelConfig& config);
// cost.cpp
Prediction predict_decode(const Problem& problem, const Schedule& schedule, const Shape& shape, const Work& work);
// passes.cpp
std::span<const Pass> decode_passes();
std::array<Product, 2> decode_products(const KernelConfig& config);

}  // namespace flashjit
