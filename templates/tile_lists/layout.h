// Sizes of the launches that find which tiles a loop visits. Host and device share them.
#pragma once

#include "templates/kernel_config.h"

namespace flashjit {

constexpr int kBoundsThreads = 32, kAnswerThreads = 256, kListThreads = 128;

// The least and the most of a value that is read at the positions of a tile.
struct ReadBounds {
  long long least, most;
};
// Answers of a condition for all pairs of positions of two tiles, as bits of a byte.
constexpr int kSomeHold = 1, kAllHold = 2;

// The most values that are read along one axis, and the shared memory of the launch that makes lists.
constexpr int kMostTileValues = 8;
constexpr int kListBytes = kMostTileValues * static_cast<int>(sizeof(ReadBounds)) + kListThreads / 32 * 4;

// A list begins with the number of its tiles, and the number of full tiles among them.
constexpr int kListCounts = 2;

}  // namespace flashjit
