// The text of `flashjit bench` where several things were timed: a table with a line for each.
#pragma once

#include <string>
#include <vector>

#include "autotune/measure/measure.h"

namespace flashjit {

struct BenchRow {
  std::string spec, version;
  Timing timing;
  double tflops = 0, tbs = 0, memory_bytes = 0;
  // The time and the memory over those of the row that it is held against.
  double times = 1, memory_times = 1;
  std::vector<std::string> notes;
};

// `base` says what the ratios are over. Versions stand in the table where they differ, and notes below it, each once.
std::string bench_table(const std::vector<BenchRow>& rows, const std::string& base);

}  // namespace flashjit
