// Scores keys on a processor, and finds the keys with the largest scores. The textbook version of attention makes the
// products of a head, with max(s, 0) for a score, and ordinary loops add up the rest.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "codegen/host/backend.h"
#include "compiler/plan.h"

namespace flashjit::host {

// Returns the plan whose textbook scores make up the scores of an index.
Plan plan_of_heads(const Plan& plan);

// `object` is the compiled form of this plan.
Result<std::unique_ptr<HostKernel>> index_kernel(const Plan& plan, std::span<const std::uint8_t> object);

}  // namespace flashjit::host
