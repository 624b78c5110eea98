// These functions make pieces of a page. Words that come from a spec, a name or a message are escaped, so that they are
// shown and have no meaning as markup.
#pragma once

#include <string>
#include <string_view>

namespace flashjit {

// Returns the text in a form that may stand in elements and in attributes, of XML as well as of HTML.
std::string escaped(std::string_view text);

// Escapes a list of fields, and lets its lines end behind commas, because lists are longer than a line of a telephone.
std::string broken_at_commas(std::string_view fields);

// Puts the head of a page around `body`, which is markup.
std::string page_of(std::string_view title, std::string_view body);

// Puts a heading above a section of a page, or returns nothing if the section is empty.
std::string section(std::string_view heading, std::string_view markup);

// Makes a picture of this size in its own units, which scales to the page. `words` describe it to people who cannot see
// it.
std::string picture_of(std::string_view name, double width, double height, std::string_view words,
                       std::string_view markup);

// Shows a square of a colour class of the page beside its meaning.
std::string legend_entry(std::string_view colour, std::string_view words);

}  // namespace flashjit
