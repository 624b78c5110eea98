#include "runtime/driver/device_memory.h"

#include <fmt/format.h>

#include <utility>

namespace flashjit {

Result<DeviceBuffer> DeviceBuffer::allocate(const GpuContext& gpu, std::size_t bytes) {
  DeviceBuffer buffer;
  buffer.gpu_ = gpu;
  buffer.bytes_ = bytes;
  if (bytes == 0) return buffer;
  const CurrentContext current(gpu);
  FLASHJIT_TRY(current.status());
  if (const CuResult code = gpu.driver->api.memory_allocate(&buffer.pointer_, bytes); code != 0) {
    return gpu.driver->error(code, fmt::format("cuMemAlloc of {} bytes", bytes).c_str());
  }
  return buffer;
}

DeviceBuffer::~DeviceBuffer() {
  if (!pointer_) return;
  const CurrentContext current(gpu_);
  gpu_.driver->api.memory_free(pointer_);
}

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  std::swap(gpu_, other.gpu_);
  std::swap(pointer_, other.pointer_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

Result<void> DeviceBuffer::upload(const void* from, CuStream stream) const {
  if (bytes_ == 0) return {};
  const CurrentContext current(gpu_);
  FLASHJIT_TRY(
      gpu_.driver->check(gpu_.driver->api.copy_to_device(pointer_, from, bytes_, stream), "cuMemcpyHtoDAsync"));
  return gpu_.driver->check(gpu_.driver->api.stream_synchronize(stream), "cuStreamSynchronize");
}

Result<void> DeviceBuffer::download(void* to, CuStream stream) const {
  if (bytes_ == 0) return {};
  const CurrentContext current(gpu_);
  FLASHJIT_TRY(gpu_.driver->check(gpu_.driver->api.copy_to_host(to, pointer_, bytes_, stream), "cuMemcpyDtoHAsync"));
  return gpu_.driver->check(gpu_.driver->api.stream_synchronize(stream), "cuStreamSynchronize");
}

Result<void> DeviceBuffer::fill(unsigned char value, CuStream stream) const {
  if (bytes_ == 0) return {};
  const CurrentContext current(gpu_);
  return gpu_.driver->check(gpu_.driver->api.memory_set(pointer_, value, bytes_, stream), "cuMemsetD8Async");
}

Result<Stream> Stream::create(const GpuContext& gpu) {
  constexpr unsigned kNonBlocking = 1;  // CU_STREAM_NON_BLOCKING makes the stream independent of the default stream.
  Stream stream;
  stream.gpu_ = gpu;
  const CurrentContext current(gpu);
  FLASHJIT_TRY(current.status());
  FLASHJIT_TRY(gpu.driver->check(gpu.driver->api.stream_create(&stream.stream_, kNonBlocking), "cuStreamCreate"));
  return stream;
}

Stream::~Stream() {
  if (!stream_) return;
  const CurrentContext current(gpu_);
  gpu_.driver->api.stream_destroy(stream_);
}

Stream& Stream::operator=(Stream&& other) noexcept {
  std::swap(gpu_, other.gpu_);
  std::swap(stream_, other.stream_);
  return *this;
}

Result<void> Stream::synchronize() const {
  const CurrentContext current(gpu_);
  return gpu_.driver->check(gpu_.driver->api.stream_synchronize(stream_), "cuStreamSynchronize");
}

Result<Event> Event::create(const GpuContext& gpu) {
  Event event;
  event.gpu_ = gpu;
  const CurrentContext current(gpu);
  FLASHJIT_TRY(current.status());
  FLASHJIT_TRY(gpu.driver->check(gpu.driver->api.event_create(&event.event_, 0), "cuEventCreate"));
  return event;
}

Event::~Event() {
  if (!event_) return;
  const CurrentContext current(gpu_);
  gpu_.driver->api.event_destroy(event_);
}

Event& Event::operator=(Event&& other) noexcept {
  std::swap(gpu_, other.gpu_);
  std::swap(event_, other.event_);
  return *this;
}

Result<void> Event::record(const Stream& stream) const {
  const CurrentContext current(gpu_);
  return gpu_.driver->check(gpu_.driver->api.event_record(event_, stream.get()), "cuEventRecord");
}

Result<float> Event::milliseconds_since(const Event& start) const {
  const CurrentContext current(gpu_);
  float milliseconds = 0;
  FLASHJIT_TRY(gpu_.driver->check(gpu_.driver->api.event_synchronize(event_), "cuEventSynchronize"));
  FLASHJIT_TRY(
      gpu_.driver->check(gpu_.driver->api.event_elapsed(&milliseconds, start.event_, event_), "cuEventElapsedTime"));
  return milliseconds;
}

Result<Graph> Graph::capture(const GpuContext& gpu, const Stream& stream, const std::function<Result<void>()>& work) {
  constexpr int kThreadLocal = 1;  // Calls of other threads do not break a capture of this mode.
  const Driver& driver = *gpu.driver;
  const CurrentContext current(gpu);
  FLASHJIT_TRY(current.status());
  FLASHJIT_TRY(driver.check(driver.api.begin_capture(stream.get(), kThreadLocal), "cuStreamBeginCapture"));
  const auto worked = work();
  CuGraph captured = nullptr;
  // The capture has to end even if the work failed, or the stream stays unusable.
  const auto ended = driver.check(driver.api.end_capture(stream.get(), &captured), "cuStreamEndCapture");
  Graph graph;
  graph.gpu_ = gpu;
  CuResult code = 0;
  if (worked && ended) code = driver.api.graph_instantiate(&graph.graph_, captured, 0);
  if (captured) driver.api.graph_destroy(captured);
  FLASHJIT_TRY(worked);
  FLASHJIT_TRY(ended);
  FLASHJIT_TRY(driver.check(code, "cuGraphInstantiate"));
  return graph;
}

Graph::~Graph() {
  if (graph_) gpu_.driver->api.graph_exec_destroy(graph_);
}

Graph& Graph::operator=(Graph&& other) noexcept {
  std::swap(gpu_, other.gpu_);
  std::swap(graph_, other.graph_);
  return *this;
}

Result<void> Graph::launch(const Stream& stream) const {
  const CurrentContext current(gpu_);
  return gpu_.driver->check(gpu_.driver->api.graph_launch(graph_, stream.get()), "cuGraphLaunch");
}

}  // namespace flashjit
