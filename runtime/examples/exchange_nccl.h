// This is the memory of ring.cpp and its messages for GPUs: NCCL sends them, on a stream beside that of the kernels.
// MPI starts the processes, and tells all of them NCCL's id. exchange_mpi.h has the same for processors.
#pragma once

#include <cuda_runtime_api.h>
#include <mpi.h>
#include <nccl.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "flashjit/flashjit.hpp"

// This is the type of Q, K, V and of the gradient of O: bf16. Results of steps, and sums of gradients, are fp32.
enum class Element : std::uint16_t {};
constexpr double kLargestError = 2e-2;

// Rounds to the nearest, and from the middle to the even one.
inline Element element_of(float x) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &x, sizeof bits);
  return static_cast<Element>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline float float_of(Element x) {
  const std::uint32_t bits = static_cast<std::uint32_t>(x) << 16;
  float value = 0;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
template <class T>
std::string dtype_of() {
  return std::is_same_v<T, Element> ? "bf16" : "fp32";
}

// A failure of one rank ends all of them.
inline void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
  MPI_Abort(MPI_COMM_WORLD, 1);
}
inline void check(ncclResult_t status, const char* what) {
  if (status == ncclSuccess) return;
  std::fprintf(stderr, "%s: %s: %s\n", what, ncclGetErrorString(status), ncclGetLastError(nullptr));
  MPI_Abort(MPI_COMM_WORLD, 1);
}

// Kernels and messages use this memory.
template <class T>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(const std::vector<T>& values) : size_(values.size()) {
    T* data = nullptr;
    check(cudaMalloc(reinterpret_cast<void**>(&data), std::max<std::size_t>(size_, 1) * sizeof(T)), "cudaMalloc");
    data_.reset(data);
    check(cudaMemcpy(data, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice), "cudaMemcpy");
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");  // Other streams do not wait for this copy by themselves.
  }
  T* data() { return data_.get(); }
  const T* data() const { return data_.get(); }
  int size() const { return static_cast<int>(size_); }
  // All streams have to be done before it is read.
  std::vector<T> read() const {
    std::vector<T> values(size_);
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    check(cudaMemcpy(values.data(), data(), size_ * sizeof(T), cudaMemcpyDeviceToHost), "cudaMemcpy");
    return values;
  }

 private:
  struct Free {
    void operator()(T* data) const { cudaFree(data); }
  };
  std::unique_ptr<T, Free> data_;
  std::size_t size_ = 0;
};

// The network knows a rank's GPU, and the ways to other ranks. GPUs of a node are given out in the order of the node's
// ranks.
class Network {
 public:
  Network() {
    MPI_Comm node;
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
    int of_node = 0, gpus = 0, rank = 0, ranks = 0;
    MPI_Comm_rank(node, &of_node);
    MPI_Comm_free(&node);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    check(cudaGetDeviceCount(&gpus), "cudaGetDeviceCount");
    gpu_ = of_node % gpus;  // NCCL refuses two ranks on one GPU, and tells so.
    check(cudaSetDevice(gpu_), "cudaSetDevice");
    check(cudaDeviceGetAttribute(&sms_, cudaDevAttrMultiProcessorCount, gpu_), "cudaDeviceGetAttribute");
    check(cudaStreamCreateWithFlags(&kernels_, cudaStreamNonBlocking), "cudaStreamCreate");
    // Kernels of an exchange are short, and others wait for them, so they go first if both want SMs.
    int least = 0, greatest = 0;
    check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
    check(cudaStreamCreateWithPriority(&messages_, cudaStreamNonBlocking, greatest), "cudaStreamCreate");
    ncclUniqueId id = {};
    if (rank == 0) check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    MPI_Bcast(&id, sizeof id, MPI_BYTE, 0, MPI_COMM_WORLD);
    check(ncclCommInitRank(&ranks_, ranks, id, rank), "ncclCommInitRank");
  }
  Network(const Network&) = delete;
  Network& operator=(const Network&) = delete;
  ~Network() {
    ncclCommDestroy(ranks_);
    cudaStreamDestroy(messages_);
    cudaStreamDestroy(kernels_);
  }

  flashjit::EngineOptions engine() const {
    flashjit::EngineOptions options;
    options.device = flashjit::Device::Gpu;
    options.ordinal = gpu_;
    return options;
  }
  cudaStream_t stream() const { return kernels_; }
  cudaStream_t messages() const { return messages_; }
  ncclComm_t ranks() const { return ranks_; }
  // This number is for `sms` of Arguments, because kernels of an exchange need some SMs, too.
  int sms_beside_exchanges() const { return sms_ - kLeft; }

 private:
  static constexpr int kLeft = 8;
  int gpu_ = 0, sms_ = 0;
  cudaStream_t kernels_ = nullptr, messages_ = nullptr;
  ncclComm_t ranks_ = nullptr;
};

// An exchange is two messages on their way: one leaves this rank, one arrives. The host waits for nothing: the stream
// of messages waits for the kernels before it, and the kernels after end() wait for the messages.
class Exchange {
 public:
  Exchange(const Network& network, int /* tag: messages of a pair of ranks keep their order */) : network_(network) {
    check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreate");
  }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;
  ~Exchange() { cudaEventDestroy(event_); }

  // Until end() no kernel may change `leaving`, or read `arriving`.
  template <class T>
  void begin(const Buffer<T>& leaving, int to, Buffer<T>& arriving, int from) {
    const std::size_t bytes = leaving.size() * sizeof(T);
    const cudaStream_t messages = network_.messages();
    check(cudaEventRecord(event_, network_.stream()), "cudaEventRecord");
    check(cudaStreamWaitEvent(messages, event_, 0), "cudaStreamWaitEvent");
    check(ncclGroupStart(), "ncclGroupStart");
    check(ncclSend(leaving.data(), bytes, ncclInt8, to, network_.ranks(), messages), "ncclSend");
    check(ncclRecv(arriving.data(), bytes, ncclInt8, from, network_.ranks(), messages), "ncclRecv");
    check(ncclGroupEnd(), "ncclGroupEnd");
    check(cudaEventRecord(event_, messages), "cudaEventRecord");
    is_under_way_ = true;
  }
  // It does nothing if nothing is on its way.
  void end() {
    if (is_under_way_) check(cudaStreamWaitEvent(network_.stream(), event_, 0), "cudaStreamWaitEvent");
    is_under_way_ = false;
  }

 private:
  const Network& network_;
  cudaEvent_t event_ = nullptr;
  bool is_under_way_ = false;
};
