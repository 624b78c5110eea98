// The launch that merges the lists of pages which a few queries of a sequence have chosen (`select=pages(N)` beside a
// short q_len, as for drafts). The loop then treats these queries as one sequence, and reads a page once for all of
// them.
#pragma once

#include <string>

#include "compiler/plan.h"
#include "templates/kernel_params.h"

namespace flashjit {

// Adds the launch, and memory for the lists of all sequences. The launches of the family then read these lists.
void add_merged_lists(Plan& plan);

// Makes a call read the merged lists.
void read_merged_lists(KernelParams& params, const KernelConfig& config, int* lists);

// Returns the text of `explain`; empty: there is no such launch.
std::string describe_merged_lists(const Plan& plan);

// Predicts how long the launches behind it wait for it, in microseconds.
double merged_lists_us(const KernelConfig& config);

}  // namespace flashjit
