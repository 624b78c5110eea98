// The report has the results of a tuning, as JSON (one object per spec; the report page and the journal hold it, too)
// and as text.
#pragma once

#include <string>
#include <vector>

#include "autotune/search/tune.h"
#include "tools/support/output.h"

namespace flashjit {

Json tuned_json(const TuneOutcome& outcome);
// Returns the fields and their types, without a tuning.
Json example_json();
// Returns the object that html_report takes: {"machine": {...}, "command": "flashjit tune ...", "specs": [...]}. It
// measures the roof of a processor.
Json report_json(const Machine& machine, const std::string& date, const std::string& command, std::vector<Json> specs);
// Returns the line of `--json`.
Json tuned_line(const Json& spec, const std::string& target);

std::string tuned_text(const Json& spec);  // Returns some lines per spec.
// Returns the end of a run's output: default, best, gain, regret.
std::string tuned_table(const std::vector<Json>& specs);

}  // namespace flashjit
