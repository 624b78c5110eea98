// A kernel family is one way to compute attention on a class of targets, as a row of functions. Everything outside
// compiler/families and templates/ asks the row and never for a name. The README of the compiler tells how to add one.
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

// The estimated registers that a computing thread needs at its peak, and those that it may have.
struct Registers {
  int needed = 0, budget = 0;
  int spare() const { return budget - needed; }
};

// Facts about a kernel from the compiler's log.
struct CompilerFindings {
  int spill_bytes = 0;
  // The reasons why matrix products or register limits were lost; empty: they were not.
  std::string_view serialised, setmaxnreg_ignored;
  // The reason why there is no kernel; empty: there is one, or it failed otherwise.
  std::string_view refused_for_registers;
};

struct FamilyRow {
  std::string_view name;
  std::string_view summary;  // It stands in the file with the family's entries.
  // The file in templates/ that has the loop, for GPU families without a printed program.
  std::string_view loop_file = {};
  const Vocabulary* vocabulary = nullptr;  // Programs are printed with it; null: there are none.
  std::string_view fields;                 // The fields of its schedules besides `family`, as "tile_q tile_kv ...".
  bool gpu = true;                         // Its targets are GPUs, or processors.
  bool (*computes)(const AttentionSpec& spec) = is_forward;  // The operations that it computes.
  // It takes part where nothing is pinned. Other families are for comparisons, and must be pinned.
  bool is_default = true;
  bool from_first = false;   // Tiles are visited from the first to the last.
  Axis axis = Axis::Keys;    // The axis along which its loop visits tiles.
  bool splits_keys = false;  // Results differ in their bits with other warps and blocks_per_sm.
  // It reads latent rows from memory. For other families a launch before widens the rows.
  bool reads_latent_rows = false;
  bool compiles_quickly = true;  // Its kernels may run with the code that the compiler makes in a hurry.
  // `explain` prints it if a family before this one in the list was not taken. It tells what this family does instead,
  // and which part of the target's matrix rate it reaches.
  std::string_view second_choice;
  // The instruction of its matrix products, if it is not the usual one of the target's kind.
  std::string_view instruction;

  // Returns the reason why no schedule computes the spec on the target, which is of the family's kind, whatever its
  // fields, and names a family that does. Empty: some schedules do.
  std::string (*why_not)(const AttentionSpec& spec, const Target& target);
  // Appends all complete schedules that honour the pins, legal and illegal ones, in a fixed order.
  void (*enumerate)(const Problem& problem, const Schedule& pins, std::vector<Schedule>& out);
  // Returns true if a complete schedule cannot run. `why`, if not null, gets the field, its value and the limit.
  bool (*refuses)(const Problem& problem, const Schedule& schedule, std::string* why);
  // Writes the family's own part of the configuration, the facts of the problem that only its loop reads, and all that
  // follows from schedule and problem together.
  void (*configure)(const Problem& problem, const Schedule& schedule, KernelConfig& config);
  // Returns the number of computing warpgroups, each of which leaves out tiles that none of its rows sees; null: blocks
  // have none.
  int (*warpgroups)(const KernelConfig& config) = nullptr;
  Registers (*registers)(const Problem& problem, const KernelConfig& config);
  Prediction (*predict)(const Problem& problem, const Schedule& schedule, const Shape& shape, const Work& work);
  // The share of a time by which the predictions of two schedules may be off beside each other. Where a shape is hinted
  // at, a schedule other than the usual one must be predicted faster by more than that.
  double prediction_error = 0.1;
  // Returns the rate of products of 16-bit operands, for each clock and SM, on the path that the family takes.
  double (*matrix_rate)(const Target& target);
  std::span<const Pass> passes;  // They follow the passes that all families share (program/passes.cpp).
  // Writes the launches into the plan, and the data that they need.
  void (*finish)(Plan& plan);
  // Returns the reason why a compiled kernel must not run; empty: it may.
  std::string (*why_rejected)(const CompilerFindings& findings);
  // The attributes of a program that its loop honours (families/pass_common.h).
  std::span<const std::string_view> honoured;
  // The options of a spec that its loops honour, or that a launch before them resolves (spec/operations/options.h). A
  // spec that asks for anything else is refused by name, so a new flag is refused until it is listed here.
  std::span<const std::string_view> options;
  // Returns the lines of `explain` that put the choices of a schedule into words.
  std::string (*describe)(const KernelConfig& config);
  // Returns the lines of `explain` about the measurements that decided between choices of a schedule; null: there are
  // none.
  std::string (*explain_tuned)(const Problem& problem, const Schedule& schedule) = nullptr;
};

// The families in the order in which they are tried. If the kernels of one turn out bad, the next one is tried.
inline constexpr std::size_t kFamilyCount = 14;
std::span<const Family, kFamilyCount> families();
// Returns the family that computes every spec of this operation on targets of this kind.
Family floor_family(bool gpu, Operation operation = Operation::Forward);

}  // namespace flashjit
