#include "runtime/launch/work_counters.h"

#include <algorithm>

namespace flashjit {
namespace {

constexpr int kProbes = 32;  // A stream gets no pair if none of this many slots is free.
constexpr int kPairInts = 2;

}  // namespace

int CounterSlots::of_stream(std::uint64_t id) {
  const std::uint64_t key = id + 1;
  // Ids are small consecutive numbers, so they are scattered.
  const std::uint64_t home = key * 0x9e3779b97f4a7c15ull >> 32;
  for (std::uint64_t i = 0; i < kProbes; ++i) {
    const std::uint64_t slot = (home + i) % kStreams;
    std::uint64_t found = streams_[slot].load(std::memory_order_relaxed);
    if (found == key) return static_cast<int>(slot);
    // Two threads may launch on a new stream at once. The second one finds the key in `found`.
    if (found == 0 && (streams_[slot].compare_exchange_strong(found, key, std::memory_order_relaxed) || found == key)) {
      return static_cast<int>(slot);
    }
  }
  return -1;
}

int CounterSlots::of_graph_launch() {
  // The number is compared before it is counted up, so that it never overflows.
  int next = graph_launches_.load(std::memory_order_relaxed);
  do {
    if (next >= kGraphLaunches) return -1;
  } while (!graph_launches_.compare_exchange_weak(next, next + 1, std::memory_order_relaxed));
  return kStreams + next;
}

Result<std::shared_ptr<WorkCounters>> WorkCounters::create(const GpuContext& gpu) {
  const RelaxedCapture relaxed(*gpu.driver);
  FLASHJIT_ASSIGN(memory, DeviceBuffer::allocate(gpu, CounterSlots::kPairs * kPairInts * sizeof(int)));
  // The default stream is not used, because a capture elsewhere may forbid that.
  FLASHJIT_ASSIGN(stream, Stream::create(gpu));
  FLASHJIT_TRY(memory.fill(0, stream.get()));
  FLASHJIT_TRY(stream.synchronize());
  return std::shared_ptr<WorkCounters>(new WorkCounters(gpu, std::move(memory)));
}

Result<int*> WorkCounters::take(CuStream stream) {
  const Driver& driver = *gpu_.driver;
  int capturing = 0;
  FLASHJIT_TRY(driver.check(driver.api.stream_is_capturing(stream, &capturing), "cuStreamIsCapturing"));
  int slot = -1;
  if (capturing) {
    slot = slots_.of_graph_launch();
  } else {
    unsigned long long id = 0;
    FLASHJIT_TRY(driver.check(driver.api.stream_id(stream, &id), "cuStreamGetId"));
    slot = slots_.of_stream(id);
  }
  return slot < 0 ? nullptr : static_cast<int*>(memory_.data()) + slot * kPairInts;
}

bool takes_items(const Plan& plan) {
  return std::any_of(plan.launches.begin(), plan.launches.end(),
                     [](const KernelLaunch& launch) { return launch.grid.persistent; });
}

}  // namespace flashjit
