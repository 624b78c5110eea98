#include "tools/command/tune_records.h"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "compiler/spec/text_form.h"
#include "runtime/engine/environment.h"
#include "runtime/store/key.h"
#include "runtime/store/store.h"
#include "tools/fleet/completeness.h"
#include "tools/fleet/tune_shard.h"

namespace flashjit {
namespace {

struct NamedRecords {
  std::string name;
  RecordFile file;
};

std::string problem_of(const TunedRecord& record) {
  return fmt::format("{} at {} on {}", record.spec, print(record.shape), record.machine.device);
}

// One problem has one record in all the shards. Two files that have it come from one shard that was tuned twice.
Result<void> check_same(const std::vector<NamedRecords>& files) {
  std::map<std::string, std::pair<std::string, const TunedRecord*>> first;
  for (const auto& [name, file] : files) {
    for (const TunedRecord& record : file.records) {
      const std::string id = fmt::format("{} {} {}", problem_of(record), record.machine.target, record.machine.units);
      const auto [there, is_new] = first.try_emplace(id, name, &record);
      const auto& [earlier, other] = there->second;
      if (is_new || *other == record) continue;
      return invalid(fmt::format(
          "--merge: {} and {} have different records of {}: {:.1f} us with {}, {:.1f} us with {}; "
          "a shard was tuned twice, so name one of the two files",
          earlier, name, problem_of(record), other->us, print(other->schedule), record.us, print(record.schedule)));
    }
  }
  return {};
}

Result<std::vector<HeldShards>> held_by(const std::string& name, const std::vector<std::string>& lines) {
  std::vector<HeldShards> held;
  for (const std::string& line : lines) {
    const auto shard = parse_tune_shard(line);
    if (!shard)
      return invalid(
          fmt::format("--merge: {}: its line '{}' does not say of which shard its records are; tune the shard "
                      "again, or remove the line to merge the file without a check",
                      name, line.substr(0, 80)));
    held.push_back(held_shards(*shard, name));
  }
  return held;
}

}  // namespace

Result<RecordKeeper> RecordKeeper::open(const std::string& file, const EnvironmentSettings& settings) {
  RecordKeeper keeper;
  keeper.file_ = file;
  keeper.store_ = settings.cache_dir;
  if (!keeper.file_.empty()) {
    // The file will be replaced, so it must not be a file of another kind.
    const auto there = read_records(keeper.file_);
    if (!there && there.error().kind != ErrorKind::NotFound) return there.error();
    return keeper;
  }
  auto path = parse_store_path(keeper.store_);
  if (keeper.store_.empty() || !path) {
    return Error{
        ErrorKind::NotFound, fmt::format("no folder for records: {} or give --records FILE", kNoDirectory), {}};
  }
  // This creates the directory, and reports errors now that would come after the work otherwise.
  FLASHJIT_TRY(StoreDirectory::open(path->own));
  keeper.folder_ = path->own + "/v1/";
  return keeper;
}

std::string RecordKeeper::journal(const std::string& digest) const {
  return file_.empty() ? fmt::format("{}tune-{}.journal", folder_, digest)
                       : fmt::format("{}.{}.journal", file_, digest);
}

RecordFile RecordKeeper::contents() const {
  auto there = file_.empty() ? Result<RecordFile>(RecordFile()) : read_records(file_);
  return there ? std::move(*there) : RecordFile();
}

std::vector<TunedRecord> RecordKeeper::known() const {
  return file_.empty() ? stored_records(store_) : contents().records;
}

Result<FileHandle> RecordKeeper::hold(const Session& session) const {
  if (!file_.empty()) return FileHandle();
  KeyBuilder key;
  key.field("tuning on", session.uuid());
  const std::string file = fmt::format("{}tune-{}.lock", folder_, key.finish().digest.substr(0, 16));
  FileHandle handle(::open(file.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!handle || ::flock(handle.get(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) return handle;
  return Error{
      ErrorKind::Io,
      fmt::format("a tuning is already running on {}, and the two would measure each other; wait for it, or end it",
                  session.machine().device),
      {}};
}

Result<void> RecordKeeper::add(const std::vector<TunedRecord>& records) const {
  if (file_.empty()) return store_records(store_, records);
  const RecordFile there = contents();
  return write_records(file_, merge(there.records, records), there.shards);
}

std::vector<std::string> RecordKeeper::shards() const { return contents().shards; }

Result<void> RecordKeeper::set_shards(const std::vector<std::string>& lines) const {
  if (file_.empty()) return {};
  return write_records(file_, contents().records, lines);
}

Result<void> export_records(const std::string& file, const std::string& to) {
  FLASHJIT_ASSIGN(settings, read_environment());
  FLASHJIT_ASSIGN(keeper, RecordKeeper::open(file, settings));
  return write_records(to, keeper.known());
}

Result<void> merge_records(const std::string& file, const std::vector<std::string>& from, bool partial,
                           Output& output) {
  FLASHJIT_ASSIGN(settings, read_environment());
  FLASHJIT_ASSIGN(keeper, RecordKeeper::open(file, settings));
  std::vector<std::string> lines = keeper.shards();
  FLASHJIT_ASSIGN(held, held_by(file, lines));
  std::vector<NamedRecords> files;
  std::vector<TunedRecord> records;
  for (const std::string& name : from) {
    FLASHJIT_ASSIGN(found, read_records(name));
    FLASHJIT_ASSIGN(own, held_by(name, found.shards));
    held.insert(held.end(), own.begin(), own.end());
    lines.insert(lines.end(), found.shards.begin(), found.shards.end());
    records.insert(records.end(), found.records.begin(), found.records.end());
    files.push_back({name, std::move(found)});
  }
  if (!held.empty()) FLASHJIT_TRY(check_same(files));
  const auto complete = check_complete(held);
  if (!complete && !partial) return complete.error();
  FLASHJIT_TRY(keeper.add(records));
  std::ranges::sort(lines);
  lines.erase(std::unique(lines.begin(), lines.end()), lines.end());
  FLASHJIT_TRY(keeper.set_shards(complete ? std::vector<std::string>() : lines));
  for (const auto& [name, found] : files) {
    if (found.others > 0)
      say_note(fmt::format("{}: passed over {} without a tuning record of this version", name,
                           counted(found.others, "line")));
  }
  if (!complete) say_note(complete.error().message);
  output.text(counted(records.size(), "record") + " merged\n");
  return {};
}

}  // namespace flashjit
