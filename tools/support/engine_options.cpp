#include "tools/support/engine_options.h"

#include <fmt/format.h>

#include <string_view>

namespace flashjit {
namespace {

struct OptionName {
  std::string_view field, option;
};
constexpr OptionName kOptionNames[] = {
    {"bundles", "--bundle"},           {"ordinal", "--device"}, {"override_dir", "--override"},
    {"isolate_compiler", "--isolate"}, {"record", "--record"},  {"target", "--target"},
};

}  // namespace

Error as_option(Error error) {
  const std::string_view field = std::string_view(error.message).substr(0, error.message.find(": "));
  for (const OptionName& name : kOptionNames) {
    if (name.field != field) continue;
    error.message.replace(0, field.size(), name.option);
    break;
  }
  return error;
}

Result<std::unique_ptr<Session>> open_session(const InputArgs& args, EnvironmentSettings settings) {
  settings.line_info = settings.line_info || args.line_info;
  FLASHJIT_ASSIGN(session, as_option(Session::open(args.target, args.engine(), settings)));
  if (args.line_info && !session->on_gpu()) return no_lines_of(session->target());
  return std::move(session);
}

Error no_lines_of(std::string_view target) {
  return invalid(
      fmt::format("--line-info: {} is a processor, whose kernels have no source lines to name; leave it out", target));
}

}  // namespace flashjit
