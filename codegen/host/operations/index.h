// Scores of keys on a processor, and the keys with the largest: products of a head are those of the textbook version of
// attention, with max(s, 0) for a score, and what is left is added up by ordinary loops.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "codegen/host/backend.h"
#include "compiler/plan.h"

namespace flashjit::host {

// The plan whose textbook scores those of an index are made of.
Plan plan_of_heads(const Plan& plan);

// `object`: what these were compiled to.
Result<std::unique_ptr<HostKernel>> index_kernel(const Plan& plan, std::span<const std::uint8_t> object);

}  // namespace flashjit::host
