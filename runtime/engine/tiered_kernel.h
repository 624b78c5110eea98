// A kernel that answers with quickly compiled code until the best code for the same spec is there.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>

#include "runtime/launch/kernels.h"

namespace flashjit {

class TieredKernel : public RunnableKernel {
 public:
  TieredKernel(const Plan& plan, std::shared_ptr<RunnableKernel> quick);
  // Makes launches from now on take `best`; called once. A captured graph keeps the quick code, which therefore stays
  // loaded as long as this kernel lives.
  void replace(std::shared_ptr<RunnableKernel> best);
  const Facts& facts() const override;  // Returns the facts of the code that the next launch takes.
  using RunnableKernel::workspace_bytes;
  // The size is that of the next launch's code.
  Result<std::int64_t> workspace_bytes(const CallArguments& call) const override;

 private:
  Result<void> launch(const CallArguments& call, void* stream) override;

  const std::shared_ptr<RunnableKernel> quick_;
  std::shared_ptr<RunnableKernel> best_;
  std::atomic<RunnableKernel*> current_;
};

// A meeting point for the thread that prepares and the thread that compiles the best code.
class Promotion {
 public:
  using Made = Result<std::shared_ptr<RunnableKernel>>;
  // Delivers the best code, or the reason why there is none. Returns true if it has replaced quick code.
  bool deliver(Made made);
  // Waits for the delivery and returns it; returns nothing if `bounds` are over first.
  std::optional<Made> wait(const CompileBounds& bounds);
  // Takes what was delivered meanwhile, or has `kernel` replaced when the code comes. Returns true if it is replaced
  // already.
  bool answer_with(std::shared_ptr<TieredKernel> kernel);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Made> made_;
  std::weak_ptr<TieredKernel> kernel_;
};

}  // namespace flashjit
