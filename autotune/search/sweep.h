// Runs many tunings: on every session at once, and on a GPU with the next job compiled while one is measured.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "autotune/search/tune.h"

namespace flashjit {

// This is called once per finished job, one call at a time. If it returns false, no further job begins.
using JobDone = std::function<bool(std::size_t job, const Session& session, Result<TuneOutcome> outcome)>;

// Jobs begin in order. On the host nothing is compiled while a job is measured, because both need the cores.
void sweep(const std::vector<std::unique_ptr<Session>>& sessions, const std::vector<TuneJob>& jobs,
           const TuneOptions& options, const JobDone& done);

}  // namespace flashjit
