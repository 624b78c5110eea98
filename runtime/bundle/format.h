// A bundle is one file of kernels that were built ahead of time, for several targets. It is only read. Its bytes are:
//   magic "FJBUNDLE" | u32 version | u32 0 | u64 bytes of the file | u64 bytes of the index | index | SHA-256 of all
//   that | code
// Numbers are little-endian, and the length of a text stands before it. For every kernel the index has the request that
// it answers, what is known about it, and where its code lies, with a SHA-256 of that code. The index is checked when a
// bundle is opened, code when it is needed. The code, one zstd frame per kernel, fills the rest of the file in the
// order of the index: frames do not overlap, and every byte belongs to one of them. Version 1 is a whole bundle. Only a
// bundle of shards has version 2, in which the index ends with a description of the shards.
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

// A key is a request in canonical form. The schedule that was taken in the end is a fact, because it may be another
// than the first choice.
struct BundleKey {
  std::string target, spec, pins;
  auto operator<=>(const BundleKey&) const = default;
};

struct BundleItem {
  BundleKey key;
  StoreFacts facts;              // for example "schedule", "registers", "source"; see bundle.h
  std::uint64_t code_bytes = 0;  // size of the cubin
  std::uint64_t offset = 0;      // position of its frame in the file; not stored, because it follows from the sizes
  std::uint64_t packed_bytes = 0;
  Sha256::Digest checksum = {};  // digest of the frame
};

// Several machines may build the kernels of a manifest: each builds a shard of them into a bundle of its own. Such a
// bundle describes the whole that it is a part of.
struct BundleShards {
  std::string whole;                   // digest of the keys of all kernels, whichever shard they are in (whole_of)
  std::uint32_t kernels = 0;           // number of all kernels
  std::uint32_t count = 0;             // number of all shards
  std::vector<std::uint32_t> numbers;  // the shards of this bundle: rising numbers from 1 to `count`
};

struct BundleIndex {
  std::string templates;          // digest of the kernel templates and parameter blocks that the code was made from
  std::vector<BundleItem> items;  // sorted by key, each once
  std::optional<BundleShards> shards = {};  // The bundle is whole if there are none.
};

// Returns the digest of keys, in whatever order they come.
std::string whole_of(std::vector<BundleKey> keys);

struct PackedCode {
  std::uint64_t code_bytes = 0;
  std::vector<std::uint8_t> frame;
};

inline constexpr std::uint32_t kMaxBundleShards = 10000;
inline constexpr std::size_t kBundleHeaderBytes = 32, kBundleChecksumBytes = 32;
inline constexpr std::uint64_t kMaxIndexBytes = std::uint64_t{256} << 20, kMaxCodeBytes = std::uint64_t{64} << 20;

PackedCode pack(std::span<const std::uint8_t> code);
// It is an error if the frame is damaged or is not the one that the index describes.
Result<std::vector<std::uint8_t>> unpack(const BundleItem& item, std::span<const std::uint8_t> frame);

// Sorts the kernels. Their `packed_bytes`, `code_bytes` and `checksum` come from `frames`, which are in the same order
// as the given items.
std::vector<std::uint8_t> encode_bundle(BundleIndex index, std::vector<PackedCode> frames);

// Returns how many bytes the header, the index and their checksum have together; decode_index takes that many. Errors
// tell what is wrong with the file, without its name.
Result<std::uint64_t> bundle_head_bytes(std::span<const std::uint8_t> header, std::uint64_t file_bytes);
Result<BundleIndex> decode_index(std::span<const std::uint8_t> head, std::uint64_t file_bytes);

}  // namespace flashjit
