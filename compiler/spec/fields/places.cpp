#include "compiler/spec/fields/places.h"

#include <algorithm>

#include <fmt/format.h>

#include "templates/dropout.h"

namespace flashjit {

const PlaceNumber* find_place_number(std::string_view name) {
  const auto found = std::ranges::find(kPlaceNumbers, name, &PlaceNumber::name);
  return found == kPlaceNumbers.end() ? nullptr : &*found;
}

Result<void> complete_places(std::string_view rows, std::int64_t length, Places& places) {
  const auto refuse = [&](std::string_view number, int value, std::string_view why) {
    return invalid(fmt::format("scalars.{}_{}: {} {}", rows, number, value, why));
  };
  if (places.begin < 0) return refuse("begin", places.begin, "is negative; positions count from 0");
  if (places.step < 1 || places.step > kMostPlaceStep)
    return refuse("step", places.step, fmt::format("is outside 1..{}", kMostPlaceStep));
  if (places.total < 0 && places.begin == 0 && places.step == 1) places.total = static_cast<int>(length);
  if (places.total < 0) {
    return invalid(
        fmt::format("scalars.{0}_total: missing, and {0} stands at {1} + {2} i of a longer sequence; give its length",
                    rows, places.begin, places.step));
  }
  if (places.total > SizeBound::kLargest)
    return refuse("total", places.total, fmt::format("is above {}, the longest sequence", SizeBound::kLargest));
  const std::int64_t last = places.begin + (length - 1) * std::int64_t{places.step};
  if (length == 0 || last < places.total) return {};
  return refuse("total", places.total,
                fmt::format("is too short: the last of {} rows of {} stands at {} ({}_begin={}, {}_step={})", length,
                            rows, last, rows, places.begin, rows, places.step));
}

Result<void> check_drawn_places(std::string_view rows, const Places& places) {
  if (places.step != 1)
    return invalid(fmt::format("scalars.{}_step: {}, and dropout draws for blocks of {} neighbouring rows; give 1",
                               rows, places.step, kDropoutBlock));
  if (places.begin % kDropoutBlock != 0) {
    return invalid(
        fmt::format("scalars.{}_begin: {} is no multiple of {}, the rows that dropout draws for together; begin at {}",
                    rows, places.begin, kDropoutBlock, places.begin / kDropoutBlock * kDropoutBlock));
  }
  return {};
}

Result<void> check_places(const AttentionSpec& spec) {
  if (!spec.places) return {};
  const struct {
    bool asked;
    std::string_view field, why;
  } without[] = {
      {is_packed(spec), "layout=packed",
       "whose sequences have lengths of their own; use one sequence, and document(doc)"},
      {is_paged(spec), "layout=paged", "whose lengths lie on the device; give positions to the mask by params"},
      {spec.k_lens, "k_lens", "which lie on the device; give positions to the mask by params"},
      {selects(spec), "select", "which says by rows what is seen; leave places out"},
      {has_blocks(spec), "blocks", "which count from the first row of a call; leave one of the two out"},
      {spec.append, "append", "whose new rows are the last of their sequence; leave one of the two out"},
      {spec.shared_prefix, "shared_prefix", "whose keys are the first of their sequence; leave one of the two out"},
      {narrows(spec), "compute", "whose components know no places; quantize Q, K and V, and use fwd e4m3"},
      {!spec.grads.empty(), "grads", "whose elements are found by rows of a call; leave one of the two out"},
  };
  for (const auto& [asked, field, why] : without) {
    if (asked) {
      return invalid(
          fmt::format("places: rows of a call are a part of a sequence, and the spec has {}, {}", field, why));
    }
  }
  for (const Param& param : spec.params) {
    if (!find_place_number(param.name)) continue;
    return invalid(fmt::format("params: {} is a number that places takes; choose another name", param.name));
  }
  return {};
}

}  // namespace flashjit
