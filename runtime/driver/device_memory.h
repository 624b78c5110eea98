// Memory, streams, events and graphs are for work counters, tools and device tests. run() calls none of this.
#pragma once

#include <cstddef>
#include <functional>

#include "compiler/result.h"
#include "runtime/driver/driver.h"

namespace flashjit {

class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  static Result<DeviceBuffer> allocate(const GpuContext& gpu, std::size_t bytes);
  ~DeviceBuffer();
  DeviceBuffer(DeviceBuffer&& other) noexcept { *this = std::move(other); }
  DeviceBuffer& operator=(DeviceBuffer&& other) noexcept;

  void* data() const { return reinterpret_cast<void*>(pointer_); }  // It is null if the buffer has zero bytes.
  std::size_t bytes() const { return bytes_; }
  Result<void> upload(const void* from, CuStream stream = nullptr) const;  // Copies all bytes and waits for them.
  Result<void> download(void* to, CuStream stream = nullptr) const;        // Copies all bytes and waits for them.
  Result<void> fill(unsigned char value, CuStream stream) const;

 private:
  GpuContext gpu_;
  CuPointer pointer_ = 0;
  std::size_t bytes_ = 0;
};

class Stream {
 public:
  static Result<Stream> create(const GpuContext& gpu);
  ~Stream();
  Stream(Stream&& other) noexcept { *this = std::move(other); }
  Stream& operator=(Stream&& other) noexcept;
  CuStream get() const { return stream_; }
  Result<void> synchronize() const;

 private:
  Stream() = default;
  GpuContext gpu_;
  CuStream stream_ = nullptr;
};

class Event {
 public:
  static Result<Event> create(const GpuContext& gpu);
  ~Event();
  Event(Event&& other) noexcept { *this = std::move(other); }
  Event& operator=(Event&& other) noexcept;
  Result<void> record(const Stream& stream) const;
  // Waits for this event, and returns the milliseconds since `start`.
  Result<float> milliseconds_since(const Event& start) const;

 private:
  Event() = default;
  GpuContext gpu_;
  CuEvent event_ = nullptr;
};

class Graph {
 public:
  // Runs `work`, which launches on the stream, and returns the launches as a graph.
  static Result<Graph> capture(const GpuContext& gpu, const Stream& stream, const std::function<Result<void>()>& work);
  ~Graph();
  Graph(Graph&& other) noexcept { *this = std::move(other); }
  Graph& operator=(Graph&& other) noexcept;
  Result<void> launch(const Stream& stream) const;

 private:
  Graph() = default;
  GpuContext gpu_;
  CuGraphExec graph_ = nullptr;
};

}  // namespace flashjit
