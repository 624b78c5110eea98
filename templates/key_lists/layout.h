// Lists of keys that a mask cuts (key_lists/shown.cuh). Host and device share this file.
#pragma once

namespace flashjit {

// A block has this number of entries of a list.
constexpr int kShownThreads = 128, kShownEntries = 1024;

// A call gives positions in sequences. No sequence has more positions; a key at any other number is hidden.
constexpr int kMostPositions = (1 << 30) - 1;
constexpr bool is_position(int given) { return given >= 0 && given < kMostPositions; }

}  // namespace flashjit
