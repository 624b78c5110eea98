#include "tools/support/device.h"

#include <fmt/format.h>

#include "compiler/card.h"
#include "compiler/spec/text_form.h"
#include "runtime/driver/driver.h"
#include "runtime/engine/host_library.h"
#include "runtime/launch/thread_pool.h"

namespace flashjit {

Result<DeviceFigures> figures_of(const std::string& name) {
  FLASHJIT_ASSIGN(row, find_target(name));
  const Card* card = find_card(name);
  if (!card) card = usual_card(*row);
  return DeviceFigures{.title = std::string(card ? card->title : row->name),
                       .target = std::string(row->name),
                       .units = row->sm_count,
                       .memory_tbs = card ? card->memory_tbs : row->memory_tbs};
}

Result<DeviceFigures> figures_of_this_machine() {
  if (auto driver = Driver::open()) {
    for (int i = 0; i < (*driver)->device_count(); ++i) {
      const auto info = (*driver)->device(i);
      const Target* target = info ? target_for_compute_capability(info->major, info->minor) : nullptr;
      if (target)
        return DeviceFigures{.title = info->name,
                             .target = std::string(target->name),
                             .units = info->sm_count,
                             .memory_tbs = target->memory_tbs};
    }
  }
  const auto library = host_library();
  if (!library) {
    return Error{ErrorKind::NotFound,
                 "--arch: this machine has neither a GPU nor the host backend; name a target, such as sm_90a or h100",
                 {}};
  }
  FLASHJIT_ASSIGN(best, (*library)->backend.best_target());
  FLASHJIT_ASSIGN(figures, figures_of(best));
  figures.usable_cores = usable_cores();
  return figures;
}

std::string device_text(const DeviceFigures& device, bool gpu) {
  const std::string name = device.title == device.target ? device.target : device.target + ", " + device.title;
  if (gpu) return fmt::format("{}: {} SMs, {} TB/s", name, device.units, device.memory_tbs);
  const std::string here = device.usable_cores > 0 ? fmt::format(" ({} here)", device.usable_cores) : "";
  return fmt::format("{}: counted with {}{}, {} TB/s", name, counted(device.units, "core"), here, device.memory_tbs);
}

}  // namespace flashjit
