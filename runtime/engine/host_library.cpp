#include "runtime/engine/host_library.h"

#include <mutex>

#include "runtime/compile/compiler_pass.h"
#include "runtime/driver/dynamic_library.h"

namespace flashjit {

Result<HostBackend*> host_backend() {
  static std::mutex mutex;
  static HostBackend* opened = nullptr;
  const std::lock_guard lock(mutex);
  if (opened) return opened;
  std::string tried;
  const std::string own = own_directory();
  for (const std::string& place :
       {own + "/libflashjit_host.so", own + "/../lib/libflashjit_host.so", std::string("libflashjit_host.so")}) {
    const auto library = DynamicLibrary::open(place);
    if (!library) {
      tried += "  " + library.error().message + "\n";
      continue;
    }
    const auto get = reinterpret_cast<HostBackend* (*)()>(library->symbol(kHostBackendSymbol));
    if (HostBackend* backend = get ? get() : nullptr) {
      CompilerPass::library_was_loaded();
      return opened = backend;
    }
    tried += "  " + library->path() + ": of another version of FlashJIT, it has no " + kHostBackendSymbol + "\n";
  }
  return Error{
      ErrorKind::NotFound,
      "the host backend (libflashjit_host.so) was not found; install llvm-19-dev and build FlashJIT again, or use a GPU",
      "tried:\n" + tried};
}

}  // namespace flashjit
