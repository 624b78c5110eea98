// The parts that text forms of specs, schedules and targets share: numbers, carets, and suggestions.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace flashjit {

// Decimal, optional minus sign, the whole text; nothing when it is no number or does not fit.
std::optional<std::int64_t> parse_integer(std::string_view text);
// The whole text; nothing when it is no number or not finite. Independent of the locale.
std::optional<double> parse_real(std::string_view text);
// Shortest text that parse_real reads back as the same value.
std::string print_real(double value);

// The line of `text` around `position` with a caret under it. Long lines are cut to a window.
std::string caret(std::string_view text, std::size_t position);

// User text as it may appear in a message: unprintable bytes escaped, long text cut.
std::string quoted(std::string_view text);

// Any text as it may be shown: no byte of it moves a cursor, colours, hides or turns around what stands beside it. UTF-8
// stays, and tabs and ends of lines, if there is more than one line.
enum class Lines { Many, One };
std::string harmless(std::string_view text, Lines lines);

// Says how many characters have to be put in, left out or replaced to make `b` of `a`.
std::size_t edit_distance(std::string_view a, std::string_view b);

// The name closest to `text`, if one is close enough to be a slip of the pen; otherwise empty.
std::string_view nearest_name(std::string_view text, std::span<const std::string_view> names);

// ", did you mean `x`?" or nothing.
std::string did_you_mean(std::string_view text, std::span<const std::string_view> names);

// "there is no field `x`; the fields are ...", with what may have been meant.
std::string there_is_no(std::string_view what, std::string_view text, std::span<const std::string_view> names);

std::string join(std::span<const std::string_view> names, std::string_view separator = ", ");

// "1 kernel", "2 kernels", "3 entries" of a noun in the singular, whose plural follows the usual rules.
std::string counted(std::int64_t count, std::string_view noun);

}  // namespace flashjit
