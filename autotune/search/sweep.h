// Many tunings: on every session at once, and on a GPU with the next job compiled while one is measured.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "autotune/search/tune.h"

namespace flashjit {

// Called once per job that is done, one call at a time; false: begin no further one.
using JobDone = std::function<bool(std::size_t job, const Session& session, Result<TuneOutcome> outcome)>;

// Jobs are begun in order. On the host nothing is compiled while something is measured: both need the cores.
void sweep(const std::vector<std::unique_ptr<Session>>& sessions, const std::vector<TuneJob>& jobs,
           const TuneOptions& options, const JobDone& done);

}  // namespace flashjit
