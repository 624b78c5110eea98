// Records hold what tunings found, and decide which schedule a spec gets. A record holds the schedule by value, so it
// does not depend on how this version lists candidates. A record that this version's kernels cannot follow is passed
// over.
//
// A file has one line per record: `name=value` fields separated by tabs. Other lines and unknown fields are skipped.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/choice/cost_model.h"
#include "compiler/result.h"
#include "compiler/spec/schedule.h"
#include "compiler/spec/spec.h"
#include "compiler/spec/target.h"

namespace flashjit {

// Times hold for one kind of machine: a kernel that is the fastest there may be the second best elsewhere.
struct Machine {
  std::string target;  // a row of the target table
  std::string device;  // for example "NVIDIA H200", or the processor's name
  int units = 0;       // number of SMs, or of threads
  std::string driver;  // CUDA version of the driver; empty on the host
};

struct GpuInfo;
Machine gpu_machine(const std::string& target, const GpuInfo& gpu, int driver_version);
Machine host_machine(const std::string& target, int threads);

struct TunedRecord {
  std::string spec;  // canonical text
  Machine machine;
  std::string version;  // version of the library that measured
  Shape shape;
  Schedule schedule;  // complete
  double us = 0, us_low = 0, us_high = 0, default_us = 0;
  std::string date;  // year, month and day, with hyphens
  bool operator==(const TunedRecord&) const;
};

std::string print(const TunedRecord& record);  // Returns the line without its end.
// Returns nothing for a comment and for a line that is damaged or cut off.
std::optional<TunedRecord> parse_tuned_record(std::string_view line);
// Parses the records of one spec alone if `spec` names one, because to look at all of them takes longer than to plan.
std::vector<TunedRecord> parse_tuned_records(std::string_view text, std::string_view spec = {});

// Parses the hint of PrepareOptions::shape, for example "b=4,q=4096,k=4096". b defaults to 1, and k to q.
Result<Shape> parse_shape_hint(std::string_view text);

// The class of a shape has every size rounded up to a power of two. Shapes of a class share schedules. Tuning and
// look-up both use this function, and records hold shapes, not classes, so the two cannot differ.
Shape rounded(const Shape& shape);
// Returns how many doublings lie between the two shapes, summed over all three sizes.
double doublings_apart(const Shape& a, const Shape& b);

// Returns the fields of the schedule that make results of `a` and `b` differ by rounding, or an empty text if there are
// none. A spec with numerics=deterministic or batch_invariant pins these fields: no tuning and no record changes them.
std::string_view changed_numerics(const Schedule& a, const Schedule& b);

// Returns the record that decides for a spec on a machine, or null if there is none and the model decides. In order:
//   1. The spec, target, device and number of units are equal, and the schedule is legal here and keeps the pinned
//   numerics class.
//   2. The shape's class is equal, or, with `shape` given, at most two doublings away in sum (b, q, k). Without
//   `shape` the assumed shape of the cost model is meant, and only its own class.
//   3. Among these the nearest class wins, then the nearest sizes, then this driver and library version, then the text
//   of the record.
// `untuned` is the model's own schedule, whose numerics a pinned class keeps. The order of `records` does not matter.
const TunedRecord* find_record(std::span<const TunedRecord> records, const AttentionSpec& spec, const Machine& machine,
                               const Target& target, const std::optional<Shape>& shape, const Schedule& untuned);

// Adds `news` to `records`, sorted by text. A newer record replaces one with the same spec, machine and shape.
std::vector<TunedRecord> merge(const std::vector<TunedRecord>& records, const std::vector<TunedRecord>& news);

// Returns the records that came with the library.
std::vector<TunedRecord> built_in_records();
// This structure holds the contents of a file that somebody named.
struct RecordFile {
  std::vector<TunedRecord> records;
  int others = 0;  // lines that are neither a record nor a comment
  // Comments that begin with kShardLine say which shards of a tuning the records are from.
  std::vector<std::string> shards = {};
};
inline constexpr std::string_view kShardLine = "#shard=";
// Error NotFound means that there is no file. Error Invalid means that the file has lines, but none is a record.
Result<RecordFile> read_records(const std::string& file);
// Writes as write_output does; an error names the file and the reason.
Result<void> write_records(const std::string& file, const std::vector<TunedRecord>& records,
                           const std::vector<std::string>& shards = {});
// Returns all records that a store path (see StorePath) has, and the built-in ones: own directory over layers over
// built-in. A file that cannot be read or is not to be trusted counts as absent.
std::vector<TunedRecord> stored_records(const std::string& store_path);
// Returns the same records as text. Among lines with the same spec, machine and shape the last one counts.
std::string stored_record_lines(const std::string& store_path);
// Adds records to the own directory of a store path, under its lock.
Result<void> store_records(const std::string& store_path, const std::vector<TunedRecord>& news);

}  // namespace flashjit
