#include "tools/manual/definitions.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <string_view>

#include "autotune/measure/logits.h"
#include "compiler/card.h"
#include "compiler/families/family.h"
#include "compiler/spec/target.h"

namespace flashjit {
namespace {

std::vector<std::string> split_at_commas(std::string_view text) {
  std::vector<std::string> names;
  while (!text.empty()) {
    const std::size_t comma = std::min(text.find(','), text.size());
    names.emplace_back(text.substr(0, comma));
    text.remove_prefix(std::min(comma + 1, text.size()));
    while (text.starts_with(' ')) text.remove_prefix(1);
  }
  return names;
}

std::vector<std::string> target_names() {
  std::vector<std::string> names;
  for (const Target& target : targets()) names.emplace_back(target.name);
  return names;
}

std::vector<std::string> target_and_card_names() {
  std::vector<std::string> names = target_names();
  for (const Card& card : cards()) names.emplace_back(card.name);
  return names;
}

std::vector<std::string> where_names() {
  std::vector<std::string> names = {"auto", "gpu", "host"};
  for (std::string& name : target_names()) names.push_back(std::move(name));
  return names;
}

// "wide(N)" is left open, because only the user knows the number.
std::vector<std::string> logit_names() {
  std::vector<std::string> names = split_at_commas(kLogitKinds);
  for (std::string& name : names) name.resize(std::min(name.find("N)"), name.size()));
  return names;
}

std::vector<std::string> pass_names() {
  std::vector<std::string> names = {"all"};
  const auto add = [&](std::span<const Pass> passes) {
    for (const Pass& pass : passes)
      if (std::ranges::find(names, pass.name) == names.end()) names.emplace_back(pass.name);
  };
  add(shared_passes());
  for (const Family family : families()) add(family->passes);
  return names;
}

// Some options are checked after the parser, where an error can say more. They name the set of their values by the type
// that help shows.
struct NamedSet {
  std::string_view type;
  std::vector<std::string> (*names)();
};
constexpr NamedSet kNamedSets[] = {
    {"TARGET", target_and_card_names}, {"WHERE", where_names}, {"KIND", logit_names}, {"PASS", pass_names}};

void add_with_descendants(const CLI::App& app, std::vector<const CLI::App*>& found) {
  found.push_back(&app);
  for (const CLI::App* each : subcommands_of(app)) add_with_descendants(*each, found);
}

}  // namespace

std::vector<const CLI::App*> subcommands_of(const CLI::App& app) {
  return app.get_subcommands(
      [](const CLI::App* each) { return !each->get_name().empty() && !each->get_group().empty(); });
}

std::vector<const CLI::Option*> options_of(const CLI::App& app) {
  return app.get_options([](const CLI::Option* each) { return each->nonpositional() && !each->get_group().empty(); });
}

std::vector<const CLI::Option*> positionals_of(const CLI::App& app) {
  return app.get_options([](const CLI::Option* each) { return each->get_positional() && !each->get_group().empty(); });
}

std::vector<const CLI::App*> commands_of(const CLI::App& root) {
  std::vector<const CLI::App*> found;
  add_with_descendants(root, found);
  return found;
}

std::string path_of(const CLI::App& app) {
  if (!app.get_parent()) return {};
  const std::string above = path_of(*app.get_parent());
  return above.empty() ? app.get_name() : above + " " + app.get_name();
}

std::vector<std::string> names_of(const CLI::Option& option) {
  std::vector<std::string> names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  return names;
}

bool takes_value(const CLI::Option& option) { return option.get_items_expected_min() > 0; }

bool may_be_repeated(const CLI::Option& option) {
  return option.get_expected_max() > 1 || option.get_multi_option_policy() == CLI::MultiOptionPolicy::TakeAll;
}

ValueForm form_of(const CLI::Option& option) {
  using Kind = ValueForm::Kind;
  // A type name such as "TEXT:{spec,ir}" has the type, then the sets and ranges that the parser checks.
  const std::string full = option.get_type_name();
  const std::string_view type = std::string_view(full).substr(0, full.find(':'));
  ValueForm form{.is_list = option.get_delimiter() == ','};
  const std::size_t open = full.find('{'), close = full.find('}');
  const auto* set = std::ranges::find(kNamedSets, type, &NamedSet::type);
  if (set != std::end(kNamedSets)) {
    form.kind = Kind::Names;
    form.names = set->names();
  } else if (open < close && close != full.npos) {
    form.kind = Kind::Names;
    form.names = split_at_commas(std::string_view(full).substr(open + 1, close - open - 1));
  } else if (const std::size_t file = type.find("FILE"); file != type.npos) {
    form.kind = Kind::Files;
    form.ending = type.substr(file + 4);
  } else if (type == "DIR") {
    form.kind = Kind::Folders;
  }
  return form;
}

}  // namespace flashjit
