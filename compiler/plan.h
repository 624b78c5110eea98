// A Plan leaves no choice open. The emitters turn it into code, and `explain` prints it.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/analysis/interval.h"
#include "compiler/launch.h"
#include "compiler/program/ir.h"
#include "compiler/result.h"
#include "compiler/spec/schedule.h"
#include "compiler/spec/spec.h"
#include "compiler/spec/target.h"
#include "compiler/tensor_maps.h"
#include "templates/kernel_config.h"

namespace flashjit {

// One schedule that was considered.
struct Candidate {
  Schedule schedule;
  double predicted_us = 0;  // The predicted time on the cost model's assumed shape.
  double rank = 1;          // The product of the predicted times of all shapes that count.
  bool legal = true;        // If it is false, why_illegal() of candidates.h gives the reason.
};

using Candidates = std::vector<Candidate>;

struct Plan {
  AttentionSpec spec;
  Target target;
  Schedule schedule;    // Every field of the family is set.
  KernelConfig config;  // Only GPU families fill it.
  // Launches before those of the family, one after the other: they write new rows of K and V (launches/append.h),
  // convert 8 bits to what the loop reads, find states of blocks, lists of tiles and lists of keys that a mask shows,
  // or are the family's own.
  std::vector<KernelLaunch> before;
  std::vector<KernelLaunch> launches;  // The family's launches, in this order. A host plan has none.
  // The buffers that launches pass on. The next seven fields are numbers of buffers; negative: there is none.
  std::vector<WorkspaceBuffer> workspace;
  int rotated_q = -1;                // `launches` find Q in this buffer. Without it Q is as the call gives it.
  int value_rows = -1;               // `launches` find rows of V in this buffer. Without it V is as given.
  int wide_rows = -1;                // `launches` find rows of K in this buffer. Without it K is as given.
  int shown_keys = -1;               // `launches` find lists of keys in this buffer. Without it lists are as given.
  int merged_lists = -1;             // `launches` find lists of pages in this buffer. Without it lists are as given.
  int block_states = -1;             // This buffer has the states of blocks, which are the last parameter of `spec`.
  int tile_lists = -1;               // This buffer has lists of tiles. Without it the tiles are those of ranges.
  bool reads_columns = false;        // `launches` read V^T as v_transposed has it, and need no rows.
  std::int64_t key_reach = 0;        // `launches` reach this many bytes from the beginning of K; 0: all.
  std::vector<OperandMap> maps;      // The operands that TMA copies, for launches that take tensor maps.
  std::vector<InputMap> input_maps;  // The tensors of the score that TMA copies.
  HeadGroupRule head_groups;         // It decides how many heads are worked on together.
  TileAnalysis tiles;                // The tiles of spec.mask along the keys.
  TileAnalysis query_tiles;          // backward: the tiles of spec.mask along the queries, for tiles of keys.
  bool linear_weights = false;       // Weights of 8 bits are interpolated between powers of two.
  bool wide_ints = false;            // Some integer of mask or score may leave 32 bits.
  std::vector<std::string> notes;    // Each says what is slower than it could be, and why.
  // If the target has a faster family, the reason why the plan is not of that one. It is printed behind the notes.
  std::string why_family;
  // The best is first, and illegal ones are last. Plans share them, because plans are copied.
  std::shared_ptr<const Candidates> candidates;
  Program program;  // The program after the last pass.

  // The most threads, and bytes, that a block of any launch has; 0 on a host.
  int threads() const;
  int smem_bytes() const;
  std::vector<std::string> all_notes() const;
};

// Returns true if `schedule`, which must be legal for the spec of `plan`, needs memory from the caller.
bool needs_workspace(const Plan& plan, const Schedule& schedule);

// A sink is called with the name of a pass and the dump of the program after it.
using DumpSink = std::function<void(std::string_view pass, const std::string& dump)>;

// Makes a plan without verifying its program, because that takes longer than making it. This is enough to find out
// whether the code is already in a store. With `dump` the program is verified after each pass.
Result<Plan> draft_plan(const AttentionSpec& spec, const Target& target, const Schedule& pins = {},
                        const DumpSink& dump = {});
// Verifies a plan before code is made of it. The error names the pass at fault.
Result<void> verify_plan(const Plan& plan);

// Runs the whole compiler, from a spec over program and passes to a verified plan.
Result<Plan> make_plan(const AttentionSpec& spec, const Target& target, const Schedule& pins = {},
                       const DumpSink& dump = {});

}  // namespace flashjit
