#include "runtime/engine/kernel_table.h"

#include <sched.h>

#include <functional>

namespace flashjit {
namespace {

// Everybody who gets a kernel counts as an owner. With a single counter, threads would wait for each other there. So
// each kernel has several counters, and a thread takes the one of its processor.
constexpr unsigned kOwners = 16;
constexpr std::size_t kCacheLine = 64;

struct Owner {
  std::shared_ptr<Kernel> kernel;
  // Each counter is allocated beside this padding, so that no two of them share a cache line.
  char apart[kCacheLine] = {};
  void operator()(Kernel*) const {}
};

std::size_t hash_of(std::string_view spec, std::string_view schedule) {
  constexpr std::hash<std::string_view> hash;
  return hash(spec) ^ hash(schedule) * 31;  // Most schedules are empty.
}

}  // namespace

struct KernelTable::Owners {
  std::array<std::shared_ptr<Kernel>, kOwners> all;
};

struct KernelTable::Entry {
  std::size_t hash;
  std::string spec, schedule;
  const Owners& owners;
  const Entry* next;
};

KernelTable::KernelTable() = default;

KernelTable::~KernelTable() {
  for (std::atomic<const Entry*>& bucket : buckets_) {
    for (const Entry* entry = bucket.load(std::memory_order_relaxed); entry;) {
      const std::unique_ptr<const Entry> done(entry);
      entry = done->next;
    }
  }
}

std::shared_ptr<Kernel> KernelTable::find(std::string_view spec, std::string_view schedule) const {
  const std::size_t hash = hash_of(spec, schedule);
  for (const Entry* entry = buckets_[hash % kBuckets].load(std::memory_order_acquire); entry; entry = entry->next) {
    if (entry->hash != hash || entry->spec != spec || entry->schedule != schedule) continue;
    return entry->owners.all[static_cast<unsigned>(sched_getcpu()) % kOwners];
  }
  return nullptr;
}

void KernelTable::add(std::string_view spec, std::string_view schedule, const std::shared_ptr<Kernel>& kernel) {
  const std::lock_guard lock(adding_);
  if (find(spec, schedule)) return;
  std::unique_ptr<const Owners>& owners = owners_[kernel.get()];
  if (!owners) {
    auto made = std::make_unique<Owners>();
    for (std::shared_ptr<Kernel>& owner : made->all) owner = std::shared_ptr<Kernel>(kernel.get(), Owner{kernel});
    owners = std::move(made);
  } else {
    const std::size_t bytes = spec.size() + schedule.size();
    if (others_ == kMostOthers || bytes > kMostOtherBytes - other_bytes_) return;
    ++others_;
    other_bytes_ += bytes;
  }
  const std::size_t hash = hash_of(spec, schedule);
  std::atomic<const Entry*>& bucket = buckets_[hash % kBuckets];
  auto entry = std::make_unique<Entry>(
      Entry{hash, std::string(spec), std::string(schedule), *owners, bucket.load(std::memory_order_relaxed)});
  bucket.store(entry.release(), std::memory_order_release);
}

}  // namespace flashjit
