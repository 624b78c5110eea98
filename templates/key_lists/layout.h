// Lists of keys that a mask cuts (key_lists/shown.cuh). Shared by host and device.
#pragma once

namespace flashjit {

// This is how many entries of a list a block has.
constexpr int kShownThreads = 128, kShownEntries = 1024;

// A call gives positions in sequences. No sequence has more; a key at another number is hidden.
constexpr int kMostPositions = (1 << 30) - 1;
constexpr bool is_position(int given) { return given >= 0 && given < kMostPositions; }

}  // namespace flashjit
