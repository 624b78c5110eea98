#include "runtime/engine/tiered_kernel.h"

#include <utility>

namespace flashjit {

TieredKernel::TieredKernel(const Plan& plan, std::shared_ptr<RunnableKernel> quick)
    : RunnableKernel(plan, quick->facts(), 0), quick_(std::move(quick)), current_(quick_.get()) {}

void TieredKernel::replace(std::shared_ptr<RunnableKernel> best) {
  best_ = std::move(best);
  current_.store(best_.get(), std::memory_order_release);
}

const Facts& TieredKernel::facts() const { return current_.load(std::memory_order_acquire)->facts(); }

Result<void> TieredKernel::launch(const CallArguments& call, void* stream) {
  RunnableKernel* kernel = current_.load(std::memory_order_acquire);
  if (kernel != quick_.get()) {
    // A caller who asked for the size before the best code came may bring too little workspace for it.
    FLASHJIT_ASSIGN(bytes, kernel->workspace_bytes(call));
    if (bytes > call.workspace_bytes) kernel = quick_.get();
  }
  return kernel->run(call, stream);
}

Result<std::int64_t> TieredKernel::workspace_bytes(const CallArguments& call) const {
  return current_.load(std::memory_order_acquire)->workspace_bytes(call);
}

bool Promotion::deliver(Made made) {
  const std::lock_guard lock(mutex_);
  made_ = std::move(made);
  changed_.notify_all();
  const auto kernel = kernel_.lock();
  if (!kernel || !*made_) return false;
  kernel->replace(**made_);
  made_.reset();
  return true;
}

std::optional<Promotion::Made> Promotion::wait(const CompileBounds& bounds) {
  std::unique_lock lock(mutex_);
  if (!bounds.wait(changed_, lock, [&] { return made_.has_value(); })) return std::nullopt;
  return made_;
}

bool Promotion::answer_with(std::shared_ptr<TieredKernel> kernel) {
  const std::lock_guard lock(mutex_);
  kernel_ = kernel;
  if (!made_ || !*made_) return false;
  kernel->replace(**made_);
  made_.reset();
  return true;
}

}  // namespace flashjit
