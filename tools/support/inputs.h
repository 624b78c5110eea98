// `run` and `bench` share these options: shape, device, inputs.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <CLI/CLI.hpp>

#include "autotune/measure/problem.h"
#include "compiler/result.h"

namespace flashjit {

struct InputArgs {
  std::string shape, target = "auto", schedule, override_dir, data = "normal";
  int device = 0;
  std::int64_t sms = 0;
  std::uint64_t seed = 1;
  std::map<std::string, std::string> files;  // files of operands, by name
  std::vector<std::string> params;           // NAME=FILE.npy or NAME=NUMBER
  std::vector<std::string> bundles;
  std::string record;
  bool no_hint = false, line_info = false;
  EngineOptions engine() const {
    return {.ordinal = device, .bundles = bundles, .record = record, .override_dir = override_dir};
  }
  // Returns the hint for `prepare`. A manifest cannot hold it, and a recorded kernel has to be the one that `build`
  // makes.
  std::string hint(const ProblemShape& of) const { return no_hint || !record.empty() ? std::string() : hint_of(of); }
};

// Returns the option that names the file of a tensor. A tensor that is no operand is a parameter.
std::string option_of(std::string_view tensor);
void add_line_info_option(CLI::App& app, bool& line_info);
void add_input_options(CLI::App& app, InputArgs& args, bool files);
Result<InputFiles> input_files(const InputArgs& args);

}  // namespace flashjit
