// In what the keys of two kernels differ: why one is not found where the other is (`flashjit cache explain`).
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace flashjit {

// A key's text, and its spec and schedule whole: the text has only the digest of long values.
struct KeyView {
  std::string_view text, spec, schedule;
  std::string_view meaning = {};  // of the spec, however it is spelled (compiler/spec/spec.h); empty: not known
};

struct KeyDifference {
  std::string
      field;  // "spec.mask" "schedule.tile_q" "target" "compiler" "options" "generated entry.cu" "header templates/..."
  std::string here, there;  // empty: it has none
  std::string remark;       // what such a difference means, where the field does not say it
  bool cause = true;        // false: it follows from another difference
};

// `pins`: the schedule that was asked for here. Fields of the schedule that nobody pinned follow from spec and target.
std::vector<KeyDifference> key_differences(const KeyView& here, const KeyView& there, std::string_view pins);

// Says how far apart two keys are, by their causes: another build of the same kernel is nearer than another kernel.
int distance(const std::vector<KeyDifference>& differences);

}  // namespace flashjit
