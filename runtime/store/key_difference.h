// The keys of two kernels differ in some fields, which tell why one is not found where the other is (`flashjit cache
// explain`).
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace flashjit {

// A view has a key's text, and its whole spec and schedule, because the text has only the digest of long values.
struct KeyView {
  std::string_view text, spec, schedule;
  // The spec in the form that depends on its meaning and not on its spelling (compiler/spec/spec.h); empty if not
  // known.
  std::string_view meaning = {};
};

struct KeyDifference {
  // For example "spec.mask", "schedule.tile_q", "target", "compiler", "options", "generated entry.cu" or "header
  // templates/...".
  std::string field;
  std::string here, there;  // empty if the key has no such field
  std::string remark;       // tells what such a difference means, where the field does not show it
  bool cause = true;        // It is false if the difference follows from another one.
};

// `pins` is the schedule that was asked for here. Fields of the schedule that nobody pinned follow from spec and
// target.
std::vector<KeyDifference> key_differences(const KeyView& here, const KeyView& there, std::string_view pins);

// Counts how far apart two keys are by the causes of their differences: another build of the same kernel is nearer than
// another kernel.
int distance(const std::vector<KeyDifference>& differences);

}  // namespace flashjit
