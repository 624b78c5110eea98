// Choices that no limit of a resource makes: what was measured decides them, row by row of a table.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "compiler/program/config.h"
#include "compiler/spec/schedule.h"

namespace flashjit {

// Do rows begin behind the first key, as those of a window? Then they see few.
bool begins_late(const Problem& problem);

// The case that rows are asked about: a schedule whose other fields are set.
struct TunedCase {
  const Problem& problem;
  const Schedule& schedule;
  bool narrow, inputs, apart;  // operands of 8 bits; the score reads tiles; ones are a product by themselves

  TunedCase(const Problem& problem, const Schedule& schedule);
};

struct TunedRow {
  std::string_view when;
  bool (*holds)(const TunedCase& of);
  bool pays;
  std::string_view speed;     // of the choice, over that without it, at 4k to 16k keys; or what stands against it
  std::string_view measured;  // on what, when
};

// The rows that say whether ones beside V sum up weights (row_sum=matrix), and whether warpgroups take turns
// (exclusive=issue): of each table the first that holds.
const TunedRow& find_ones_row(const Problem& problem, const Schedule& schedule);
const TunedRow& find_turns_row(const Problem& problem, const Schedule& schedule);

// Lines for `explain` of a complete schedule: each choice, and the row that has made it.
std::string explain_tuned(const Problem& problem, const Schedule& schedule);

}  // namespace flashjit
