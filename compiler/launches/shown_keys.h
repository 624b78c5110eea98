// The launch that a mask beside lists of keys or pages (`select=`) adds to a plan. It copies the lists, key by key,
// with -1 in place of keys that the mask hides, so that no loop evaluates the mask.
#pragma once

#include <string>

#include "compiler/plan.h"
#include "templates/kernel_params.h"

namespace flashjit {

struct Shape;

// Adds the launch, and memory for the lists of all queries. The launches of the family then read these lists in place
// of the call's.
void add_shown_keys(Plan& plan);

// Makes a call read the copy, [query, KV head, entry], on GPUs and on hosts.
void read_shown_keys(KernelParams& params, int heads_kv, int selected, int* keys);

// Returns the text of `explain`; empty: there is no such launch.
std::string describe_shown_keys(const Plan& plan);

// Predicts how long the launches behind it wait for it, in microseconds.
double shown_keys_us(const AttentionSpec& spec, const Target& target, const Shape& shape);

}  // namespace flashjit
