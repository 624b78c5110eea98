// Cards by the names that people know them by. A card has the code and plan of its target, and its own figures.
#pragma once

#include <span>
#include <string_view>

#include "compiler/spec/target.h"

namespace flashjit {

struct Card {
  std::string_view name;   // For example "h100", which find_target takes as well.
  std::string_view title;  // For example "H100 SXM".
  std::string_view target;
  double memory_tbs = 0;  // It is as in Target.
};

std::span<const Card> cards();  // The first card of each GPU target is the one that the target's row describes.
const Card* find_card(std::string_view name);  // null: there is no such card.
const Card* usual_card(const Target& target);  // null: the target is a processor.

}  // namespace flashjit
