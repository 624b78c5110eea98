// Bundles: the input as a file, as the index and the code of one whose lengths and checksums are right, and as a
// compressed kernel. And as a manifest. Whatever is accepted is what the writer writes.
#include "runtime/bundle/format.h"

#include <algorithm>

#include "runtime/bundle/manifest.h"
#include "tests/fuzz/fuzz.h"

using namespace flashjit;
using fuzz::require;

namespace {

using Bytes = std::vector<std::uint8_t>;
using View = std::span<const std::uint8_t>;

void check_file(const Bytes& file) {
  const View bytes = file;
  const auto head = bundle_head_bytes(bytes.first(std::min(file.size(), kBundleHeaderBytes)), file.size());
  if (!head) return;
  auto index = decode_index(bytes.first(*head), file.size());
  if (!index) return;
  std::vector<PackedCode> frames;
  for (const BundleItem& item : index->items) {
    require(item.offset <= file.size() && item.packed_bytes <= file.size() - item.offset, "code lies within the file",
            item.key.spec);
    const View frame = bytes.subspan(item.offset, item.packed_bytes);
    const auto code = unpack(item, frame);
    require(!code || code->size() == item.code_bytes, "code has the size the index says", item.key.spec);
    frames.push_back({item.code_bytes, Bytes(frame.begin(), frame.end())});
    if (sha256(frame) != item.checksum) return;  // found when the kernel is needed
  }
  require(encode_bundle(*index, std::move(frames)) == file, "an accepted bundle is what encode_bundle writes",
          index->templates);
}

// The first two bytes are the length of the index. A bundle of version 2 says which shards it has.
Bytes from_parts(View input, std::uint64_t version) {
  if (input.size() < 2) return {};
  const View parts = input.subspan(2);
  const std::size_t index = std::min<std::size_t>(input[0] + 256u * input[1], parts.size());
  Bytes file;
  const auto put = [&](std::uint64_t value, int bytes) {
    for (int i = 0; i < bytes; ++i) file.push_back(static_cast<std::uint8_t>(value >> (8 * i)));
  };
  const std::string_view magic = "FJBUNDLE";
  file.assign(magic.begin(), magic.end());
  put(version, 4);
  put(0, 4);
  put(kBundleHeaderBytes + parts.size() + kBundleChecksumBytes, 8);
  put(index, 8);
  file.insert(file.end(), parts.begin(), parts.begin() + static_cast<std::ptrdiff_t>(index));
  const auto digest = sha256(file);
  file.insert(file.end(), digest.begin(), digest.end());
  file.insert(file.end(), parts.begin() + static_cast<std::ptrdiff_t>(index), parts.end());
  return file;
}

// The first two bytes are the size of the code.
void check_frame(View input) {
  if (input.size() < 2) return;
  const View frame = input.subspan(2);
  const BundleItem item{
      .code_bytes = input[0] + 256u * input[1], .packed_bytes = frame.size(), .checksum = sha256(frame)};
  const auto code = unpack(item, frame);
  require(!code || code->size() == item.code_bytes, "code has the size the index says", "");
}

void check_manifest(std::string_view text) {
  const auto lines = parse_manifest(text, "fuzz");
  if (!lines) return;
  std::string again;
  for (const ManifestLine& line : *lines) again += print(line) + "\n";
  const auto second = parse_manifest(again, "again");
  require(second && second->size() == lines->size(), "what was printed has the same lines", text, again);
  for (std::size_t i = 0; i < lines->size(); ++i) {
    const ManifestLine &a = (*lines)[i], &b = (*second)[i];
    require(a.spec == b.spec && a.schedule == b.schedule && a.archs == b.archs, "a printed line reads as it was", text,
            again);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const Bytes input(data, data + size);
  check_file(input);
  for (const std::uint64_t version : {1, 2}) check_file(from_parts(input, version));
  check_frame(input);
  check_manifest(fuzz::text_of(data, size));
  return 0;
}
