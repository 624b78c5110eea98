#include "runtime/engine/host_library.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "runtime/compile/compiler_pass.h"
#include "runtime/driver/dynamic_library.h"
#include "runtime/engine/fork_safe_mutex.h"

namespace flashjit {
namespace {

constexpr const char* kLibrary = "libflashjit_host.so";

// Returns folders beside this library, or in the prefix of a program that contains it: PREFIX/bin/program.
std::vector<std::string> folders() {
  std::vector<std::string> found;
  for (const char* from_here : {".", "../lib", "../lib64", "../lib/x86_64-linux-gnu"}) {
    const auto folder = (std::filesystem::path(own_directory()) / from_here).lexically_normal();
    std::string path = folder.has_filename() ? folder.string() : folder.parent_path().string();
    if (std::ranges::find(found, path) == found.end()) found.push_back(std::move(path));
  }
  return found;
}

Error not_found(const std::string& tried) {
  return {ErrorKind::NotFound,
          fmt::format("the host backend ({}) was not found in {}, nor where the loader looks; put it there, or its "
                      "folder into LD_LIBRARY_PATH. A FlashJIT that has none was built without LLVM: install "
                      "llvm-19-dev and build it again, or use a GPU",
                      kLibrary, fmt::join(folders(), ", ")),
          "tried:\n" + tried};
}

// Returns why a library that was found does not fit this one, or an empty text if it fits.
std::string why_foreign(const DynamicLibrary& library) {
  const auto get = reinterpret_cast<const char* (*)()>(library.symbol(kHostInterfaceSymbol));
  const std::string_view theirs = get ? get() : "an older interface, which has no name";
  if (theirs == host_interface() && library.symbol(kHostBackendSymbol)) return {};
  return fmt::format(
      "the host backend {} is of another build of FlashJIT: it has {}, and this library (in {}) has {}; install both "
      "files of one build",
      library.path(), theirs, own_directory(), host_interface());
}

}  // namespace

Result<const HostLibrary*> host_library() {
  static ForkSafeMutex mutex;
  // It is never freed, because a thread may compile while static objects are destroyed.
  static const HostLibrary* opened = nullptr;
  const std::lock_guard lock(mutex);
  if (opened) return opened;
  std::error_code ignored;  // A file that cannot be examined counts as missing.
  std::vector<std::string> files = folders();
  for (std::string& file : files) file += std::string("/") + kLibrary;
  files.emplace_back(kLibrary);
  std::string tried, unusable;  // This is why the first existing file is not taken.
  for (const std::string& file : files) {
    const auto library = DynamicLibrary::open(file);
    std::string why = library ? why_foreign(*library) : library.error().message;
    if (!why.empty()) {
      tried += "  " + why + "\n";
      const bool is_there = library || (file != kLibrary && std::filesystem::exists(file, ignored));
      if (!library) why = fmt::format("the host backend {} cannot be opened: {}; install it again", file, why);
      if (is_there && unusable.empty()) unusable = std::move(why);
      continue;
    }
    HostBackend* const backend = reinterpret_cast<HostBackend* (*)()>(library->symbol(kHostBackendSymbol))();
    CompilerPass::library_was_loaded();
    return opened = new HostLibrary{
               *backend, fmt::format("llvm {} build {}", backend->llvm_version(), file_identity(library->path()))};
  }
  if (!unusable.empty()) return Error{ErrorKind::NotFound, std::move(unusable), "tried:\n" + tried};
  return not_found(tried);
}

}  // namespace flashjit
