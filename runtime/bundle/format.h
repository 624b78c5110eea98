// A bundle as bytes: kernels that were built ahead of time, for several targets, in one file that is only read.
//   magic "FJBUNDLE" | u32 version | u32 0 | u64 bytes of the file | u64 bytes of the index | index | SHA-256 of all
//   that | code
// Numbers are little-endian, texts have their length before them. The index says of every kernel what it answers, what
// is known about it and where its code lies, with a SHA-256 of its own: the index is checked when a bundle is opened,
// code when it is needed. The code, one zstd frame per kernel, fills the rest of the file in the order of the index:
// nothing overlaps, and no byte belongs to nobody. A bundle that has shards alone has version 2, in which the index ends
// with what it says of them; version 1 is whole.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "compiler/result.h"
#include "runtime/store/sha256.h"
#include "runtime/store/entry.h"

namespace flashjit {

// A key says what was asked for, in canonical text. The schedule that was taken in the end is a fact, because it may be
// another than the first choice.
struct BundleKey {
  std::string target, spec, pins;
  auto operator<=>(const BundleKey&) const = default;
};

struct BundleItem {
  BundleKey key;
  StoreFacts facts;              // "schedule", "registers", "source": see bundle.h
  std::uint64_t code_bytes = 0;  // of the cubin
  std::uint64_t offset = 0;      // of its frame in the file; not stored, it follows from the sizes
  std::uint64_t packed_bytes = 0;
  Sha256::Digest checksum = {};  // of the frame
};

// Several machines may build the kernels of a manifest, each a shard of them, into a bundle of its own. Such a bundle says
// what it is a part of.
struct BundleShards {
  std::string whole;                   // digest of the keys of all kernels, whichever shard they are in (whole_of)
  std::uint32_t kernels = 0;           // how many these are
  std::uint32_t count = 0;             // how many shards there are
  std::vector<std::uint32_t> numbers;  // those that are in here: from 1 to `count`, rising
};

struct BundleIndex {
  std::string templates;          // digest of the kernel templates and parameter blocks that the code was made from
  std::vector<BundleItem> items;  // by key, each once
  std::optional<BundleShards> shards = {};  // none: the bundle is whole
};

// The digest of keys, in whatever order they come.
std::string whole_of(std::vector<BundleKey> keys);

struct PackedCode {
  std::uint64_t code_bytes = 0;
  std::vector<std::uint8_t> frame;
};

inline constexpr std::uint32_t kMaxBundleShards = 10000;
inline constexpr std::size_t kBundleHeaderBytes = 32, kBundleChecksumBytes = 32;
inline constexpr std::uint64_t kMaxIndexBytes = std::uint64_t{256} << 20, kMaxCodeBytes = std::uint64_t{64} << 20;

PackedCode pack(std::span<const std::uint8_t> code);
// Error: the frame is not the one the index tells of, or not a sound one.
Result<std::vector<std::uint8_t>> unpack(const BundleItem& item, std::span<const std::uint8_t> frame);

// Sorts the kernels; their `packed_bytes`, `code_bytes` and `checksum` are taken from `frames`, which belong to them by
// position.
std::vector<std::uint8_t> encode_bundle(BundleIndex index, std::vector<PackedCode> frames);

// Says how many bytes header, index and their checksum have together, which is what decode_index wants to see. Errors say
// what is wrong with the file, without its name.
Result<std::uint64_t> bundle_head_bytes(std::span<const std::uint8_t> header, std::uint64_t file_bytes);
Result<BundleIndex> decode_index(std::span<const std::uint8_t> head, std::uint64_t file_bytes);

}  // namespace flashjit
