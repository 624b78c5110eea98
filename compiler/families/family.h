// A kernel family: one way to compute attention on a class of targets, as a row of functions. Everything outside
// compiler/families and templates/ asks the row and never for a name. How to add one: README.md of the compiler.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/analysis/interval.h"
#include "compiler/program/config.h"
#include "compiler/program/passes.h"
#include "compiler/spec/schedule.h"
#include "compiler/spec/spec.h"
#include "compiler/spec/target.h"

namespace flashjit {

struct Plan;
struct Vocabulary;
struct Prediction;
struct Shape;
struct Work;

// The registers that a thread that computes needs at its peak, estimated, and those that it may have.
struct Registers {
  int needed = 0, budget = 0;
  int spare() const { return budget - needed; }
};

// Facts that the compiler's log has of a kernel.
struct CompilerFindings {
  int spill_bytes = 0;
  std::string_view serialised, setmaxnreg_ignored;  // why matrix products or register limits were lost; empty: were not
  std::string_view refused_for_registers;           // why there is no kernel; empty: there is, or it failed otherwise
};

struct FamilyRow {
  std::string_view name;
  std::string_view summary;                                  // of the file with its entries
  std::string_view loop_file = {};                           // of templates/, where no program is printed; GPUs only
  const Vocabulary* vocabulary = nullptr;                    // that programs are printed with; null: none is
  std::string_view fields;                                   // of its schedules, besides `family`: "tile_q tile_kv ..."
  bool gpu = true;                                           // on which targets: GPUs, or processors
  bool (*computes)(const AttentionSpec& spec) = is_forward;  // the operations that it is for
  bool is_default = true;    // takes part where nothing is pinned; others are for comparisons, where pins ask for them
  bool from_first = false;   // tiles are visited from the first to the last
  Axis axis = Axis::Keys;    // along which its loop visits them
  bool splits_keys = false;  // results have other bits with other warps and blocks_per_sm
  bool reads_latent_rows = false;  // as memory has them: others find wide rows, of a launch before
  bool compiles_quickly = true;    // its kernels may run as the compiler makes them in a hurry
  // `explain` says this where a family before it in the list was not taken: what it does instead, for how much of the
  // target's matrix rate.
  std::string_view second_choice;
  std::string_view instruction;  // of its matrix products, where that is not the usual one of the target's kind

  // Why no schedule computes the spec on the target, of its kind, whatever its fields: the reason, and the family that
  // does. Empty: some do.
  std::string (*why_not)(const AttentionSpec& spec, const Target& target);
  // Appends all complete schedules that honour the pins, legal and illegal ones, in a fixed order.
  void (*enumerate)(const Problem& problem, const Schedule& pins, std::vector<Schedule>& out);
  // Can a complete schedule not run? `why`, if not null, gets the field, its value and the limit.
  bool (*refuses)(const Problem& problem, const Schedule& schedule, std::string* why);
  // Writes the part of the configuration that is its own, what its loop reads of the problem that others do not, and what
  // follows from schedule and problem together.
  void (*configure)(const Problem& problem, const Schedule& schedule, KernelConfig& config);
  // Warpgroups that compute, each of which leaves out tiles that none of its rows sees; null: blocks have none.
  int (*warpgroups)(const KernelConfig& config) = nullptr;
  Registers (*registers)(const Problem& problem, const KernelConfig& config);
  Prediction (*predict)(const Problem& problem, const Schedule& schedule, const Shape& shape, const Work& work);
  // By how much of a time predictions of two schedules may be off beside each other. Where a shape is hinted at, another
  // schedule than the usual one has to be predicted faster by more than that.
  double prediction_error = 0.1;
  // Products of 16-bit operands per clock and SM, on the path that it takes.
  double (*matrix_rate)(const Target& target);
  std::span<const Pass> passes;  // after those that all share (program/passes.cpp)
  // Writes the launches into the plan, and the data that they need.
  void (*finish)(Plan& plan);
  // Why a compiled kernel must not run; empty: it may.
  std::string (*why_rejected)(const CompilerFindings& findings);
  // Attributes of a program that its loop honours (families/pass_common.h).
  std::span<const std::string_view> honoured;
  // The options of a spec that its loops honour, or a launch before them makes plain to them (spec/operations/options.h). A
  // spec that asks for anything else is refused by name: so is a new flag, until somebody lists it here.
  std::span<const std::string_view> options;
  // The choices of a schedule in words, lines for `explain`.
  std::string (*describe)(const KernelConfig& config);
  // The measurements that have decided between choices of a schedule, lines for `explain`; null: none have.
  std::string (*explain_tuned)(const Problem& problem, const Schedule& schedule) = nullptr;
};

// In the order in which they are tried: when the kernels of one turn out bad, the next one's turn comes.
inline constexpr std::size_t kFamilyCount = 14;
std::span<const Family, kFamilyCount> families();
// The one that computes every spec of this operation on targets of this kind.
Family floor_family(bool gpu, Operation operation = Operation::Forward);

}  // namespace flashjit
