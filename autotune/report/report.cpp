#include "autotune/report/report.h"

#include <span>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "autotune/report/embedded_report.h"

namespace flashjit {
namespace {

using Json = nlohmann::json;

enum class Type { Text, Number, List };

struct Field {
  const char* name;
  Type type;
  bool required = false;
};

constexpr Field kReport[] = {{"specs", Type::List, true}, {"command", Type::Text}};
constexpr Field kSpec[] = {{"spec", Type::Text, true},    {"shape", Type::Text},
                           {"flops", Type::Number},       {"bytes", Type::Number},
                           {"peak_tflops", Type::Number}, {"peak_tbs", Type::Number},
                           {"peak_how", Type::Text},      {"default_us", Type::Number},
                           {"best_us", Type::Number},     {"best_schedule", Type::Text},
                           {"best_why", Type::Text},      {"default_schedule", Type::Text},
                           {"best_low", Type::Number},    {"tried_unlisted", Type::Number},
                           {"best_high", Type::Number},   {"first_choice_us", Type::Number},
                           {"regret", Type::Number},      {"tried", Type::Number},
                           {"space", Type::Number},       {"cut", Type::List},
                           {"candidates", Type::List}};
constexpr Field kCut[] = {{"why", Type::Text}, {"count", Type::Number}};
constexpr Field kCandidate[] = {{"schedule", Type::Text, true}, {"predicted_us", Type::Number}, {"us", Type::Number},
                                {"us_low", Type::Number},       {"us_high", Type::Number},      {"status", Type::Text},
                                {"registers", Type::Number},    {"smem_bytes", Type::Number},   {"why", Type::Text}};

bool is(const Json& value, Type type) {
  return type == Type::Text ? value.is_string() : type == Type::Number ? value.is_number() : value.is_array();
}

Error wrong(std::string_view path, std::string_view expected, const Json* value) {
  return invalid(
      fmt::format("report: {} must be {}, it is {}", path, expected, value ? value->type_name() : "missing"));
}

Result<void> check(const Json& object, const std::string& path, std::span<const Field> fields) {
  if (!object.is_object()) return wrong(path, "an object", &object);
  for (const Field& field : fields) {
    const auto found = object.find(field.name);
    const bool present = found != object.end() && !(found->is_null() && !field.required);
    if (!present && !field.required) continue;
    const char* expected = field.type == Type::Text ? "a string" : field.type == Type::Number ? "a number" : "an array";
    const std::string name = path + "." + field.name;
    if (!present) return wrong(name, expected, nullptr);
    if (!is(*found, field.type)) return wrong(name, expected, &*found);
  }
  return {};
}

// Checks that a field is a flat object of names and values, or absent.
Result<void> check_values(const Json& object, const std::string& path, const char* name) {
  const auto found = object.find(name);
  if (found == object.end() || found->is_null()) return {};
  if (!found->is_object()) return wrong(fmt::format("{}.{}", path, name), "an object", &*found);
  for (const auto& [key, value] : found->items()) {
    if (!value.is_structured()) continue;
    return wrong(fmt::format("{}.{}.{}", path, name, key), "a string, a number or a boolean", &value);
  }
  return {};
}

Result<void> check_list(const Json& object, const std::string& path, const char* name, std::span<const Field> fields) {
  const auto found = object.find(name);
  if (found == object.end() || found->is_null()) return {};
  for (std::size_t i = 0; i < found->size(); ++i) {
    FLASHJIT_TRY(check((*found)[i], fmt::format("{}.{}[{}]", path, name, i), fields));
  }
  return {};
}

Result<void> check_report(const Json& report) {
  FLASHJIT_TRY(check(report, "report", kReport));
  FLASHJIT_TRY(check_values(report, "report", "machine"));
  FLASHJIT_TRY(check_list(report, "report", "specs", kSpec));
  for (std::size_t i = 0; i < report["specs"].size(); ++i) {
    const Json& spec = report["specs"][i];
    const std::string path = fmt::format("report.specs[{}]", i);
    FLASHJIT_TRY(check_list(spec, path, "cut", kCut));
    FLASHJIT_TRY(check_list(spec, path, "candidates", kCandidate));
    const auto candidates = spec.find("candidates");
    if (candidates == spec.end() || candidates->is_null()) continue;
    for (std::size_t j = 0; j < candidates->size(); ++j) {
      FLASHJIT_TRY(check_values((*candidates)[j], fmt::format("{}.candidates[{}]", path, j), "fields"));
    }
  }
  return {};
}

// Inside of a script element only `<` can end it or begin a comment, and in JSON it can only stand in a string.
std::string without_tags(std::string_view json) {
  std::string text;
  text.reserve(json.size());
  for (const char c : json) {
    if (c == '<') text += "\\u003c";
    else text += c;
  }
  return text;
}

}  // namespace

Result<std::string> html_report(std::string_view json) {
  // The parser works without exceptions. Its message would name the place, but only by throwing.
  const Json report = Json::parse(json, nullptr, false);
  // The parser takes a zero byte for the end; browsers do not.
  if (report.is_discarded() || json.find('\0') != json.npos) {
    return invalid("report: this is not JSON, or not all of it; numbers must be finite and text UTF-8");
  }
  FLASHJIT_TRY(check_report(report));
  std::string page;
  for (const EmbeddedFile& file : embedded_report()) {
    if (file.name == "report.html") page = file.text;
  }
  const auto fill = [&page](const std::string& name, std::string_view text) {
    page.replace(page.find("@" + name + "@"), name.size() + 2, text);
  };
  for (const EmbeddedFile& file : embedded_report()) {
    if (file.name != "report.html") fill(std::string(file.name), file.text);
  }
  // Browsers do not skip a byte order mark; this parser does.
  fill("data", without_tags(json.substr(json.find('{'))));
  return page;
}

}  // namespace flashjit
