// `flashjit bench` prints a table with a line for each thing that was timed, if there are several.
#pragma once

#include <string>
#include <vector>

#include "autotune/measure/measure.h"

namespace flashjit {

struct BenchRow {
  std::string spec, version;
  Timing timing;
  double tflops = 0, tbs = 0, memory_bytes = 0;
  // These are ratios of the time and the memory to those of the row that this one is held against.
  double times = 1, memory_times = 1;
  std::vector<std::string> notes;
};

// `base` names what the ratios are over. Versions stand in the table if they differ, and notes below it, each once.
std::string bench_table(const std::vector<BenchRow>& rows, const std::string& base);

}  // namespace flashjit
