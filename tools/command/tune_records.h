// The records of a tuning go here, and known records come from here. Records of several files can be put together.
#pragma once

#include <string>
#include <vector>

#include "autotune/search/session.h"
#include "runtime/store/directory.h"
#include "runtime/tuned/records.h"
#include "tools/support/output.h"

namespace flashjit {

// The keeper of records is a file, or the store.
class RecordKeeper {
 public:
  // Opens a file, which may be a new one, or the store if no file is named.
  static Result<RecordKeeper> open(const std::string& file, const EnvironmentSettings& settings);

  std::string journal(const std::string& digest) const;
  std::vector<TunedRecord> known() const;
  // Two tunings on one device would measure each other. The device is held until the handle goes. Nothing is held if
  // there is no store, or if it has no locks.
  Result<FileHandle> hold(const Session& session) const;
  Result<void> add(const std::vector<TunedRecord>& records) const;

  // These lines tell which shards the records belong to. A store has none, because it has records of everything.
  std::vector<std::string> shards() const;
  Result<void> set_shards(const std::vector<std::string>& lines) const;

 private:
  RecordFile contents() const;  // Returns the contents of the file, which are empty while it does not exist.
  std::string file_, store_, folder_;
};

// For these functions `file` names the keeper of records, and is empty for the store.
Result<void> export_records(const std::string& file, const std::string& to);
// It is an error if shards are missing in the files and with the keeper, unless `partial` allows that, or, where there
// are shards, if two of the files have different records for a problem.
Result<void> merge_records(const std::string& file, const std::vector<std::string>& from, bool partial, Output& output);

}  // namespace flashjit
