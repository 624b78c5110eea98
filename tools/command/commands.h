// Each of these functions adds the options of a subcommand to `app`. When that subcommand is called, its callback
// stores the exit code.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

namespace flashjit {

void add_compile(CLI::App& app, int& exit_code);
// `command` is the line as it was typed, which a page or a report shows.
void add_explain(CLI::App& app, const std::string& command, int& exit_code);
void add_run(CLI::App& app, int& exit_code);
void add_bench(CLI::App& app, int& exit_code);
void add_tune(CLI::App& app, const std::string& command, int& exit_code);
void add_doctor(CLI::App& app, int& exit_code);
void add_cache(CLI::App& app, int& exit_code);
void add_build(CLI::App& app, int& exit_code);
void add_bundle(CLI::App& app, int& exit_code);
void add_completion(CLI::App& app, int& exit_code);
void add_man(CLI::App& app, int& exit_code);

}  // namespace flashjit
