#include "tools/support/output.h"

#include <cstdio>

#include <fmt/format.h>

namespace flashjit {
namespace {

// A full disk or a closed pipe must show in the exit code, so every line is flushed and checked.
bool put(std::FILE* stream, const std::string& text) {
  const bool wrote = std::fwrite(text.data(), 1, text.size(), stream) == text.size();
  return std::fflush(stream) == 0 && wrote;
}

// Text of the user comes back in results and need not be UTF-8.
std::string dump(const Json& line) { return line.dump(-1, ' ', false, Json::error_handler_t::replace); }

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
  line["key"] = facts.key;
  line["notes"] = facts.notes;
}

void Output::result(const Json& line, const std::string& text) {
  if (!put(stdout, json_ ? dump(line) + "\n" : text)) {
    if (!failed_) put(stderr, "error: standard output cannot be written (a full disk or a closed pipe?)\n");
    failed_ = true;
  }
}

void Output::failure(Json line, const Error& error) {
  failed_ = true;
  put(stderr, fmt::format("error: {}\n{}{}", error.message, error.detail,
                          error.detail.empty() || error.detail.ends_with('\n') ? "" : "\n"));
  if (!json_) return;
  set_error(line, error);
  result(line, "");
}

void Output::text(const std::string& text) {
  if (!json_) result({}, text);
}

int Output::exit_code() const { return static_cast<int>(failed_ ? Exit::Failed : Exit::Done); }

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
