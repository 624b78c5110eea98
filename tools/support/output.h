// What the command prints. Results go to stdout: one JSON object per line with --json, otherwise text. Errors go to
// stderr.
#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "compiler/result.h"
#include "flashjit/flashjit.hpp"

namespace flashjit {

using Json = nlohmann::ordered_json;

// The fields that every line has; ok until set_error.
Json result_line(std::string_view spec, std::string_view target, std::string_view schedule);
void set_error(Json& line, const Error& error);
// What is known of a compiled kernel: the fields of `compile`.
void add_facts(Json& line, const Facts& facts);

enum class Exit { Done = 0, Failed = 1, Usage = 2 };

class Output {
 public:
  explicit Output(bool json) : json_(json) {}
  bool json() const { return json_; }
  // `line` with --json, else `text`.
  void result(const Json& line, const std::string& text);
  // The error on stderr, and as a line with --json; the command's exit code becomes Failed.
  void failure(Json line, const Error& error);
  void text(const std::string& text);  // nothing with --json
  int exit_code() const;

 private:
  bool json_;
  bool failed_ = false;
};

std::string bytes_text(double bytes);        // "1.5 MB"
std::string size_text(std::uint64_t bytes);  // the same

}  // namespace flashjit
