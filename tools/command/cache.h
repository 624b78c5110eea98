// The parts of `flashjit cache` share these functions.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

#include "runtime/engine/environment.h"
#include "runtime/store/store.h"

namespace flashjit {

// Returns the directories of the store, from `directory`, or else from the settings.
Result<StorePath> store_path(const std::string& directory, const EnvironmentSettings& settings);

inline constexpr const char* kDirHelp =
    "The store: a directory, then shared ones after ':' (default: FLASHJIT_CACHE_DIR, then $XDG_CACHE_HOME/flashjit, then ~/.cache/flashjit)";

// Returns a fact that an entry states about its kernel, or "" if it does not.
std::string fact(const StoreListing& entry, const char* name);

void add_cache_explain(CLI::App& cache, int& exit_code);

}  // namespace flashjit
