// The launch that merges the lists of pages which a few queries of a sequence have chosen (`select=pages(N)` beside a short
// q_len, as drafts have). The loop then takes these queries for one sequence, and reads a page once for all of them.
#pragma once

#include <string>

#include "compiler/plan.h"
#include "templates/kernel_params.h"

namespace flashjit {

// Adds the launch, and memory for the lists of all sequences. The launches of the family then read these lists.
void add_merged_lists(Plan& plan);

// Has a call read the merged lists.
void read_merged_lists(KernelParams& params, const KernelConfig& config, int* lists);

// Returns what `explain` says of the launch: nothing where there is none.
std::string describe_merged_lists(const Plan& plan);

// Predicts how long the launches behind it wait for it, in microseconds.
double merged_lists_us(const KernelConfig& config);

}  // namespace flashjit
