// Where a tuning's records go, and what is known already; and the records of files put together.
#pragma once

#include <string>
#include <vector>

#include "autotune/search/session.h"
#include "runtime/store/directory.h"
#include "runtime/tuned/records.h"
#include "tools/support/output.h"

namespace flashjit {

// Who keeps the records of tunings: a file, or the store.
class RecordKeeper {
 public:
  // A file, which may be a new one; or, where none is named, the store.
  static Result<RecordKeeper> open(const std::string& file, const EnvironmentSettings& settings);

  std::string journal(const std::string& digest) const;
  std::vector<TunedRecord> known() const;
  // Two tunings on one device would measure each other. Held until the handle goes; nothing where there is no store, or
  // no locks.
  Result<FileHandle> hold(const Session& session) const;
  Result<void> add(const std::vector<TunedRecord>& records) const;

  // Lines that say of which shards the records are. A store has none, for it has records of everything.
  std::vector<std::string> shards() const;
  Result<void> set_shards(const std::vector<std::string>& lines) const;

 private:
  RecordFile contents() const;  // of the file; nothing while it is not there
  std::string file_, store_, folder_;
};

// For a command: `file` names the keeper of records, and is empty for the store.
Result<void> export_records(const std::string& file, const std::string& to);
// Errors: shards that are missing in the files and with the keeper, unless `partial` allows that; problems that two of the
// files have, with other records, where there are shards.
Result<void> merge_records(const std::string& file, const std::vector<std::string>& from, bool partial, Output& output);

}  // namespace flashjit
