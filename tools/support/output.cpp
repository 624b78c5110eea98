#include "tools/support/output.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include <fmt/format.h>

#include "compiler/spec/text_form.h"

namespace flashjit {
namespace {

constexpr std::size_t kStatusColumns = 150;
constexpr std::size_t kHelpColumns = 100;

// A full disk or a closed pipe must show in the exit code, so every line is flushed and checked.
bool put_raw(std::FILE* stream, std::string_view text) {
  const bool wrote = std::fwrite(text.data(), 1, text.size(), stream) == text.size();
  return std::fflush(stream) == 0 && wrote;
}

// Names of files, specs and manifests come back in messages and results, so the text is made harmless.
bool put(std::FILE* stream, std::string_view text) { return put_raw(stream, harmless(text, Lines::Many)); }

// A caller who started the command with SIGPIPE ignored wants an error instead.
bool dies_of_closed_pipes = false;

void die_of_closed_pipe() {
  std::signal(SIGPIPE, SIG_DFL);
  std::raise(SIGPIPE);
}

std::string_view variable_of_terminal(const char* name) {
  const char* value = std::getenv(name);
  return value ? value : "";
}

std::string with_bold_headings(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end), rest = text.substr(end, 1);
    const bool is_heading = line.ends_with(':') && line.find(' ') == line.npos;
    out += is_heading ? fmt::format("\x1b[1m{}\x1b[0m{}", line, rest) : fmt::format("{}{}", line, rest);
    text.remove_prefix(end + rest.size());
  }
  return out;
}

// The text is ASCII, because JSON can write every character so. Bytes that are no UTF-8 are replaced.
std::string dump(const Json& line) { return line.dump(-1, ' ', true, Json::error_handler_t::replace); }

}  // namespace

Json result_line(std::string_view spec, std::string_view target, std::string_view schedule) {
  Json line;
  line["spec"] = spec;
  line["target"] = target;
  line["schedule"] = schedule;
  line["ok"] = true;
  line["error"] = nullptr;
  return line;
}

void set_error(Json& line, const Error& error) {
  line["ok"] = false;
  line["error"] = {{"kind", name(error.kind)}, {"message", error.message}};
}

void add_facts(Json& line, const Facts& facts) {
  line["source"] = facts.source;
  line["compile_ms"] = facts.compile_ms;
  line["registers"] = facts.registers;
  line["spill_bytes"] = facts.spill_bytes;
  line["smem_bytes"] = facts.smem_bytes;
  line["cubin_bytes"] = facts.cubin_bytes;
  line["family"] = facts.family;
  line["weights"] = facts.weights;
  line["key"] = facts.key;
  line["notes"] = facts.notes;
}

void Output::result(const Json& line, const std::string& text) {
  if (!put(stdout, json_ ? dump(line) + "\n" : text)) not_written();
}

void Output::failure(Json line, const Error& error) {
  failed_ = true;
  say(fmt::format("error: {}\n{}{}", error.message, error.detail,
                  error.detail.empty() || error.detail.ends_with('\n') ? "" : "\n"));
  if (!json_) return;
  set_error(line, error);
  result(line, "");
}

void Output::text(const std::string& text) {
  if (!json_) result({}, text);
}

void Output::text(const std::string& before, const std::string& picture, const std::string& behind) {
  if (json_) return;
  if (!put(stdout, before) || !put_raw(stdout, picture) || !put(stdout, behind)) not_written();
}

bool Output::shows_colours() {
  const std::string_view terminal = variable_of_terminal("TERM");
  return ::isatty(STDOUT_FILENO) != 0 && variable_of_terminal("NO_COLOR").empty() && !terminal.empty() &&
         terminal != "dumb";
}

void Output::help(const std::string& text) {
  const std::string shown = harmless(text, Lines::Many);
  if (!put_raw(stdout, shows_colours() ? with_bold_headings(shown) : shown)) not_written();
}

void Output::not_written() {
  if (errno == EPIPE && dies_of_closed_pipes) die_of_closed_pipe();
  if (!failed_) say("error: standard output cannot be written (a full disk or a closed pipe?)\n");
  failed_ = true;
}

int Output::exit_code() const { return static_cast<int>(failed_ ? Exit::Failed : Exit::Done); }

void notice_closed_pipes() { dies_of_closed_pipes = std::signal(SIGPIPE, SIG_IGN) == SIG_DFL; }

std::size_t help_columns() {
  const std::string_view given = variable_of_terminal("COLUMNS");
  std::size_t columns = 0;
  const auto [end, error] = std::from_chars(given.data(), given.data() + given.size(), columns);
  if (error == std::errc() && end == given.data() + given.size() && columns > 0) return columns;
  winsize size = {};
  if (::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) return size.ws_col;
  return kHelpColumns;
}

void say(std::string_view text) { put(stderr, text); }

StatusLine::StatusLine() : terminal_(::isatty(STDERR_FILENO) != 0) {}

void StatusLine::show(std::string_view text) {
  const double now = std::chrono::duration<double>(Clock::now() - start_).count();
  if (now < next_s_) return;
  next_s_ = now + (terminal_ ? 0.2 : 5.0);
  const std::string line = harmless(text.substr(0, kStatusColumns), Lines::One);
  put_raw(stderr, terminal_ ? "\r\x1b[K" + line : line + "\n");
  shown_ = true;
}

void StatusLine::clear() {
  if (shown_ && terminal_) put_raw(stderr, "\r\x1b[K");
}

std::string bytes_text(double bytes) {
  const char* units[] = {"bytes", "kB", "MB", "GB", "TB"};
  int unit = 0;
  while (bytes >= 1000 && unit < 4) {
    bytes /= 1000;
    ++unit;
  }
  return unit == 0 ? fmt::format("{:.0f} {}", bytes, units[unit]) : fmt::format("{:.3g} {}", bytes, units[unit]);
}

std::string size_text(std::uint64_t bytes) { return bytes_text(static_cast<double>(bytes)); }

}  // namespace flashjit
