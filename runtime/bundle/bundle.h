// Bundles on disk, and what an engine finds in them. A kernel is found by what was asked for: spec, pins and target. No
// compiler is needed for that, nor its name: what must agree is the source, which this library generates anew and
// compares by its digest.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/bundle/format.h"
#include "runtime/bundle/manifest.h"
#include "runtime/compile/compile.h"
#include "runtime/store/directory.h"
#include "runtime/store/trusted_list.h"

namespace flashjit {

// One file. It is read, not mapped: a mapped file that somebody cuts short ends the process.
class Bundle {
 public:
  // Checks the index; with a list, the whole file must be on it. Error messages begin with the path.
  static Result<std::shared_ptr<const Bundle>> open(const std::string& path, const TrustedList* trusted = nullptr);

  const std::string& path() const { return path_; }
  const BundleIndex& index() const { return index_; }
  const BundleItem* find(const BundleKey& key) const;                     // null: not in here
  Result<std::vector<std::uint8_t>> frame(const BundleItem& item) const;  // as it is in the file; not checked
  Result<std::vector<std::uint8_t>> code(const BundleItem& item) const;   // checked
  Result<void> check_trusted() const;  // a kernel is code: nobody but this user and root may be able to write it

 private:
  Bundle() = default;
  Result<void> check_listed(std::span<const std::uint8_t> head, const TrustedList& trusted) const;
  std::string path_;
  FileHandle file_;
  BundleIndex index_;
};

// The bytes of encode_bundle to `path`. Whatever the umask, only the owner may write the file: else no engine would trust
// it.
Result<void> write_bundle(const std::string& path, std::span<const std::uint8_t> bytes);

// The key under which a kernel is found: spec and pins in canonical text.
BundleKey bundle_key(const Request& request);
// A kernel as it goes into a bundle; `compiler`: its identity, for people.
BundleItem bundle_item(const BundleKey& key, const Compiled& compiled, std::string_view compiler);
// Checks all that can be told of a kernel without a GPU: its bytes are those that were written, and a cubin for its
// target. If this version of the library made the kernel, the check is also that its spec is the one it is found by,
// that its source is what would be made for it, and that it has the entries that are launched.
Result<void> check_kernel(const Bundle& bundle, const BundleItem& item);
// Returns the digest of this library's templates. A bundle with another digest is not used, because its kernels may
// take their parameters in another way.
std::string templates_digest();

// These are the bundles of an engine, in the order in which kernels are looked up in them.
class Bundles {
 public:
  // Error: one of them is damaged, not to be trusted, not on the list if there is one, or made by another version of
  // the library.
  static Result<Bundles> open(const std::vector<std::string>& paths, const TrustedList* trusted = nullptr);
  bool empty() const { return bundles_.empty(); }
  std::span<const std::shared_ptr<const Bundle>> all() const { return bundles_; }

  // Nothing: no bundle has it. Error: the one that has it is damaged, or its code is not what this library would make.
  Result<std::optional<Compiled>> find(const Request& request) const;

  // Why there is no kernel: what the bundles hold instead, and the command that builds it.
  Error missing(const Request& request) const;
  // Error: the bundles hold nothing for `target`; it says what they hold.
  Result<void> check_target(std::string_view target) const;
  // Error NotFound: all lines of the manifest for `target` that are in no bundle, and the command that builds them.
  Result<void> check_manifest(const std::string& path, std::string_view target) const;

 private:
  bool has(const BundleKey& key) const;
  std::string targets() const;  // "sm_80, sm_90a"
  std::vector<std::shared_ptr<const Bundle>> bundles_;
};

}  // namespace flashjit
