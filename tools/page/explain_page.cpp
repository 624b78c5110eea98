#include "tools/page/explain_page.h"

#include <fmt/format.h>

#include "compiler/spec/spec.h"
#include "tools/page/markup.h"
#include "tools/page/pictures.h"
#include "tools/support/output.h"

namespace flashjit {
namespace {

std::string article_of(const std::string& spec, const std::string& markup) {
  return fmt::format("<article>\n<h2><code>{}</code></h2>\n{}</article>\n", escaped(spec), markup);
}

std::string definition(const char* term, const std::string& text) {
  return fmt::format("<dt>{}</dt><dd>{}</dd>\n", term, escaped(text));
}

std::string schedule_row(const char* term, const Schedule& schedule) {
  return fmt::format("<dt>{}</dt><dd><code>{}</code></dd>\n", term, broken_at_commas(print(schedule)));
}

std::string head_of(const KernelSection& kernel) {
  const Plan& plan = kernel.plan;
  std::string rows = definition("target", kernel.device) + schedule_row("schedule", plan.schedule);
  if (kernel.hinted && *kernel.hinted != plan.schedule) rows += schedule_row("told this shape", *kernel.hinted);
  rows += definition("shape", print(kernel.shape));
  if (plan.target.gpu)
    rows += definition(
        "per block", fmt::format("{} threads and {} of shared memory", plan.threads(), bytes_text(plan.smem_bytes())));
  std::string notes;
  for (const std::string& note : plan.all_notes()) notes += fmt::format("<li>{}</li>\n", escaped(note));
  if (!notes.empty()) notes = "<ul class=\"note notes\">\n" + notes + "</ul>\n";
  return "<header>\n<dl>\n" + rows + "</dl>\n" + notes + "</header>\n";
}

// If the values of a mask are not known, words stand in the place of its map.
std::string map_or_words(const KernelSection& kernel) {
  if (!kernel.map) return {};
  const Result<MaskMap>& map = *kernel.map;
  return map ? map_picture(*map, kernel.shape) : fmt::format("<p>{}</p>\n", escaped(map.error().message));
}

std::string folded_text(const std::string& text) {
  return "<details class=\"all\"><summary>All of it as text</summary>\n<pre>" + escaped(text) + "</pre></details>\n";
}

}  // namespace

void ExplainPage::add(const KernelSection& kernel) {
  std::string pictures = section("Tiles of the mask", map_or_words(kernel));
  if (kernel.roofline) {
    pictures += "<div>\n" + section("Roofline", roofline_picture(kernel.plan, *kernel.roofline)) +
                section("Time by unit", units_picture(*kernel.roofline)) + "</div>\n";
  }
  sections_.push_back(article_of(
      print(kernel.plan.spec),
      head_of(kernel) + (pictures.empty() ? "" : "<div class=\"pictures\">\n" + pictures + "</div>\n") +
          section("Roles, a main step of the loop", roles_picture(kernel.plan.program)) +
          section("Candidates", candidates_table(kernel.plan, kernel.candidates)) + folded_text(kernel.text)));
}

void ExplainPage::add_text(const std::string& spec, const std::string& text) {
  sections_.push_back(article_of(spec, "<section><pre>" + escaped(text) + "</pre></section>\n"));
}

void ExplainPage::add_failure(const std::string& spec, const std::string& target, const Error& error) {
  const std::string where = target.empty() ? "" : " for " + target;
  const std::string text = fmt::format("error{}: {}\n{}", where, error.message, error.detail);
  sections_.push_back(article_of(spec, "<p class=\"failed\">" + escaped(text) + "</p>\n"));
}

std::string ExplainPage::markup() const {
  std::string body = "<h1>What FlashJIT makes, and why</h1>\n<main>\n";
  for (const std::string& section : sections_) body += section;
  body += fmt::format("</main>\n<footer>\n<p class=\"note\">Made by</p>\n<p><code>{}</code></p>\n</footer>\n",
                      escaped(command_));
  return page_of("flashjit explain", body);
}

}  // namespace flashjit
