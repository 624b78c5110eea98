#include "runtime/engine/environment.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <algorithm>
#include <charconv>
#include <utility>

namespace flashjit {
namespace {

std::string variable(const char* name) {
  const char* value = secure_getenv(name);
  return value ? value : "";
}

Result<bool> switched(const char* name, bool absent) {
  const std::string value = variable(name);
  if (value.empty()) return absent;
  if (value != "on" && value != "off")
    return invalid(fmt::format("{}: '{}' is not a value; use on or off", name, value));
  return value == "on";
}

// Splits paths at each ':'. An empty one between two of them is a slip, and would be looked for as a file without a name.
Result<std::vector<std::string>> listed(const char* name) {
  const std::string value = variable(name);
  std::vector<std::string> paths;
  for (std::size_t begin = 0; !value.empty() && begin <= value.size();) {
    const std::size_t end = std::min(value.find(':', begin), value.size());
    if (end == begin)
      return invalid(fmt::format("{}: '{}' has an empty path; write paths with one ':' between two", name, value));
    paths.push_back(value.substr(begin, end - begin));
    begin = end + 1;
  }
  return paths;
}

}  // namespace

Result<EnvironmentSettings> read_environment() {
  EnvironmentSettings settings;
  settings.cache_dir = variable("FLASHJIT_CACHE_DIR");
  if (settings.cache_dir.empty()) {
    // The XDG rule says that a relative path is ignored. A path with ':' is ignored too, because it would be taken for
    // two directories.
    const std::string xdg = variable("XDG_CACHE_HOME"), home = variable("HOME");
    const auto usable = [](const std::string& path) {
      return path.starts_with('/') && path.find(':') == std::string::npos;
    };
    if (usable(xdg)) {
      settings.cache_dir = xdg + "/flashjit";
    } else if (home.size() > 1 && usable(home)) {
      settings.cache_dir = home + "/.cache/flashjit";
    }
  }
  FLASHJIT_ASSIGN(jit, switched("FLASHJIT_JIT", true));
  settings.jit = jit;
  FLASHJIT_ASSIGN(line_info, switched("FLASHJIT_LINE_INFO", false));
  settings.line_info = line_info;
  FLASHJIT_ASSIGN(bundles, listed("FLASHJIT_BUNDLES"));
  settings.bundles = std::move(bundles);
  settings.record = variable("FLASHJIT_RECORD");
  settings.log_file = variable("FLASHJIT_LOG");
  settings.dump_dir = variable("FLASHJIT_DUMP_DIR");
  settings.trusted_list = variable("FLASHJIT_TRUSTED_LIST");
  settings.nvrtc = variable("FLASHJIT_NVRTC");
  if (const std::string threads = variable("FLASHJIT_THREADS"); !threads.empty()) {
    const char* end = threads.data() + threads.size();
    const auto parsed = std::from_chars(threads.data(), end, settings.threads);
    if (parsed.ec != std::errc{} || parsed.ptr != end || settings.threads < 1 || settings.threads > kMaxThreads) {
      return invalid(fmt::format("FLASHJIT_THREADS: '{}' is not a number from 1 to {}; unset it to use every core",
                                 threads, kMaxThreads));
    }
  }
  return settings;
}

}  // namespace flashjit
