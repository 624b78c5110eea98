// This is the memory of ring.cpp and its messages for processors: the memory is vectors, which MPI sends.
// exchange_nccl.h has the same for GPUs.
#pragma once

#include <mpi.h>

#include <string>
#include <utility>
#include <vector>

#include "flashjit/flashjit.hpp"

// This is the type of Q, K, V and of the gradient of O. Results of steps, and sums of gradients, are fp32.
using Element = float;
constexpr double kLargestError = 1e-5;

inline Element element_of(float x) { return x; }
inline float float_of(Element x) { return x; }
template <class T>
std::string dtype_of() {
  return "fp32";
}

// Kernels and messages use this memory.
template <class T>
class Buffer {
 public:
  Buffer() = default;
  explicit Buffer(std::vector<T> values) : values_(std::move(values)) {}
  T* data() { return values_.data(); }
  const T* data() const { return values_.data(); }
  int size() const { return static_cast<int>(values_.size()); }
  std::vector<T> read() const { return values_; }

 private:
  std::vector<T> values_;
};

// The network knows a rank's device, and the ways to other ranks.
class Network {
 public:
  static flashjit::EngineOptions engine() {
    flashjit::EngineOptions options;
    options.device = flashjit::Device::Host;
    return options;
  }
  static void* stream() { return nullptr; }
  static int sms_beside_exchanges() { return 0; }
};

// An exchange is two messages on their way: one leaves this rank, one arrives.
class Exchange {
 public:
  Exchange(const Network&, int tag) : tag_(tag) {}
  // Until end() nobody may change `leaving`, or read `arriving`.
  template <class T>
  void begin(const Buffer<T>& leaving, int to, Buffer<T>& arriving, int from) {
    const int bytes = leaving.size() * static_cast<int>(sizeof(T));
    MPI_Irecv(arriving.data(), bytes, MPI_BYTE, from, tag_, MPI_COMM_WORLD, &requests_[0]);
    MPI_Isend(leaving.data(), bytes, MPI_BYTE, to, tag_, MPI_COMM_WORLD, &requests_[1]);
  }
  // It returns at once where nothing is on its way.
  void end() { MPI_Waitall(2, requests_, MPI_STATUSES_IGNORE); }

 private:
  int tag_;
  MPI_Request requests_[2] = {MPI_REQUEST_NULL, MPI_REQUEST_NULL};
};
