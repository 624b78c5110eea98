#include "runtime/compile/kernel_key.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "codegen/cuda/embedded_templates.h"

namespace flashjit {
namespace {

KeyBuilder begin_key(const Plan& plan, std::string_view spec, std::string_view compiler) {
  KeyBuilder key;
  key.field("spec", spec);
  key.field("schedule", print(plan.schedule));
  key.field("target", plan.target.name);
  key.field("compiler", compiler);
  return key;
}

// Returns the digest of a template as the build embedded it, or an empty text if the template differs. Comparing the
// texts takes a tenth of the time of hashing.
std::string_view known_digest(const SourceFile& file) {
  for (const EmbeddedFile& embedded : embedded_templates()) {
    if (embedded.name == file.name) return embedded.text == file.text ? embedded.sha256 : std::string_view();
  }
  return {};
}

}  // namespace

StoreKey key_of(const Plan& plan, const KernelSource& source, std::string_view compiler,
                const std::vector<std::string>& options) {
  KeyBuilder key = begin_key(plan, print(plan.spec), compiler);  // Generated files quote the spec as it is written.
  key.field("options", fmt::format("{}", fmt::join(options, " ")));
  for (const SourceFile& file : source.generated) key.field("generated " + file.name, file.text);
  for (const SourceFile& file : source.headers) key.field("header " + file.name, file.text, known_digest(file));
  return key.finish();
}

StoreKey host_key_of(const Plan& plan, std::string_view compiler) {
  KeyBuilder key = begin_key(plan, meaning(plan.spec), compiler);
  const Capabilities& can = plan.target.can;
  key.field("instructions", fmt::format("avx2={:d} avx512={:d} avx512_bf16={:d} amx_bf16={:d}", can.avx2, can.avx512,
                                        can.avx512_bf16, can.amx_bf16));
  // Code of the compiler derives the tile limits from the spec, and the identity of the host library does not cover
  // that code.
  const TileAnalysis& tiles = plan.tiles;
  const std::pair<const char*, const Expr&> limits[] = {{"begin", tiles.begin},
                                                        {"end", tiles.end},
                                                        {"full_begin", tiles.full_begin},
                                                        {"full_end", tiles.full_end},
                                                        {"may_see", tiles.may_see}};
  for (const auto& [name, expr] : limits) key.field(fmt::format("tiles.{}", name), expr ? print(expr) : "");
  key.field("tiles.line_is_range", tiles.line_is_range ? "1" : "0");
  key.field("wide_ints", plan.wide_ints ? "1" : "0");
  return key.finish();
}

}  // namespace flashjit
