// The launch that cuts lists of keys by a mask (key_lists/shown.cuh): how many entries of a list a block has.
#pragma once

namespace flashjit {

constexpr int kShownThreads = 128, kShownEntries = 1024;

}  // namespace flashjit
