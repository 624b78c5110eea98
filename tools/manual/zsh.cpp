#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "flashjit/flashjit.hpp"
#include "tools/manual/definitions.h"
#include "tools/manual/pages.h"

namespace flashjit {
namespace {

// If the file is read from a folder of $fpath, it is the function. If it is read by `source`, it only tells zsh which
// function completes.
constexpr char kZshEnd[] = R"(
if [[ $funcstack[1] == _flashjit ]]; then
  _flashjit "$@"
else
  compdef _flashjit flashjit
fi
)";

std::string with_backslashes(std::string_view text, std::string_view before) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || before.find(c) != before.npos) out += '\\';
    out += c;
  }
  return out;
}

std::string zsh_function(const CLI::App& app) {
  std::string name = "_flashjit " + path_of(app);
  while (name.ends_with(' ')) name.pop_back();
  std::ranges::replace(name, ' ', '_');
  return name;
}

// The shell evaluates names once more. A name that goes on with a number gets no blank behind it.
std::string zsh_names(const ValueForm& form) {
  std::vector<std::string> whole, open;
  for (const std::string& name : form.names)
    (name.ends_with('(') ? open : whole).push_back(with_backslashes(name, "()"));
  if (form.is_list) return fmt::format("_sequence compadd - {}", fmt::join(whole, " "));
  if (open.empty()) return fmt::format("({})", fmt::join(whole, " "));
  return fmt::format("{{compadd - {}; compadd -S \"\" - {}}}", fmt::join(whole, " "), fmt::join(open, " "));
}

// Returns ":MESSAGE:ACTION", as _arguments takes it.
std::string zsh_value(const CLI::Option& option) {
  const ValueForm form = form_of(option);
  const std::string type = option.get_type_name();
  const std::string message = option.get_positional() ? option.get_name(true) : type.substr(0, type.find(':'));
  // If nothing can be completed, zsh says what is wanted, unless an option is being typed.
  std::string action = option.get_positional() ? fmt::format("_guard \"^-*\" {}", message) : " ";
  switch (form.kind) {
    case ValueForm::Kind::Names: action = zsh_names(form); break;
    case ValueForm::Kind::Files:
      action = form.ending.empty() ? "_files" : fmt::format("_files -g \"*{}\"", form.ending);
      break;
    case ValueForm::Kind::Folders: action = "_files -/"; break;
    case ValueForm::Kind::Free: break;
  }
  return fmt::format(":{}:{}", message, action);
}

std::string zsh_arguments(const CLI::App& app) {
  std::string out;
  for (const CLI::Option* option : options_of(app)) {
    const std::vector<std::string> names = names_of(*option);
    for (const std::string& name : names) {
      const std::string others = may_be_repeated(*option) ? "*" : fmt::format("({})", fmt::join(names, " "));
      const std::string_view joint = !takes_value(*option) ? "" : name.starts_with("--") ? "=" : "+";
      out += " \\\n    " + quoted_for_shell(fmt::format("{}{}{}[{}]{}", others, name, joint,
                                                        with_backslashes(option->get_description(), "[]"),
                                                        takes_value(*option) ? zsh_value(*option) : ""));
    }
  }
  for (const CLI::Option* positional : positionals_of(app))
    out += " \\\n    " + quoted_for_shell((may_be_repeated(*positional) ? "*" : "") + zsh_value(*positional));
  return out;
}

std::string zsh_subcommands(const CLI::App& app) {
  std::string names, calls;
  for (const CLI::App* each : subcommands_of(app)) {
    names += "\n        " + quoted_for_shell(each->get_name() + ":" + with_backslashes(each->get_description(), ""));
    calls += fmt::format("\n        {}) {} ;;", each->get_name(), zsh_function(*each));
  }
  return fmt::format(
      "  case $state in\n"
      "    subcommand)\n      local -a subcommands=({})\n      _describe subcommand subcommands\n      ;;\n"
      "    rest)\n      case $words[1] in{}\n      esac\n      ;;\n"
      "  esac\n",
      names, calls);
}

std::string zsh_body(const CLI::App& app) {
  if (subcommands_of(app).empty()) return fmt::format("  _arguments -S{}\n", zsh_arguments(app));
  return fmt::format(
      "  local context state state_descr line curcontext=$curcontext\n  local -A opt_args\n"
      "  _arguments -C -S{} \\\n    ': :->subcommand' \\\n    '*:: :->rest'\n{}",
      zsh_arguments(app), zsh_subcommands(app));
}

}  // namespace

std::string zsh_completion(const CLI::App& root) {
  std::string script = fmt::format(
      "#compdef flashjit\n# Completion of flashjit {} for zsh, which `flashjit completion zsh` made.\n", version());
  for (const CLI::App* app : commands_of(root))
    script += fmt::format("\n{}() {{\n{}}}\n", zsh_function(*app), zsh_body(*app));
  return script + kZshEnd;
}

}  // namespace flashjit
