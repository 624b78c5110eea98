// The fields of a spec that take whole numbers.
#pragma once

#include <string_view>

#include "compiler/spec/fields/select.h"
#include "compiler/spec/spec.h"

namespace flashjit {

inline constexpr int kMaxHeads = 65535, kMaxPageSize = 65536, kMaxListBlock = 65536, kMaxScaleBlock = 1024;

// The way in which values of such a field are written, and the largest number that any of them has.
struct WholeNumberField {
  std::string_view name, written;
  int most;
};
inline constexpr WholeNumberField kWholeNumberFields[] = {
    {"d", "d=128 or d=192/128", kMaxLatentDimQk},
    {"heads", "heads=16 or heads=32/8", kMaxHeads},
    {"layout", "layout=paged(16) or layout=packed/paged(16)", kMaxPageSize},
    {"blocks", "blocks=128, blocks=64/128 or blocks=64/128/8", kMaxListBlock},
    {"scales", "scales=block(128)", kMaxScaleBlock},
    {"select", "select=keys(2048) or select=pages(16)", kMostSelected},
    {"rope", "rope=half(64) or rope=interleaved(64)", kMaxLatentDimQk},
    {"rope_from", "rope_from=512", kMaxLatentDimQk},
    {"bytes", "bytes=16, bytes=8, bytes=4 or bytes=2", 16}};

}  // namespace flashjit
