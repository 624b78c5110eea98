#include "tools/support/engine_options.h"

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

Result<std::unique_ptr<Session>> open_session(const InputArgs& args, const EnvironmentSettings& settings) {
  return as_option(Session::open(args.target, args.engine(), settings));
}

}  // namespace flashjit
