// A shard of a tuning has the problems that one machine takes, and its file of records states that.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "autotune/search/tune.h"
#include "runtime/tuned/records.h"
#include "tools/fleet/completeness.h"
#include "tools/fleet/shard.h"

namespace flashjit {

struct TuneShard {
  Shard shard;
  int problems = 0;   // number of problems of all shards
  std::string whole;  // digest of these problems
  Machine machine;    // Records of another kind of machine do not complete these.
  std::string version;
  bool ended = false;  // All problems of the shard have been tuned.
};

// The text is a line of a file of records, which begins with kShardLine, without its end.
std::string print(const TuneShard& shard);
std::optional<TuneShard> parse_tune_shard(std::string_view line);
// Returns the shards of a file with the line. A shard that has not ended does not count.
HeldShards held_shards(const TuneShard& shard, const std::string& file);
std::string empty_text(const TuneShard& shard);  // for a shard without problems

// Predicts the milliseconds of a problem. Each gets the same seconds, and large ones take longer because of the rounds
// that are made in any case. Machine, schedule and budget do not count, because a shard that is tuned again must be the
// same.
std::uint64_t tune_cost(const TuneJob& job);

// Takes the problems of other shards out of `jobs`.
TuneShard take_shard(const Shard& shard, const Machine& machine, std::vector<TuneJob>& jobs);

// Returns the lines of a file with this shard in place of an earlier line about such a machine, even if that was about
// a shard of other problems: the file is now that of these.
std::vector<std::string> with_shard(const std::vector<std::string>& lines, const TuneShard& shard);

}  // namespace flashjit
