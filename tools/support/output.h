// This class prints for the command. Results go to stdout: one JSON object per line with --json, otherwise text. Errors
// go to stderr. Whatever the text is, a terminal shows it and does not obey it.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

#include <nlohmann/json.hpp>

#include "compiler/result.h"
#include "flashjit/flashjit.hpp"

namespace flashjit {

using Json = nlohmann::ordered_json;

// Returns the fields that every line has. `ok` is true until set_error.
Json result_line(std::string_view spec, std::string_view target, std::string_view schedule);
void set_error(Json& line, const Error& error);
// Adds what is known about a compiled kernel: the fields of `compile`.
void add_facts(Json& line, const Facts& facts);

enum class Exit { Done = 0, Failed = 1, Usage = 2 };

class Output {
 public:
  explicit Output(bool json) : json_(json) {}
  bool json() const { return json_; }
  // Prints `line` with --json, else `text`.
  void result(const Json& line, const std::string& text);
  // Prints the error on stderr, and as a line with --json. The command's exit code becomes Failed.
  void failure(Json line, const Error& error);
  void text(const std::string& text);  // prints nothing with --json
  // The command alone made the picture, so a terminal obeys the colours in it.
  void text(const std::string& before, const std::string& picture, const std::string& behind);
  static bool shows_colours();  // Returns whether standard output is such a terminal.
  // Lines of a word and a colon are headings, which are bold where that can be seen.
  void help(const std::string& text);
  int exit_code() const;

 private:
  void not_written();
  bool json_;
  bool failed_ = false;
};

// This has to be called once, first. From then on a closed pipe is an error of the write to it, so that a kernel's file
// is not lost. A reader of stdout that has gone (`| head`) ends the command silently by SIGPIPE, as it ends other
// programs.
void notice_closed_pipes();

// Returns how wide help may be: the value of COLUMNS, else the width of the terminal that stdout is, else 100.
std::size_t help_columns();

// Prints one or several lines on stderr.
void say(std::string_view text);
inline void say_note(std::string_view text) { say("note: " + std::string(text) + "\n"); }

// One line on stderr tells how far work has come. On a terminal it is written over, in a log there is one every few
// seconds, and there is none in the first second.
class StatusLine {
 public:
  StatusLine();
  void show(std::string_view text);
  void clear();

 private:
  using Clock = std::chrono::steady_clock;
  const bool terminal_;
  const Clock::time_point start_ = Clock::now();
  double next_s_ = 1;
  bool shown_ = false;
};

std::string bytes_text(double bytes);        // for example "1.5 MB"
std::string size_text(std::uint64_t bytes);  // formats bytes in the same way

}  // namespace flashjit
