// The list of families. A new family is a folder and a line here.
#include <algorithm>
#include <array>

#include "compiler/families/decode/decode.h"
#include "compiler/families/family.h"
#include "compiler/families/hopper/hopper.h"
#include "compiler/families/hopper_backward/hopper_backward.h"
#include "compiler/families/host/host.h"
#include "compiler/families/index/index.h"
#include "compiler/families/merge/merge.h"
#include "compiler/families/mla/mla.h"
#include "compiler/families/naive/naive.h"
#include "compiler/families/quantize/quantize.h"
#include "compiler/families/sync/sync.h"
#include "compiler/families/sync_backward/sync_backward.h"

namespace flashjit {

namespace {

constexpr std::array<Family, kFamilyCount> kFamilies = {
    &kHopper, &kDecode,   &kMla,         &kSyncNarrow, &kSync,           &kNaive,        &kNaiveBackward,
    &kMerge,  &kQuantize, &kHopperIndex, &kIndex,      &kHopperBackward, &kSyncBackward, &kHost};

}  // namespace

std::span<const Family, kFamilyCount> families() { return kFamilies; }

Family floor_family(bool gpu, Operation operation) {
  AttentionSpec spec;
  spec.operation = operation;
  // The floor is the last family of its kind that takes part by default.
  const auto floor = std::find_if(kFamilies.rbegin(), kFamilies.rend(),
                                  [&](Family f) { return f->gpu == gpu && f->is_default && f->computes(spec); });
  return *floor;
}

}  // namespace flashjit
