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
  // Makes launches from now on take `best`; called once. A captured graph goes on with the quick code, which therefore
  // stays loaded as long as this kernel lives.
  void replace(std::shared_ptr<RunnableKernel> best);
  const Facts& facts() const override;  // of the code that the next launch takes
  using RunnableKernel::workspace_bytes;
  Result<std::int64_t> workspace_bytes(const CallArguments& call) const override;  // of the next launch's code

 private:
  Result<void> launch(const CallArguments& call, void* stream) override;

  const std::shared_ptr<RunnableKernel> quick_;
  std::shared_ptr<RunnableKernel> best_;
  std::atomic<RunnableKernel*> current_;
};

// Where the thread that prepares and the one that compiles the best code meet.
class Promotion {
 public:
  using Made = Result<std::shared_ptr<RunnableKernel>>;
  // The best code, or why there is none. True: it has replaced quick code.
  bool deliver(Made made);
  // Waits for the delivery and returns it; returns nothing if `bounds` are over first.
  std::optional<Made> wait(const CompileBounds& bounds);
  // Takes what was delivered meanwhile, or has `kernel` replaced when it comes. True: replaced already.
  bool answer_with(std::shared_ptr<TieredKernel> kernel);

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Made> made_;
  std::weak_ptr<TieredKernel> kernel_;
};

}  // namespace flashjit
