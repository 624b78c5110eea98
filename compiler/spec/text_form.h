// The parts that text forms of specs, schedules and targets share: numbers, carets and suggestions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace flashjit {

// Reads the whole text as a decimal number with an optional minus sign. Returns nothing if it is none, or does not fit.
std::optional<std::int64_t> parse_integer(std::string_view text);
// Reads the whole text, whatever the locale. Returns nothing if it is no number, or not finite.
std::optional<double> parse_real(std::string_view text);
// Returns the shortest text that parse_real reads back as the same value.
std::string print_real(double value);

// Returns the line of `text` around `position` with a caret under it. Long lines are cut to a window.
std::string caret(std::string_view text, std::size_t position);

// Returns user text for a message, with unprintable bytes escaped and long text cut.
std::string quoted(std::string_view text);

// Returns text that is safe to show: none of its bytes moves a cursor, colours, hides or reverses what stands beside
// it. UTF-8 stays; tabs and ends of lines stay with Lines::Many.
enum class Lines { Many, One };
std::string harmless(std::string_view text, Lines lines);

// Returns how many characters have to be inserted, removed or replaced to turn `a` into `b`.
std::size_t edit_distance(std::string_view a, std::string_view b);

// Returns the name closest to `text`, if one is close enough to be a slip of the pen; otherwise empty text.
std::string_view nearest_name(std::string_view text, std::span<const std::string_view> names);

// Returns ", did you mean `x`?" or nothing.
std::string did_you_mean(std::string_view text, std::span<const std::string_view> names);

// Returns "there is no field `x`; the fields are ...", with a suggestion where one is near.
std::string there_is_no(std::string_view what, std::string_view text, std::span<const std::string_view> names);

std::string join(std::span<const std::string_view> names, std::string_view separator = ", ");

// Returns "1 kernel", "2 kernels", "3 entries" for a noun in the singular whose plural follows the usual rules.
std::string counted(std::int64_t count, std::string_view noun);

}  // namespace flashjit
