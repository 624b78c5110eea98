// The command is defined once, for the argument parser. These functions read that definition, so that help, completion
// and the manual page follow it by themselves.
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

namespace flashjit {

// These are subcommands, and options by their names, in the order in which help shows them.
std::vector<const CLI::App*> subcommands_of(const CLI::App& app);
std::vector<const CLI::Option*> options_of(const CLI::App& app);
std::vector<const CLI::Option*> positionals_of(const CLI::App& app);
// Returns the command itself, then everything below it.
std::vector<const CLI::App*> commands_of(const CLI::App& root);

std::string path_of(const CLI::App& app);  // Returns for example "cache prune", and nothing for the command itself.
std::vector<std::string> names_of(const CLI::Option& option);  // Returns for example "-o" and "--out".
bool takes_value(const CLI::Option& option);
bool may_be_repeated(const CLI::Option& option);

// These are the values that an option or a positional argument takes, as far as a shell can complete them.
struct ValueForm {
  enum class Kind { Free, Names, Files, Folders };
  Kind kind = Kind::Free;
  std::vector<std::string> names;  // A name that ends in "(" goes on with a number.
  std::string ending;              // ending of files, for example ".npy"; empty for any
  bool is_list = false;            // Values are names with commas between them.
};
ValueForm form_of(const CLI::Option& option);

}  // namespace flashjit
