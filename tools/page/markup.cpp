#include "tools/page/markup.h"

#include <fmt/format.h>

#include "compiler/spec/text_form.h"
#include "tools/page/style.h"

namespace flashjit {

std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : harmless(text, Lines::Many)) {
    switch (c) {
      case '&': out += "&amp;"; break;
      case '<': out += "&lt;"; break;
      case '>': out += "&gt;"; break;
      case '"': out += "&quot;"; break;
      case '\'': out += "&#39;"; break;
      default: out += c;
    }
  }
  return out;
}

std::string broken_at_commas(std::string_view fields) {
  std::string out;
  for (const char c : escaped(fields)) {
    out += c;
    if (c == ',') out += "<wbr />";
  }
  return out;
}

std::string page_of(std::string_view title, std::string_view body) {
  return fmt::format(
      "<!DOCTYPE html>\n<html lang=\"en\" xmlns=\"http://www.w3.org/1999/xhtml\">\n<head>\n<meta charset=\"utf-8\" />\n"
      "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\" />\n"
      "<meta name=\"color-scheme\" content=\"light dark\" />\n<title>{}</title>\n<style>{}</style>\n</head>\n"
      "<body>\n{}</body>\n</html>\n",
      escaped(title), kPageStyle, body);
}

std::string section(std::string_view heading, std::string_view markup) {
  if (markup.empty()) return {};
  return fmt::format("<section>\n<h3>{}</h3>\n{}</section>\n", escaped(heading), markup);
}

std::string picture_of(std::string_view name, double width, double height, std::string_view words,
                       std::string_view markup) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"{}\" viewBox=\"0 0 {:.0f} {:.0f}\" role=\"img\" "
      "aria-label=\"{}\">\n{}</svg>\n",
      name, width, height, escaped(words), markup);
}

std::string legend_entry(std::string_view colour, std::string_view words) {
  return fmt::format("<li><span class=\"swatch {}\"></span>{}</li>\n", colour, escaped(words));
}

}  // namespace flashjit
