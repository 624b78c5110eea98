#include "compiler/spec/text_form.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <vector>

#include <fmt/format.h>

namespace flashjit {

namespace {

constexpr std::size_t kCaretWindow = 96;   // The columns of context that a caret line shows.
constexpr std::size_t kQuotedLength = 48;  // The bytes of user text in a message.

char visible_char(char c) { return c >= 0x20 && c < 0x7f ? c : c == '\t' ? ' ' : '?'; }

// Returns true for characters that a terminal obeys instead of showing: C1 controls, line separators, and marks that
// change the direction of the text behind them.
bool is_obeyed(std::uint32_t c) {
  return (c >= 0x80 && c < 0xa0) || c == 0x61c || c == 0x200e || c == 0x200f || (c >= 0x2028 && c <= 0x202e) ||
         (c >= 0x2066 && c <= 0x2069);
}

// Returns the bytes of the visible character with which `text` begins; 0: a control, or no UTF-8.
std::size_t visible_bytes(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  if (byte(0) < 0x80) return byte(0) >= 0x20 && byte(0) < 0x7f ? 1 : 0;
  const std::size_t bytes = byte(0) >= 0xf0 ? 4 : byte(0) >= 0xe0 ? 3 : 2;
  if (byte(0) < 0xc0 || byte(0) >= 0xf8 || text.size() < bytes) return 0;
  std::uint32_t c = byte(0) & (0x7fu >> bytes);
  for (std::size_t i = 1; i < bytes; ++i) {
    if ((byte(i) & 0xc0) != 0x80) return 0;
    c = c << 6 | (byte(i) & 0x3f);
  }
  constexpr std::uint32_t kLeast[] = {0, 0, 0x80, 0x800, 0x10000};
  const bool is_sound = c >= kLeast[bytes] && c < 0x110000 && (c < 0xd800 || c >= 0xe000);
  return is_sound && !is_obeyed(c) ? bytes : 0;
}

}  // namespace

std::optional<std::int64_t> parse_integer(std::string_view text) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<double> parse_real(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) return std::nullopt;
  return value;
}

std::string print_real(double value) { return fmt::format("{}", value); }

std::string caret(std::string_view text, std::size_t position) {
  position = std::min(position, text.size());
  std::size_t begin = 0, end = text.size();
  if (position > 0) {
    if (const std::size_t line = text.rfind('\n', position - 1); line != text.npos) begin = line + 1;
  }
  if (const std::size_t line = text.find('\n', position); line != text.npos) end = line;
  if (position - begin > kCaretWindow / 2) begin = position - kCaretWindow / 2;
  end = std::min(end, begin + kCaretWindow);
  std::string line(text.substr(begin, end - begin));
  for (char& c : line) c = visible_char(c);
  return line + "\n" + std::string(position - begin, ' ') + "^";
}

std::string quoted(std::string_view text) {
  std::string out = "`";
  for (const char c : text.substr(0, kQuotedLength)) {
    if (c >= 0x20 && c < 0x7f) {
      out += c;
    } else {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  return out + (text.size() > kQuotedLength ? "...`" : "`");
}

std::string harmless(std::string_view text, Lines lines) {
  std::string out;
  while (!text.empty()) {
    const std::size_t bytes = visible_bytes(text);
    const bool is_layout = lines == Lines::Many && (text[0] == '\n' || text[0] == '\t');
    if (bytes > 0 || is_layout) {
      out += text.substr(0, std::max<std::size_t>(bytes, 1));
    } else {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[0]));
    }
    text.remove_prefix(std::max<std::size_t>(bytes, 1));
  }
  return out;
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

std::string_view nearest_name(std::string_view text, std::span<const std::string_view> names) {
  if (text.empty() || text.size() > kQuotedLength) return {};
  const auto small = [](std::string_view from) {
    std::string to(from);
    for (char& c : to) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
    return to;
  };
  const std::string written = small(text);  // A capital is no slip: H100 means h100, not a100.
  std::string_view best;
  // The limit counts half slips: one slip in a short name, two in a longer one. An unfinished name is nearer than a
  // wrong one.
  std::size_t best_distance = text.size() < 4 ? 3 : 5;
  for (const std::string_view name : names) {
    const std::size_t distance =
        edit_distance(written, small(name)) * 2 - (name != text && name.starts_with(text) ? 1 : 0);
    if (distance < best_distance && distance < 2 * name.size()) {
      best = name;
      best_distance = distance;
    }
  }
  return best;
}

std::string did_you_mean(std::string_view text, std::span<const std::string_view> names) {
  const std::string_view name = nearest_name(text, names);
  return name.empty() ? std::string() : fmt::format(", did you mean `{}`?", name);
}

std::string there_is_no(std::string_view what, std::string_view text, std::span<const std::string_view> names) {
  const std::string meant = did_you_mean(text, names);
  return fmt::format("there is no {0} {1}{2} {0}s are {3}", what, quoted(text),
                     meant.empty() ? "; the" : meant + " The", join(names));
}

std::string join(std::span<const std::string_view> names, std::string_view separator) {
  return fmt::format("{}", fmt::join(names, separator));
}

std::string counted(std::int64_t count, std::string_view noun) {
  if (count == 1) return fmt::format("1 {}", noun);
  const bool ends_in_ies =
      noun.size() > 1 && noun.back() == 'y' && std::string_view("aeou").find(noun[noun.size() - 2]) == noun.npos;
  return ends_in_ies ? fmt::format("{} {}ies", count, noun.substr(0, noun.size() - 1))
                     : fmt::format("{} {}s", count, noun);
}

}  // namespace flashjit
