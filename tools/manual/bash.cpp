#include <fmt/format.h>
#include <fmt/ranges.h>

#include "flashjit/flashjit.hpp"
#include "tools/manual/definitions.h"
#include "tools/manual/pages.h"

namespace flashjit {
namespace {

// Entries are found by a key: a path has subcommands, "PATH -" options, "PATH --NAME" values, "PATH +" positional
// arguments.
constexpr char kBashEngine[] = R"(
_flashjit_offer() {
  local kind=${at%% *} rest=${at#* } word before=$prefix
  case $kind in
    names | list)
      if [[ $kind == list && $cur == *,* ]]; then
        before+=${cur%,*},
        cur=${cur##*,}
      fi
      for word in $rest; do
        [[ $word == "$cur"* ]] || continue
        [[ $word == *'(' ]] && compopt -o nospace 2>/dev/null
        COMPREPLY+=("$before${word//\(/\\(}")
      done
      ;;
    files)
      [[ $at == 'files .'* ]] && mapfile -t COMPREPLY < <(compgen -f -X "!*$rest" -- "$cur"; compgen -d -- "$cur")
      # Readline finds the others, and names in quotes.
      if ((${#COMPREPLY[@]})); then compopt -o filenames 2>/dev/null; else compopt -o default 2>/dev/null; fi
      ;;
    directories) compopt -o dirnames 2>/dev/null ;;
  esac
}

_flashjit() {
  local IFS=$' \t\n' cur=${COMP_WORDS[COMP_CWORD]} typed word glue='' path='' option='' prefix='' at=''
  local -a words=()
  # Readline cuts words at = and at :, which are put together again.
  for word in "${COMP_WORDS[@]:1:COMP_CWORD}"; do
    if ((${#words[@]})) && [[ $word == [=:]* || $glue && $word != -* ]]; then words[-1]+=$word; else words+=("$word"); fi
    glue=''
    [[ $word =~ ^[=:]+$ ]] && glue=1
  done
  typed=${words[-1]}
  unset 'words[-1]'
  [[ $cur =~ ^[=:]+$ ]] && cur=''
  COMPREPLY=()
  for word in "${words[@]}"; do
    _flashjit_at "$path"
    [[ $word != -* && " ${at#names } " == *" $word "* ]] && path+=${path:+ }$word
  done
  if [[ $typed == --*=* ]]; then
    option=${typed%%=*}
    if [[ $cur == "$typed" ]]; then
      prefix=$option=
      cur=${cur#*=}
    fi
  elif ((${#words[@]})) && [[ ${words[-1]} == -* ]]; then
    option=${words[-1]}
  fi
  if [[ $option ]]; then
    _flashjit_at "$path $option"
    if [[ $at ]]; then
      _flashjit_offer
      return
    fi
  fi
  at=''
  [[ $cur == -* ]] || _flashjit_at "$path"
  [[ $at || $cur == -* ]] || _flashjit_at "$path +"
  [[ $at ]] || _flashjit_at "$path -"
  _flashjit_offer
}

complete -F _flashjit flashjit
)";

std::string bash_row(const std::string& key, const std::string& at) {
  return fmt::format("    {}) at={} ;;\n", quoted_for_shell(key), quoted_for_shell(at));
}

// Free values have a kind, too, so that nothing else is offered in their place.
std::string bash_form(const ValueForm& form) {
  switch (form.kind) {
    case ValueForm::Kind::Names:
      return fmt::format("{} {}", form.is_list ? "list" : "names", fmt::join(form.names, " "));
    case ValueForm::Kind::Files: return form.ending.empty() ? "files" : "files " + form.ending;
    case ValueForm::Kind::Folders: return "directories";
    case ValueForm::Kind::Free: break;
  }
  return "free";
}

std::string bash_rows(const CLI::App& app) {
  const std::string path = path_of(app);
  std::vector<std::string> subcommands, options;
  for (const CLI::App* each : subcommands_of(app)) subcommands.push_back(each->get_name());
  std::string rows, values;
  if (!subcommands.empty()) rows += bash_row(path, fmt::format("names {}", fmt::join(subcommands, " ")));
  for (const CLI::Option* option : options_of(app)) {
    for (const std::string& name : names_of(*option)) {
      options.push_back(name);
      if (takes_value(*option)) values += bash_row(path + " " + name, bash_form(form_of(*option)));
    }
  }
  rows += bash_row(path + " -", fmt::format("names {}", fmt::join(options, " ")));
  // All positional arguments of a subcommand have one form, if there are any.
  for (const CLI::Option* positional : positionals_of(app))
    if (const ValueForm form = form_of(*positional); form.kind != ValueForm::Kind::Free)
      values += bash_row(path + " +", bash_form(form));
  return rows + values;
}

}  // namespace

std::string quoted_for_shell(std::string_view text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string bash_completion(const CLI::App& root) {
  std::string script = fmt::format(
      "# Completion of flashjit {} for bash, which `flashjit completion bash` made.\n\n"
      "# Each row lists words that may stand at a place: the subcommands of PATH, the options of 'PATH -', the values\n"
      "# of 'PATH --NAME', the positional arguments of 'PATH +'.\n"
      "_flashjit_at() {{\n  case $1 in\n",
      version());
  for (const CLI::App* app : commands_of(root)) script += bash_rows(*app);
  return script + "    *) at='' ;;\n  esac\n}\n" + kBashEngine;
}

}  // namespace flashjit
