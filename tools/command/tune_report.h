// The report is what a tuning found, as JSON (one object per spec; the report page and the journal hold it too) and as text.
#pragma once

#include <string>
#include <vector>

#include "autotune/search/tune.h"
#include "tools/support/output.h"

namespace flashjit {

Json tuned_json(const TuneOutcome& outcome);
Json example_json();  // of no tuning: the fields and their types
// The object that html_report takes: {"machine": {...}, "command": "flashjit tune ...", "specs": [...]}. Measures the
// roof of a processor.
Json report_json(const Machine& machine, const std::string& date, const std::string& command, std::vector<Json> specs);
// The line of `--json`.
Json tuned_line(const Json& spec, const std::string& target);

std::string tuned_text(const Json& spec);                 // some lines per spec
std::string tuned_table(const std::vector<Json>& specs);  // the end of a run: default, best, gain, regret

}  // namespace flashjit
