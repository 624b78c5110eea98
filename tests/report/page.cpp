// The report's JSON on stdin, its page on stdout: what the browser tests draw.
#include <cstdio>
#include <iostream>
#include <iterator>

#include "autotune/report/report.h"

int main() {
  const std::string json{std::istreambuf_iterator<char>(std::cin), {}};
  const auto page = flashjit::html_report(json);
  if (!page) {
    std::fprintf(stderr, "error: %s\n", page.error().message.c_str());
    return 1;
  }
  std::cout << *page;
}
