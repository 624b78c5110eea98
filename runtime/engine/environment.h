// The environment variables FlashJIT knows; nothing else reads one. In setuid programs all of them are ignored.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "compiler/result.h"

namespace flashjit {

struct EnvironmentSettings {
  std::string cache_dir;  // FLASHJIT_CACHE_DIR (a StorePath), else $XDG_CACHE_HOME/flashjit, else
                          // $HOME/.cache/flashjit; empty: none of them
  bool jit = true;        // FLASHJIT_JIT=off, or an engine's jit=false: what is in no bundle is an error, and no
                          // compiler is opened
  std::vector<std::string>
      bundles;               // FLASHJIT_BUNDLES: paths with ':' between them, for engines of GPUs that are given
                             // no bundles
  std::string record;        // FLASHJIT_RECORD: the manifest of engines that are given none
  std::string log_file;      // FLASHJIT_LOG: one line per prepare is appended; "stderr" is the stream
  std::string dump_dir;      // FLASHJIT_DUMP_DIR: everything that prepare makes, one folder per kernel
  std::string trusted_list;  // FLASHJIT_TRUSTED_LIST: digests of the files that bundles and shared directories may have
  std::string nvrtc;         // FLASHJIT_NVRTC: the library or a folder that holds it
  bool line_info = false;    // FLASHJIT_LINE_INFO=on: code of GPUs names the lines that it was made of
  int threads = 0;           // FLASHJIT_THREADS; 0: not set
};

inline constexpr std::string_view kNoJit = "FLASHJIT_JIT=off (or jit=false)";  // for messages

inline constexpr int kMaxThreads = 1024;

// Read once by whoever is at the edge, an engine when it is created or a command, and passed on from there. Error: a
// value that is out of its range, with the variable's name.
Result<EnvironmentSettings> read_environment();

}  // namespace flashjit
