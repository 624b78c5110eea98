#include "compiler/spec/narrowing.h"

#include <fmt/format.h>

#include "templates/quantize/rotation.h"

namespace flashjit {

namespace {

Result<void> check_rotate(const AttentionSpec& spec) {
  if (!spec.rotate) return {};
  if (!quantizes(spec) && !narrows(spec)) {
    return invalid(
        "rotate: it goes before rounding to 8 bits, and this spec rounds nothing; add compute=e4m3, or rotate Q and K "
        "with quantize");
  }
  if (rotation_parts(spec.d_qk) != 0) return {};
  int wider = spec.d_qk + 1;
  while (rotation_parts(wider) == 0) ++wider;
  return invalid(fmt::format(
      "rotate: there is no matrix for d={}; it takes a multiple of 16 that is 1, 3 or 5 times a power of two: "
      "pad Q and K with zeros to d={}",
      spec.d_qk, wider));
}

// Of specs whose Q, K and V are rounded first.
Result<void> check_compute(const AttentionSpec& spec) {
  if (!narrows(spec)) return {};
  const auto refuse = [&](std::string_view field, std::string_view why) {
    return invalid(fmt::format("{}: compute={} rounds Q, K and V of the call, {}", field, name(*spec.compute), why));
  };
  if (!is_forward(spec)) return refuse("compute", "and they are those of fwd; leave it out");
  if (size_of(spec.dtype) == 1) return refuse("compute", "which have 8 bits already; leave it out");
  if (spec.kv_dtype != spec.dtype) return refuse("kv", "and these have 8 bits already; leave one of the two out");
  if (is_paged(spec)) return refuse("layout", "and pages are kept; quantize what is written to them, and use kv=");
  if (spec.append) return refuse("append", "and a cache is kept; quantize what is written to it, and use kv=");
  if (spec.k_lens) return refuse("k_lens", "also what lies behind a length, which would count; use layout=packed");
  if (spec.v_in_k) return refuse("v_in_k", "and V is not rotated; give v as a tensor");
  if (spec.layout == Layout::Packed && spec.numerics == Numerics::BatchInvariant)
    return refuse("numerics", "and packed sequences share a scale; use layout=bshd");
  return {};
}

}  // namespace

Result<void> check_narrowing(const AttentionSpec& spec) {
  FLASHJIT_TRY(check_compute(spec));
  return check_rotate(spec);
}

}  // namespace flashjit
