// A libcuda.so.1 that records instead of computing: three GPUs of two architectures, contexts, streams, captures and
// memory, with the driver's rules about them. Whatever breaks such a rule fails as it does in the driver. Programs are
// linked with it, so it is what the library finds when it opens libcuda.so.1.
#pragma once

#include <atomic>
#include <cstddef>

namespace fake_cuda {

inline constexpr int kDevices = 3;  // sm_80, sm_90, sm_90

struct Launch {
  int device = -1;
  unsigned grid = 0, block = 0, shared_bytes = 0;
  const void* stream = nullptr;
  bool captured = false;
};

struct Counters {
  std::atomic<int> initialised = 0, loads = 0, unloads = 0, launches = 0, encodings = 0, allocations = 0, frees = 0,
                   pushes = 0, broken_captures = 0, calls = 0;  // calls: of any function
};

extern "C" {
Counters& fake_cuda_counters();
Launch fake_cuda_last_launch();  // of the calling thread
}

// Handles of the driver, for tests that are its direct users too.
extern "C" {
int cuCtxGetCurrent(void** context);
int cuCtxPushCurrent_v2(void* context);
int cuCtxPopCurrent_v2(void** context);
int cuDevicePrimaryCtxRetain(void** context, int device);
int cuStreamCreate(void** stream, unsigned flags);
int cuStreamDestroy_v2(void* stream);
int cuStreamBeginCapture_v2(void* stream, int mode);
int cuStreamEndCapture(void* stream, void** graph);
int cuStreamIsCapturing(void* stream, int* status);
int cuGraphDestroy(void* graph);
}

}  // namespace fake_cuda
