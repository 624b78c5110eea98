#include "runtime/compile/kernel_key.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "codegen/cuda/embedded_templates.h"

namespace flashjit {
namespace {

KeyBuilder begin_key(const Plan& plan, std::string_view compiler) {
  KeyBuilder key;
  key.field("spec", print(plan.spec));
  key.field("schedule", print(plan.schedule));
  key.field("target", plan.target.name);
  key.field("compiler", compiler);
  return key;
}

// Of a template as the build embedded it; empty: its text is another. To compare texts takes a tenth of the time.
std::string_view known_digest(const SourceFile& file) {
  for (const EmbeddedFile& embedded : embedded_templates()) {
    if (embedded.name == file.name) return embedded.text == file.text ? embedded.sha256 : std::string_view();
  }
  return {};
}

}  // namespace

StoreKey key_of(const Plan& plan, const KernelSource& source, std::string_view compiler,
                const std::vector<std::string>& options) {
  KeyBuilder key = begin_key(plan, compiler);
  key.field("options", fmt::format("{}", fmt::join(options, " ")));
  for (const SourceFile& file : source.generated) key.field("generated " + file.name, file.text);
  for (const SourceFile& file : source.headers) key.field("header " + file.name, file.text, known_digest(file));
  return key.finish();
}

StoreKey host_key_of(const Plan& plan, std::string_view compiler) { return begin_key(plan, compiler).finish(); }

}  // namespace flashjit
