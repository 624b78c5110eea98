// Sizes of the launches that find which tiles a loop visits. Shared by host and device.
#pragma once

#include "templates/kernel_config.h"

namespace flashjit {

constexpr int kBoundsThreads = 32, kAnswerThreads = 256, kListThreads = 128;

// The least and the most of what is read at the positions of a tile.
struct ReadBounds {
  long long least, most;
};
// Answers of a condition that is asked of all pairs of two tiles, as bits of a byte.
constexpr int kSomeHold = 1, kAllHold = 2;

// Values that are read along one axis, at most, and what the launch that makes lists has of them in shared memory.
constexpr int kMostTileValues = 8;
constexpr int kListBytes = kMostTileValues * static_cast<int>(sizeof(ReadBounds)) + kListThreads / 32 * 4;

// A list begins with the number of its tiles, and of those among them in which all is seen.
constexpr int kListCounts = 2;

}  // namespace flashjit
