// Cards by the names that people know them by. Code and plan of a card are those of its target; figures are its own.
#pragma once

#include <span>
#include <string_view>

#include "compiler/spec/target.h"

namespace flashjit {

struct Card {
  std::string_view name;   // "h100", which find_target takes as well
  std::string_view title;  // "H100 SXM"
  std::string_view target;
  double memory_tbs = 0;  // as in Target
};

std::span<const Card> cards();                 // of each GPU target first the one that its row describes
const Card* find_card(std::string_view name);  // null: there is none
const Card* usual_card(const Target& target);  // null: a processor

}  // namespace flashjit
