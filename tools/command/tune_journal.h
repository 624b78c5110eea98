// The journal records what a run of `tune` has done so far, so that a run that was ended can go on. It is a file of
// lines, one per finished spec. A line is written whole, and a last line that a killed process left incomplete is
// skipped.
#pragma once

#include <map>
#include <string>

#include "runtime/store/directory.h"
#include "tools/support/output.h"

namespace flashjit {

class Journal {
 public:
  // Reads the file, and locks it: two runs of the same command would do everything twice. Results that do not have the
  // shape of `example` are passed over and counted.
  static Result<Journal> open(const std::string& path, const Json& example);
  const Json* find(const std::string& key) const;  // Returns null if the job is not done.
  std::size_t size() const { return done_.size(); }
  std::size_t strange() const { return strange_; }  // number of lines of another shape
  Result<void> add(const std::string& key, const Json& result);
  void remove();  // The run is complete.

 private:
  std::string path_;
  FileHandle file_;
  std::map<std::string, Json> done_;
  std::size_t strange_ = 0;
};

}  // namespace flashjit
