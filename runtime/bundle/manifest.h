// Manifests are texts that list the kernels that are wanted, one per line. `flashjit build` reads them, and recordings
// write them. For example:
//
//   # a comment
//   fwd bf16 d=128 heads=32/8 mask="causal"
//   fwd bf16 d=64 heads=8 ;; schedule=family=sync,tile_q=64 ;; arch=sm_80,sm_90a
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "compiler/result.h"

namespace flashjit {

struct ManifestLine {
  std::string spec, schedule;      // as written; the schedule pins the fields that it names
  std::vector<std::string> archs;  // If empty, the command's targets are meant.
  int number = 0;                  // number of the line, from 1 on
  bool operator==(const ManifestLine&) const = default;
};

// The contents of specs and schedules are not checked. Errors begin with `name` and the number of the line.
Result<std::vector<ManifestLine>> parse_manifest(std::string_view text, std::string_view name);
Result<std::vector<ManifestLine>> read_manifest(const std::string& path);
std::string print(const ManifestLine& line);  // Returns the line without its end.

// Appends kernels that were prepared, each line once. Several processes may record into one file.
class Recorder {
 public:
  static Result<Recorder> open(const std::string& path);  // Creates the file, and folders above it.
  Result<void> add(const ManifestLine& line) const;

 private:
  explicit Recorder(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

}  // namespace flashjit
