// flashjit completion and flashjit man print what shells and man(1) need to know, made from the command's own
// definitions.
#include <algorithm>
#include <iterator>
#include <memory>

#include "tools/command/commands.h"
#include "tools/manual/pages.h"
#include "tools/support/output.h"

namespace flashjit {
namespace {

struct Shell {
  std::string name;
  std::string (*script)(const CLI::App& root);
};
const Shell kShells[] = {{"bash", bash_completion}, {"fish", fish_completion}, {"zsh", zsh_completion}};

int print_text(const std::string& text) {
  Output output(false);
  output.text(text);
  return output.exit_code();
}

}  // namespace

void add_completion(CLI::App& app, int& exit_code) {
  std::vector<std::string> names;
  for (const Shell& shell : kShells) names.push_back(shell.name);
  auto name = std::make_shared<std::string>();
  CLI::App* sub = app.add_subcommand("completion", "Print a script that completes this command in a shell");
  sub->add_option("shell", *name, "For which shell")->required()->check(CLI::IsMember(names));
  sub->footer(
      "\nExamples:\n"
      "  source <(flashjit completion bash)\n"
      "  flashjit completion zsh > ~/.zfunc/_flashjit\n"
      "  flashjit completion fish > ~/.config/fish/completions/flashjit.fish");
  sub->callback([&app, &exit_code, name] {
    exit_code = print_text(std::ranges::find(kShells, *name, &Shell::name)->script(app));
  });
}

void add_man(CLI::App& app, int& exit_code) {
  CLI::App* sub = app.add_subcommand("man", "Print the manual page, as man(1) reads it");
  sub->footer("\nExamples:\n  flashjit man | man -l -\n  flashjit man > flashjit.1");
  sub->callback([&app, &exit_code] { exit_code = print_text(manual_page(app)); });
}

}  // namespace flashjit
