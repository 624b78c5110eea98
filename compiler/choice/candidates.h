// Which schedules exist for a spec on a target, and why the others do not. The default choice and the tuner both start
// here.
#pragma once

#include <string>
#include <vector>

#include "compiler/spec/schedule.h"
#include "compiler/spec/spec.h"
#include "compiler/spec/target.h"
#include "templates/kernel_config.h"

namespace flashjit {

// The part of a KernelConfig that sizes depend on: head dims and schedule. `schedule` must be complete.
KernelConfig sizes_of(const AttentionSpec& spec, const Schedule& schedule);
// Sets which tensors of the score the producer of a hopper kernel copies: `c` has everything else.
void set_inputs(const AttentionSpec& spec, KernelConfig& c);

// Queries that visit the same KV tiles: of a block, or of the blocks of a cluster.
int queries_together(const KernelConfig& sizes);

// What a score that reads a tensor for every key adds to the registers of any loop.
// Does the expression read a tensor at an index that depends on the key? Others are read once for all scores of a row.
bool loads_per_key(const Expr& expr);
int score_registers(const AttentionSpec& spec);
// Registers a thread that computes needs at its peak, estimated; calibrated against ptxas.
int estimated_registers(const AttentionSpec& spec, const KernelConfig& sizes);
// Registers such a thread may have: so that blocks_per_sm blocks fit an SM, or what setmaxnreg gives it.
int register_budget(const Target& target, const KernelConfig& sizes);
// What the estimate leaves of the budget, for a complete schedule.
int spare_registers(const AttentionSpec& spec, const Target& target, const Schedule& schedule);

// Why no schedule of `family` computes the spec on the target, whatever its fields: names the reason and the family
// that does. Empty: some do.
std::string why_not_family(Family family, const AttentionSpec& spec, const Target& target);

// Empty when the schedule is complete and can run; otherwise names the field, its value and the limit.
std::string why_illegal(const AttentionSpec& spec, const Target& target, const Schedule& schedule);
// The same without the words.
bool is_legal(const AttentionSpec& spec, const Target& target, const Schedule& schedule);

// All complete schedules that honour the pins, legal and illegal ones, in a fixed order. Never empty.
std::vector<Schedule> enumerate_schedules(const AttentionSpec& spec, const Target& target, const Schedule& pins);

}  // namespace flashjit
