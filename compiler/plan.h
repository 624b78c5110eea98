// Plan: no choice is left. The emitters consume it, and `explain` prints it.
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
  double predicted_us = 0;  // on the cost model's assumed shape
  double rank = 1;          // product of the predicted times of all shapes that count
  bool legal = true;        // if not, why_illegal() of candidates.h says why
};

using Candidates = std::vector<Candidate>;

struct Plan {
  AttentionSpec spec;
  Target target;
  Schedule schedule;                       // complete
  KernelConfig config;                     // GPU families
  std::vector<KernelLaunch> before;        // all others, one after the other: new rows of K and V (launches/append.h),
                                           // 8 bits as those read them, states of blocks, lists of tiles, lists of
                                           // keys that a mask shows, or a family's own
  std::vector<KernelLaunch> launches;      // in this order; none on a host
  std::vector<WorkspaceBuffer> workspace;  // what they pass on
  int rotated_q = -1;                      // of these the one that `launches` find Q in; none: Q is as given
  int value_rows = -1;                     // the one that they find rows of V in; none: V is as given
  int wide_rows = -1;                      // the one that they find rows of K in; none: K is as given
  int shown_keys = -1;                     // the one that they find lists of keys in; none: these are as given
  int merged_lists = -1;                   // the one that they find lists of pages in; none: these are as given
  int block_states = -1;                   // the one that has the states of blocks, the last parameter of `spec`
  int tile_lists = -1;                     // the one that has lists of tiles; none: tiles are those of ranges
  bool reads_columns = false;              // `launches` read V^T as v_transposed has it, and need no rows
  std::int64_t key_reach = 0;              // bytes of K that `launches` reach from its begin; 0: all
  std::vector<OperandMap> maps;            // of what TMA copies, for the launches that take tensor maps
  std::vector<InputMap> input_maps;        // of what TMA copies of the tensors of the score
  HeadGroupRule head_groups;               // how many heads are worked on together
  TileAnalysis tiles;                      // of spec.mask
  TileAnalysis query_tiles;                // of backward: of spec.mask along the queries, for tiles of keys
  bool linear_weights = false;             // weights of 8 bits are interpolated between powers of two
  bool wide_ints = false;                  // some int of mask or score may leave 32 bits
  std::vector<std::string> notes;          // what is slower than it could be, and why; and last,
  std::string why_family;                  // where there is a faster family: why not that
  std::shared_ptr<const Candidates> candidates;  // best first, then the illegal ones; shared, as plans are copied
  Program program;                               // after the last pass

  // Threads, and bytes, of a block of the launch that has the most; 0 on a host.
  int threads() const;
  int smem_bytes() const;
  std::vector<std::string> all_notes() const;
};

// Does a kernel of the spec of `plan` need memory from its caller with this schedule, which is legal there?
bool needs_workspace(const Plan& plan, const Schedule& schedule);

// Called with the name of a pass and the dump of the program after it.
using DumpSink = std::function<void(std::string_view pass, const std::string& dump)>;

// A plan whose program nobody has looked at, which takes longer than to make it: enough for who asks whether the code is
// already there. Whoever watches the passes by `dump` has the program verified after each.
Result<Plan> draft_plan(const AttentionSpec& spec, const Target& target, const Schedule& pins = {},
                        const DumpSink& dump = {});
// Before code is made of it. Error: names the pass at fault.
Result<void> verify_plan(const Plan& plan);

// The whole compiler: spec -> program -> passes -> plan, verified.
Result<Plan> make_plan(const AttentionSpec& spec, const Target& target, const Schedule& pins = {},
                       const DumpSink& dump = {});

}  // namespace flashjit
