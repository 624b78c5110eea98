// These functions show what a tuning measured for a spec, beside what is predicted.
#pragma once

#include <string>
#include <vector>

#include "compiler/plan.h"
#include "runtime/tuned/records.h"
#include "tools/support/output.h"

namespace flashjit {

// A tuning left this record: its measured time stands beside the predicted one of the same schedule.
struct Measured {
  TunedRecord record;
  double predicted_us = 0;  // 0 if it is no schedule of this version
};

std::vector<Measured> measured(const Plan& plan, const std::string& store);
std::string measured_text(const std::vector<Measured>& all);
Json measured_json(const std::vector<Measured>& all);

}  // namespace flashjit
