#include "runtime/store/store.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>

namespace flashjit {
namespace {

constexpr std::chrono::seconds kEvictionWait{30};

}  // namespace

Result<StorePath> parse_store_path(const std::string& text) {
  struct stat info;
  if (text.find(':') != std::string::npos && ::stat(text.c_str(), &info) == 0) {
    return invalid(fmt::format(
        "store directory '{}': ':' separates directories, so a name cannot have one; rename the directory", text));
  }
  StorePath path;
  for (std::size_t begin = 0; begin <= text.size() && !text.empty();) {
    const std::size_t end = std::min(text.find(':', begin), text.size());
    std::string directory = text.substr(begin, end - begin);
    if (directory.empty()) {
      return invalid(fmt::format(
          "store directory '{}': an empty name; ':' separates the private directory and the shared ones after it",
          text));
    }
    if (begin == 0) {
      path.own = std::move(directory);
    } else {
      path.layers.push_back(std::move(directory));
    }
    begin = end + 1;
  }
  return path;
}

KernelStore::KernelStore(const StoreOptions& options) : options_(options), cap_(options.max_bytes) {
  if (!options_.disk) return;
  const auto path = parse_store_path(options_.directory);
  if (!path) {
    note("kernels are kept in memory only: " + path.error().message);
    return;
  }
  for (const std::string& directory : path->layers) {
    auto layer = StoreDirectory::open(directory, StoreDirectory::Access::Layer);
    if (layer) {
      layers_.push_back(std::move(*layer));
    } else {
      note("a shared layer of kernels is passed over: " + layer.error().message);
    }
  }
  auto directory = StoreDirectory::open(path->own);
  if (directory) {
    directory_ = std::move(*directory);
  } else {
    note("kernels are kept in memory only: " + directory.error().message);
  }
}

void KernelStore::note(const std::string& text) {
  const std::lock_guard lock(notes_mutex_);
  if (std::find(notes_.begin(), notes_.end(), text) == notes_.end()) notes_.push_back(text);
}

std::vector<std::string> KernelStore::notes() const {
  const std::lock_guard lock(notes_mutex_);
  return notes_;
}

Counters KernelStore::counters() const {
  return {.memory_hits = memory_hits_,
          .disk_hits = disk_hits_,
          .layer_hits = layer_hits_,
          .misses = misses_,
          .compiles = compiles_,
          .compile_failures = compile_failures_,
          .waits = waits_,
          .private_compiles = private_compiles_,
          .bad_entries = bad_entries_,
          .not_persisted = not_persisted_,
          .evictions = evictions_,
          .bytes_read = bytes_read_,
          .bytes_written = bytes_written_,
          .lookup_us = lookup_us_.read(),
          .compile_us = compile_us_.read()};
}

Result<KernelStore::Fetched> KernelStore::fetch(const StoreKey& key, const Make& make, const CompileBounds& bounds,
                                                const IsEnough& is_enough) {
  Fetched how{.source = "compiled"};
  const auto get = [&] {
    if (is_enough) memory_.forget_unless(key.digest, is_enough);
    return memory_.get(
        key.digest,
        [&]() -> Result<std::shared_ptr<const StoreEntry>> {
          FLASHJIT_ASSIGN(entry, find_or_make(key, make, bounds, is_enough, how));
          return std::make_shared<const StoreEntry>(std::move(entry));
        },
        bounds);
  };
  using How = SingleFlight<const StoreEntry>::How;
  auto outcome = get();
  // The caller that was waited for, or one that came between the two steps of `get`, may have been content with less.
  while (outcome.how != How::Made && outcome.value && is_enough && !is_enough(**outcome.value)) outcome = get();
  if (!outcome.value) return outcome.value.error();
  how.entry = std::move(*outcome.value);
  if (outcome.how == How::Memory) {
    ++memory_hits_;
    how.source = "memory";
  } else if (outcome.how == How::Waited) {
    ++waits_;
    how.source = "waited";
  }
  return how;
}

KernelStore::Fetched KernelStore::find(const StoreKey& key) {
  Fetched how;
  if (auto entry = memory_.find(key.digest)) {
    how.entry = std::move(entry);
    how.source = "memory";
  } else if (auto stored = look_on_disk(key, {}, how)) {
    how.entry = std::make_shared<const StoreEntry>(std::move(*stored));
    how.source = "disk";
  }
  return how;
}

Result<StoreEntry> KernelStore::find_or_make(const StoreKey& key, const Make& make, const CompileBounds& bounds,
                                             const IsEnough& is_enough, Fetched& how) {
  if (auto entry = look_on_disk(key, is_enough, how)) {
    how.source = "disk";
    return std::move(*entry);
  }
  ++misses_;
  if (!directory_) return make_and_publish(key, make);
  const auto lock = directory_->lock(key.digest, options_.lock_wait, bounds);
  if (auto over = bounds.over()) return std::move(*over);
  Fetched again;
  if (!lock) {
    ++private_compiles_;
    how.miss += "; " + lock.error().message;
  } else if (auto loaded = look_in(*directory_, key, is_enough, again)) {
    // Somebody published it between our first look and our lock.
    ++waits_;
    how.source = "waited";
    how.layer = directory_->path();
    return std::move(loaded->entry);
  }
  return make_and_publish(key, make);
}

std::optional<StoreDirectory::Loaded> KernelStore::look_in(const StoreDirectory& directory, const StoreKey& key,
                                                           const IsEnough& is_enough, Fetched& how,
                                                           const TrustedList* trusted) {
  StoreDirectory::Loaded loaded = directory.load(key.digest, trusted);
  const bool ours = loaded.lookup == StoreDirectory::Lookup::Hit && loaded.entry.key_text == key.text;
  if (ours && (!is_enough || is_enough(loaded.entry))) {
    bytes_read_ += static_cast<std::int64_t>(loaded.entry.payload.size());
    return loaded;
  }
  const bool bad = !ours && loaded.lookup != StoreDirectory::Lookup::Miss;
  if (bad) ++bad_entries_;
  how.miss += fmt::format("{}{} in {}", how.miss.empty() ? "" : "; ",
                          ours                                           ? "an entry that was never verified"
                          : !bad                                         ? "no entry"
                          : loaded.lookup == StoreDirectory::Lookup::Hit ? "an entry of another key"
                          : loaded.lookup == StoreDirectory::Lookup::Unlisted
                              ? "an entry that is not on the list of trusted files"
                              : "a damaged entry",
                          directory.path());
  return std::nullopt;
}

std::optional<StoreEntry> KernelStore::look_on_disk(const StoreKey& key, const IsEnough& is_enough, Fetched& how) {
  if (!directory_ && layers_.empty()) {
    how.miss = "kernels are kept in memory only";
    return std::nullopt;
  }
  const auto start = TimeCounter::Clock::now();
  std::optional<StoreDirectory::Loaded> loaded;
  const StoreDirectory* directory = nullptr;
  if (directory_ && (loaded = look_in(*directory_, key, is_enough, how))) {
    directory = &*directory_;
    directory_->refresh(key.digest, loaded->used_ns);
    ++disk_hits_;
  }
  for (auto layer = layers_.begin(); !loaded && layer != layers_.end(); ++layer) {
    if (!(loaded = look_in(*layer, key, is_enough, how, options_.trusted.get()))) continue;
    directory = &*layer;
    ++layer_hits_;
  }
  lookup_us_.add(TimeCounter::Clock::now() - start);
  if (!loaded) return std::nullopt;
  how.miss.clear();
  how.layer = directory->path();
  return std::move(loaded->entry);
}

Result<StoreEntry> KernelStore::make_and_publish(const StoreKey& key, const Make& make) {
  const auto start = TimeCounter::Clock::now();
  auto made = make();
  compile_us_.add(TimeCounter::Clock::now() - start);
  ++(made ? compiles_ : compile_failures_);
  if (!made) return made.error();
  StoreEntry& entry = *made;
  entry.key_text = key.text;
  if (directory_) {
    if (const auto published = directory_->publish(key.digest, entry)) {
      bytes_written_ += static_cast<std::int64_t>(entry.payload.size());
      evictions_ += cap_.published(*directory_, key.digest, *published);
    } else {
      ++not_persisted_;
      note("a kernel is kept in memory only: " + published.error().message);
    }
  } else if (options_.disk) {
    ++not_persisted_;
  }
  return std::move(entry);
}

Result<StoreStat> stat_store(const std::string& directory, StoreDirectory::Access access) {
  FLASHJIT_ASSIGN(opened, StoreDirectory::open(directory, access));
  StoreStat stat{.directory = directory};
  for (const auto& item : opened.list()) {
    ++stat.entries;
    stat.bytes += item.bytes;
    const std::int64_t used = item.used_ns / kNsPerSecond;
    stat.oldest_use = stat.entries == 1 ? used : std::min(stat.oldest_use, used);
    stat.newest_use = std::max(stat.newest_use, used);
  }
  return stat;
}

Result<std::vector<StoreListing>> list_store(const std::string& directory, StoreDirectory::Access access) {
  FLASHJIT_ASSIGN(opened, StoreDirectory::open(directory, access));
  std::vector<StoreListing> listings;
  for (const auto& item : opened.list()) {
    StoreListing listing{.digest = item.digest, .bytes = item.bytes, .used = item.used_ns / kNsPerSecond};
    auto loaded = opened.load(item.digest);
    listing.sound = loaded.lookup == StoreDirectory::Lookup::Hit;
    listing.key_text = std::move(loaded.entry.key_text);
    listing.facts = std::move(loaded.entry.facts);
    listings.push_back(std::move(listing));
  }
  return listings;
}

Result<int> remove_bad_entries(const std::string& directory) {
  FLASHJIT_ASSIGN(opened, StoreDirectory::open(directory, StoreDirectory::Access::Existing));
  int removed = 0;
  for (const auto& item : opened.list()) {
    if (opened.load(item.digest).lookup == StoreDirectory::Lookup::Bad) removed += opened.remove(item.digest);
  }
  opened.remove_temporaries(false);
  return removed;
}

Result<int> clear_store(const std::string& directory) {
  FLASHJIT_ASSIGN(opened, StoreDirectory::open(directory, StoreDirectory::Access::Existing));
  int removed = 0;
  for (const auto& item : opened.list()) removed += opened.remove(item.digest);
  opened.remove_temporaries(true);
  return removed;
}

Result<EvictionOutcome> prune_store(const std::string& directory, const EvictionGoal& goal) {
  FLASHJIT_ASSIGN(opened, StoreDirectory::open(directory, StoreDirectory::Access::Existing));
  const auto outcome = evict(opened, goal, kEvictionWait);
  if (outcome) return *outcome;
  return Error{
      ErrorKind::Io,
      fmt::format("{}: another process has been removing entries for {} s; is it stopped? try again when it is done",
                  directory, kEvictionWait.count()),
      {}};
}

}  // namespace flashjit
