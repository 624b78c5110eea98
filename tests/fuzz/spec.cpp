// Spec texts: what is accepted prints as a text that means the same, and an error is the user's mistake, not ours.
#include "compiler/spec/spec.h"

#include "tests/fuzz/fuzz.h"

using namespace flashjit;
using fuzz::require;

namespace {

bool same_or_empty(const Expr& a, const Expr& b) { return a && b ? same(a, b) : !a && !b; }

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto spec = parse_spec(fuzz::text_of(data, size));
  if (!spec) {
    require(spec.error().kind == ErrorKind::Invalid, "a text is refused as invalid", spec.error().message);
    require(spec.error().message.find('\n') == std::string::npos, "a message is one line", spec.error().message);
    return 0;
  }
  const std::string text = print(*spec);
  if (text.size() > kMaxSpecText) return 0;
  const auto again = parse_spec(text);
  require(static_cast<bool>(again), "a printed spec is read again", text, again ? "" : again.error().message);
  require(print(*again) == text, "a printed spec prints the same", text, print(*again));
  require(same_or_empty(spec->mask, again->mask), "the mask stays the same", text);
  require(same_or_empty(spec->score, again->score), "the score stays the same", text);
  require(spec->params == again->params && spec->declared == again->declared, "the parameters stay the same", text);
  require(spec->scale == again->scale && spec->dropout == again->dropout, "numbers stay the same", text);

  AttentionSpec checked = *spec;
  const auto valid = validate(checked);
  require(static_cast<bool>(valid), "a parsed spec is valid", text, valid ? "" : valid.error().message);
  require(print(checked) == text, "validation changes nothing", text, print(checked));
  if (const auto supported = check_supported(*spec); !supported) {
    require(supported.error().kind == ErrorKind::Unsupported, "what has no kernel is unsupported",
            supported.error().message);
  }
  return 0;
}
