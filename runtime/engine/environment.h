// The environment variables FlashJIT knows; nothing else reads one. In setuid programs all of them are ignored.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "compiler/result.h"

namespace flashjit {

struct EnvironmentSettings {
  // FLASHJIT_CACHE_DIR (a StorePath), else $XDG_CACHE_HOME/flashjit, else $HOME/.cache/flashjit; empty if none of these
  // is set.
  std::string cache_dir;
  // FLASHJIT_JIT=off, or an engine's jit=false, makes it false: a kernel that is in no bundle is an error then, and no
  // compiler is opened.
  bool jit = true;
  // FLASHJIT_BUNDLES has paths with ':' between them, for engines of GPUs that are given no bundles.
  std::vector<std::string> bundles;
  std::string record;    // FLASHJIT_RECORD names the manifest of engines that are given none.
  std::string log_file;  // FLASHJIT_LOG names a file that gets one line per prepare; "stderr" is the stream.
  std::string dump_dir;  // FLASHJIT_DUMP_DIR gets everything that prepare makes, one folder per kernel.
  // FLASHJIT_TRUSTED_LIST names digests of the files that bundles and shared directories may have.
  std::string trusted_list;
  std::string nvrtc;       // FLASHJIT_NVRTC names the library or a folder that holds it.
  bool line_info = false;  // FLASHJIT_LINE_INFO=on makes instructions of GPU code name their source lines.
  int threads = 0;         // FLASHJIT_THREADS; 0 if it is not set.
};

// Messages name the setting with these words.
inline constexpr std::string_view kNoJit = "FLASHJIT_JIT=off (or jit=false)";

inline constexpr int kMaxThreads = 1024;

// Reads the environment. Whoever is at the edge, an engine when it is created or a command, calls this once and passes
// the settings on. A value out of its range is an error that names the variable.
Result<EnvironmentSettings> read_environment();

}  // namespace flashjit
