// The command is defined once, to the argument parser. These functions say what that definition holds, so that help, completion and the
// manual page follow it by themselves.
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace flashjit {

// Subcommands, and options by their names, in the order in which help shows them.
std::vector<const CLI::App*> subcommands_of(const CLI::App& app);
std::vector<const CLI::Option*> options_of(const CLI::App& app);
std::vector<const CLI::Option*> positionals_of(const CLI::App& app);
// The command itself, then all that is below it.
std::vector<const CLI::App*> commands_of(const CLI::App& root);

std::string path_of(const CLI::App& app);                      // "cache prune"; empty: the command itself
std::vector<std::string> names_of(const CLI::Option& option);  // "-o", "--out"
bool takes_value(const CLI::Option& option);
bool may_be_repeated(const CLI::Option& option);

// The values that an option or a positional argument takes, as far as a shell can complete them.
struct ValueForm {
  enum class Kind { Free, Names, Files, Folders };
  Kind kind = Kind::Free;
  std::vector<std::string> names;  // one that ends in "(" goes on with a number
  std::string ending;              // of files: ".npy"; empty: any
  bool is_list = false;            // names with commas between them
};
ValueForm form_of(const CLI::Option& option);

}  // namespace flashjit
