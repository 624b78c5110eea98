#include <fmt/format.h>
#include <fmt/ranges.h>

#include "flashjit/flashjit.hpp"
#include "tools/manual/definitions.h"
#include "tools/manual/pages.h"

namespace flashjit {
namespace {

constexpr char kFishEngine[] = R"(
# The subcommand that was typed so far, as far as there is one.
function __flashjit_path
    set -l path ''
    for word in (commandline -opc)[2..]
        set -l longer (string trim -- "$path $word")
        contains -- $longer $__flashjit_paths; and set path $longer
    end
    echo $path
end

function __flashjit_at
    test (__flashjit_path) = "$argv"
end

# Names with commas between them: what stands before the last comma stays.
function __flashjit_list
    set -l before (commandline -ct | string replace -r '^--[^=]*=' '' | string match -r '^.*,')
    set -q before[1]; or set before ''
    string join -- \n $before$argv
end

complete -c flashjit -f
)";

std::string quoted_for_fish(std::string_view text) {
  std::string out = "'";
  for (const char c : text) {
    if (c == '\'' || c == '\\') out += '\\';
    out += c;
  }
  return out + "'";
}

// Fish evaluates names once more, and parentheses would be a command.
std::string fish_names(const ValueForm& form) {
  std::string names;
  for (const char c : fmt::format("{}", fmt::join(form.names, " ")))
    names += c == '(' || c == ')' ? std::string{'\\', c} : std::string{c};
  return form.is_list ? fmt::format("(__flashjit_list {})", names) : names;
}

std::string fish_value(const ValueForm& form) {
  switch (form.kind) {
    case ValueForm::Kind::Names: return " -a " + quoted_for_fish(fish_names(form));
    case ValueForm::Kind::Files:
      return form.ending.empty() ? " -F" : fmt::format(" -a '(__fish_complete_suffix {})'", form.ending);
    case ValueForm::Kind::Folders: return " -a '(__fish_complete_directories (commandline -ct))'";
    case ValueForm::Kind::Free: break;
  }
  return {};
}

// -x allows only the offered values; -r allows files.
std::string fish_option(const CLI::Option& option) {
  std::string out;
  for (const std::string& name : option.get_snames()) out += " -s " + name;
  for (const std::string& name : option.get_lnames()) out += " -l " + name;
  if (takes_value(option)) {
    const std::string value = fish_value(form_of(option));
    out += (value == " -F" ? " -r" : " -x") + value;
  }
  return out + " -d " + quoted_for_fish(option.get_description());
}

std::string fish_lines(const CLI::App& app) {
  const std::string path = path_of(app);
  const std::string start = fmt::format("complete -c flashjit -n {}",
                                        quoted_for_fish(path.empty() ? "__flashjit_at" : "__flashjit_at " + path));
  std::string out;
  for (const CLI::App* each : subcommands_of(app))
    out += fmt::format("{} -a {} -d {}\n", start, each->get_name(), quoted_for_fish(each->get_description()));
  for (const CLI::Option* option : options_of(app)) out += start + fish_option(*option) + "\n";
  for (const CLI::Option* positional : positionals_of(app))
    if (const std::string value = fish_value(form_of(*positional)); !value.empty()) out += start + value + "\n";
  return out;
}

}  // namespace

std::string fish_completion(const CLI::App& root) {
  std::string script = fmt::format(
      "# Completion of flashjit {} for fish, which `flashjit completion fish` made.\n\nset -g __flashjit_paths",
      version());
  std::string lines;
  for (const CLI::App* app : commands_of(root)) {
    if (app != &root) script += " " + quoted_for_fish(path_of(*app));
    lines += "\n" + fish_lines(*app);
  }
  return script + "\n" + kFishEngine + lines;
}

}  // namespace flashjit
