// An engine finds kernels in bundles on disk. It looks them up by what was asked for: spec, pins and target. That needs
// no compiler, and not even its name. The source has to agree: this library generates it anew and compares its digest.
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

// A bundle is one file. It is read, not mapped, because a mapped file that somebody cuts short ends the process.
class Bundle {
 public:
  // Checks the index. If there is a list, the whole file must be on it. Error messages begin with the path.
  static Result<std::shared_ptr<const Bundle>> open(const std::string& path, const TrustedList* trusted = nullptr);

  const std::string& path() const { return path_; }
  const BundleIndex& index() const { return index_; }
  const BundleItem* find(const BundleKey& key) const;  // Returns null if the bundle has no such kernel.
  Result<std::vector<std::uint8_t>> frame(const BundleItem& item) const;  // Returns the bytes of the file, unchecked.
  Result<std::vector<std::uint8_t>> code(const BundleItem& item) const;   // Returns code that has been checked.
  // Checks that nobody but this user and root may write the file, because a kernel is code.
  Result<void> check_trusted() const;

 private:
  Bundle() = default;
  Result<void> check_listed(std::span<const std::uint8_t> head, const TrustedList& trusted) const;
  std::string path_;
  FileHandle file_;
  BundleIndex index_;
};

// Writes the bytes of encode_bundle to `path`. Only the owner may write the file, whatever the umask, because no engine
// would trust it otherwise.
Result<void> write_bundle(const std::string& path, std::span<const std::uint8_t> bytes);

// Returns the key under which a kernel is found: its spec and pins in canonical text.
BundleKey bundle_key(const Request& request);
// Makes the item of a bundle for a kernel. People can read there which compiler made it: `compiler` is its identity.
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
  // It is an error if one of the bundles is damaged, is not to be trusted, is missing from the list if there is one, or
  // was made by another version of the library.
  static Result<Bundles> open(const std::vector<std::string>& paths, const TrustedList* trusted = nullptr);
  bool empty() const { return bundles_.empty(); }
  std::span<const std::shared_ptr<const Bundle>> all() const { return bundles_; }

  // Returns nothing if no bundle has the kernel. It is an error if the bundle that has it is damaged, or if its code is
  // not what this library would make.
  Result<std::optional<Compiled>> find(const Request& request) const;

  // Makes the error for a kernel that is missing: it tells what the bundles hold instead, and which command builds the
  // kernel.
  Error missing(const Request& request) const;
  // It is an error if the bundles hold nothing for `target`; the message tells what they hold.
  Result<void> check_target(std::string_view target) const;
  // Error NotFound lists all lines of the manifest for `target` that are in no bundle, and the command that builds
  // them.
  Result<void> check_manifest(const std::string& path, std::string_view target) const;

 private:
  bool has(const BundleKey& key) const;
  std::string targets() const;  // for example "sm_80, sm_90a"
  std::vector<std::shared_ptr<const Bundle>> bundles_;
};

}  // namespace flashjit
