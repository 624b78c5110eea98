// The journal says what a run of `tune` has done so far, so that one that was ended goes on where it was: a file of
// lines, one per finished spec. A line is written whole; a last line that a killed process left incomplete is skipped.
#pragma once

#include <map>
#include <string>

#include "runtime/store/directory.h"
#include "tools/support/output.h"

namespace flashjit {

class Journal {
 public:
  // Reads what is there, and locks the file: two runs of the same command would do everything twice. Results have the
  // shape of `example`, or are passed over and counted.
  static Result<Journal> open(const std::string& path, const Json& example);
  const Json* find(const std::string& key) const;  // null: not done
  std::size_t size() const { return done_.size(); }
  std::size_t strange() const { return strange_; }  // lines of another shape
  Result<void> add(const std::string& key, const Json& result);
  void remove();  // the run is complete

 private:
  std::string path_;
  FileHandle file_;
  std::map<std::string, Json> done_;
  std::size_t strange_ = 0;
};

}  // namespace flashjit
