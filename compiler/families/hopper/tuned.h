// Choices that no limit of a resource makes. Measurements decide them, row by row of a table.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "compiler/program/config.h"
#include "compiler/spec/schedule.h"

namespace flashjit {

// Returns whether rows begin behind the first key, as rows of a window do, and so see few keys.
bool begins_late(const Problem& problem);

// The case that a row of a table judges: a schedule whose other fields are set.
struct TunedCase {
  const Problem& problem;
  const Schedule& schedule;
  bool narrow, inputs, apart;  // Operands have 8 bits; the score reads tiles; ones are a product by themselves.

  TunedCase(const Problem& problem, const Schedule& schedule);
};

struct TunedRow {
  std::string_view when;
  bool (*holds)(const TunedCase& of);
  bool pays;
  // The speed with the choice over that without it, at 4k to 16k keys, or what stands against the choice.
  std::string_view speed;
  std::string_view measured;  // The device, the specs and the time of the measurement.
};

// These return the rows that decide whether ones beside V sum up weights (row_sum=matrix), and whether warpgroups take
// turns (exclusive=issue): the first row of each table that holds.
const TunedRow& find_ones_row(const Problem& problem, const Schedule& schedule);
const TunedRow& find_turns_row(const Problem& problem, const Schedule& schedule);

// Returns lines for `explain` of a complete schedule: each choice, and the row that has made it.
std::string explain_tuned(const Problem& problem, const Schedule& schedule);

}  // namespace flashjit
