// The blocks of a persistent launch take their items from counters (KernelParams::work_counters). A kernel leaves its
// pair of counters at zero, so nothing has to be done between launches.
//
// Two launches that run at the same time must never have the same pair: each would do a part of the items, and results
// would be wrong without an error. A ring of pairs only makes that unlikely: a launch may wait behind an event for as
// long as it takes others to go once around. So what the driver guarantees decides who may share a pair:
// - Launches on one stream run one after the other, and a stream's id is never given again, unlike its handle. Every
//   stream has its pair.
// - A launch recorded in a graph may be replayed on any stream, beside launches on the stream it was recorded on,
//   as long as the graph lives, and two launches of one graph may run side by side. Each gets a pair that no other launch ever
//   gets. (A replay waits for the one before. If a graph is instantiated twice and both run at a time, they write the
//   same outputs at the same time, which is the caller's mistake with or without counters.)
// Pairs are not taken back, because nothing says when a stream or a graph is gone. A launch that gets none has its
// items dealt out evenly, which is right as well, and slower where items are uneven.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "compiler/plan.h"
#include "compiler/result.h"
#include "runtime/driver/device_memory.h"
#include "runtime/driver/driver.h"

namespace flashjit {

// Gives pairs to streams and launches, by numbers only. Any number of threads may ask at the same time, and none waits.
class CounterSlots {
 public:
  static constexpr int kStreams = 1 << 14, kGraphLaunches = 1 << 13;
  static constexpr int kPairs = kStreams + kGraphLaunches;

  CounterSlots() : streams_(kStreams) {}
  // Returns the pair of a stream, which is always the same and no other stream's, or -1 if none is left.
  int of_stream(std::uint64_t id);
  // Returns a new pair with every call, or -1 if none is left.
  int of_graph_launch();

 private:
  std::vector<std::atomic<std::uint64_t>> streams_;  // This is a hash table of ids plus one; 0 is free.
  std::atomic<int> graph_launches_ = 0;
};

// The pairs of one GPU lie in its memory (192 KB), for all kernels of an engine.
class WorkCounters {
 public:
  // When this returns, all counters are zero for launches on any stream.
  static Result<std::shared_ptr<WorkCounters>> create(const GpuContext& gpu);
  // Returns the pair for a launch on this stream, or null if items are to be dealt out evenly. The context must be
  // current.
  Result<int*> take(CuStream stream);

 private:
  WorkCounters(const GpuContext& gpu, DeviceBuffer memory) : gpu_(gpu), memory_(std::move(memory)) {}
  GpuContext gpu_;
  DeviceBuffer memory_;
  CounterSlots slots_;
};

// Returns whether kernels of this plan take their items from counters.
bool takes_items(const Plan& plan);

}  // namespace flashjit
