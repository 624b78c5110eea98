#include "tests/device/side_by_side.h"

#include <map>
#include <thread>
#include <vector>

#include "fmt/format.h"
#include "runtime/driver/device_memory.h"

namespace flashjit::testing_random {
namespace {

constexpr int kStreams = 2, kPerStream = 48, kGraphs = 2, kPerGraph = 4, kRounds = 8;

using Memory = std::map<const CaseTensor*, DeviceBuffer>;

// The inputs once, and outputs of its own for every launch.
class Launches {
 public:
  Launches(const GpuContext& gpu, Case& c, Kernel& kernel) : gpu_(gpu), case_(c), kernel_(kernel) {}

  Result<void> create(int outputs) {
    FLASHJIT_TRY(allocate(inputs_, false));
    outputs_.resize(static_cast<std::size_t>(outputs));
    for (Memory& set : outputs_) FLASHJIT_TRY(allocate(set, true));
    for (int set = 0; set < outputs; ++set) {
      Arguments arguments = arguments_of(set);
      FLASHJIT_ASSIGN(workspace, give_workspace(gpu_, kernel_, arguments));
      workspaces_.push_back(std::move(workspace));
    }
    return {};
  }

  Result<void> launch(int set, const Stream& stream) {
    const DeviceBuffer& workspace = workspaces_[static_cast<std::size_t>(set)];
    Arguments arguments = arguments_of(set);
    arguments.workspace = workspace.data();
    arguments.workspace_bytes = static_cast<std::int64_t>(workspace.bytes());
    return kernel_.run(arguments, stream.get());
  }

  // On the device everything is done. Compares with the images of the case, and spoils what is there for the next time.
  Result<void> expect_all_right(std::string_view when) {
    for (std::size_t i = 0; i < outputs_.size(); ++i) {
      for (auto& [tensor, buffer] : outputs_[i]) {
        std::vector<std::uint8_t> bytes(tensor->image.size());
        FLASHJIT_TRY(buffer.download(bytes.data()));
        if (bytes != tensor->image)
          return internal(fmt::format("{}: outputs {} have other bits than a launch by itself", when, i));
        FLASHJIT_TRY(spoil(*tensor, buffer));
      }
    }
    return {};
  }

 private:
  Arguments arguments_of(int set) {
    return case_.arguments([&](const CaseTensor& tensor) {
      return (tensor.output ? outputs_[static_cast<std::size_t>(set)] : inputs_).at(&tensor).data();
    });
  }
  Result<void> allocate(Memory& memory, bool output) {
    Result<void> status;
    case_.each([&](const std::string&, CaseTensor& tensor) {
      if (!status || tensor.output != output) return;
      auto buffer = DeviceBuffer::allocate(gpu_, tensor.image.size());
      status = buffer ? output ? spoil(tensor, *buffer) : buffer->upload(tensor.image.data()) : buffer.error();
      if (status) memory.emplace(&tensor, std::move(*buffer));
    });
    return status;
  }
  // As outputs are before a launch: 0xff everywhere, the guards included.
  static Result<void> spoil(const CaseTensor& tensor, const DeviceBuffer& buffer) {
    return buffer.upload(std::vector<std::uint8_t>(tensor.image.size(), 0xff).data());
  }

  const GpuContext& gpu_;
  Case& case_;
  Kernel& kernel_;
  Memory inputs_;
  std::vector<Memory> outputs_;
  std::vector<DeviceBuffer> workspaces_;  // of each set of outputs
};

Result<void> on_streams(Launches& launches, const Stream (&streams)[kStreams]) {
  Result<void> status[kStreams];
  std::vector<std::thread> threads;
  for (int s = 0; s < kStreams; ++s) {
    threads.emplace_back([&, s] {
      for (int i = 0; i < kPerStream && status[s]; ++i) status[s] = launches.launch(s * kPerStream + i, streams[s]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int s = 0; s < kStreams; ++s) {
    FLASHJIT_TRY(status[s]);
    FLASHJIT_TRY(streams[s].synchronize());
  }
  return launches.expect_all_right("launches on two streams");
}

// Both graphs are recorded on the first stream. Then graphs and plain launches take turns on both.
Result<void> with_graphs(const GpuContext& gpu, Launches& launches, const Stream (&streams)[kStreams]) {
  std::vector<Graph> graphs;
  for (int g = 0; g < kGraphs; ++g) {
    FLASHJIT_ASSIGN(graph, Graph::capture(gpu, streams[0], [&]() -> Result<void> {
                      for (int i = 0; i < kPerGraph; ++i) FLASHJIT_TRY(launches.launch(g * kPerGraph + i, streams[0]));
                      return {};
                    }));
    graphs.push_back(std::move(graph));
  }
  int set = kGraphs * kPerGraph;
  for (int round = 0; round < kRounds; ++round) {
    for (int s = 0; s < kStreams; ++s) {
      FLASHJIT_TRY(graphs[static_cast<std::size_t>((round + s) % kGraphs)].launch(streams[s]));
      FLASHJIT_TRY(launches.launch(set++, streams[s]));
    }
  }
  for (; set < kStreams * kPerStream; ++set) FLASHJIT_TRY(launches.launch(set, streams[set % kStreams]));
  for (const Stream& stream : streams) FLASHJIT_TRY(stream.synchronize());
  return launches.expect_all_right("graphs between launches");
}

Result<void> run(const GpuContext& gpu, Case& c, Kernel& kernel) {
  static_assert(kGraphs * kPerGraph + kRounds * kStreams <= kStreams * kPerStream);
  Launches launches(gpu, c, kernel);
  FLASHJIT_TRY(launches.create(kStreams * kPerStream));
  FLASHJIT_ASSIGN(one, Stream::create(gpu));
  FLASHJIT_ASSIGN(two, Stream::create(gpu));
  const Stream streams[] = {std::move(one), std::move(two)};
  FLASHJIT_TRY(on_streams(launches, streams));
  return with_graphs(gpu, launches, streams);
}

}  // namespace

Result<DeviceBuffer> give_workspace(const GpuContext& gpu, const Kernel& kernel, Arguments& arguments) {
  FLASHJIT_ASSIGN(bytes, kernel.workspace_bytes(arguments));
  FLASHJIT_ASSIGN(buffer, DeviceBuffer::allocate(gpu, static_cast<std::size_t>(bytes)));
  if (bytes > 0) FLASHJIT_TRY(buffer.upload(std::vector<std::uint8_t>(buffer.bytes(), 0xff).data()));
  arguments.workspace = buffer.data();
  arguments.workspace_bytes = bytes;
  return std::move(buffer);
}

std::string run_side_by_side(const GpuContext& gpu, Case& c, Kernel& kernel) {
  const auto done = run(gpu, c, kernel);
  return done ? "" : done.error().message;
}

}  // namespace flashjit::testing_random
