// Masks and scores near the limits of the language: none takes long to plan.
#include <time.h>

#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "compiler/plan.h"
#include "tests/sanitized.h"

namespace flashjit {
namespace {

// Of the processor: other programs do not count.
constexpr double kMostSeconds = FLASHJIT_SANITIZED ? 10 : 0.5;

double seconds_of_thread() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

// f(i, text) written around `text`, n times.
template <class Function>
std::string nested(std::string text, int n, const Function& f) {
  for (int i = 0; i < n; ++i) text = f(std::to_string(i + 1), text);
  return text;
}

template <class Function>
std::string joined(int n, const std::string& with, const Function& f) {
  std::string text = f(std::to_string(1));
  for (int i = 2; i <= n; ++i) text += with + f(std::to_string(i));
  return text;
}

std::string mask(const std::string& text) { return "mask=\"" + text + "\""; }
std::string score(const std::string& text) { return "score=\"" + text + "\""; }

std::vector<std::string> adversaries() {
  using Text = const std::string&;
  return {
      mask(joined(30, "&", [](Text i) { return "abs(abs(abs(k-q)-" + i + ")-3*" + i + ")<5+" + i; })),
      mask(joined(26, "|", [](Text i) { return "abs(abs(abs(k-q)-" + i + ")-3*" + i + ")<5+" + i; })),
      mask(nested("k-q", 60, [](Text i, Text x) { return "abs(" + x + "-" + i + ")"; }) + "<9"),
      mask(nested("q", 14,
                  [](Text i, Text x) {
                    return "min(where(q<" + i + "," + x + ",q-" + i + "),where(q>30+" + i + ",q,q*2))";
                  }) +
           "<" +
           nested("k", 12,
                  [](Text i, Text x) {
                    return "max(where(k<" + i + "," + x + ",k-" + i + "),where(k>30+" + i + ",k,k*2))";
                  })),
      mask(nested("k", 26,
                  [](Text i, Text x) {
                    return "max(min(" + x + ",q-3*" + i + "),where(h<" + i + ",q+" + i + ",k_len-" + i + "))";
                  }) +
           "<q"),
      mask("k<64|k>" + nested("q", 10, [](Text i, Text x) { return "abs(" + x + "-" + i + "00)"; })),
      mask("(k<64|k>" + nested("q", 7, [](Text i, Text x) { return "abs(" + x + "-" + i + "00)"; }) + ")&" +
           joined(50, "+", [](Text i) { return "k*q%1" + i; }) + ">9"),
      mask(nested("k-q", 28, [](Text i, Text x) { return "min(abs(" + x + "-" + i + "),max(q-" + i + ",k))"; }) + "<9"),
      mask(nested("k-q", 24,
                  [](Text i, Text x) {
                    return "min(abs(" + x + "-" + i + "),max(q-" + i + "*" + i + ",k-7*" + i + "))";
                  }) +
           "<q"),
      mask("(k<64|abs(k-q)<64|k/512==q/512)&" + joined(48, "+", [](Text i) { return "abs(k*q-" + i + ")%1" + i; }) +
           ">9"),
      mask("(k<64|abs(k-q)<64|k/512==q/512)&" + joined(100, "+", [](Text i) { return "k%1" + i; }) + ">9"),
      mask(nested("k", 54, [](Text i, Text x) { return "where(k>" + i + "," + x + ",q*" + i + "+k)"; }) + "<q"),
      mask(nested("k<q", 45, [](Text i, Text x) { return "where(k>q+" + i + ",k<q*" + i + "," + x + ")"; })),
      mask(joined(70, "+", [](Text i) { return "abs(k-q-" + i + ")"; }) + "<900"),
      mask(joined(55, "|", [](Text i) { return "k/" + i + "==q/" + i; })),
      mask(joined(55, "&", [](Text i) { return "k/" + i + "!=q/" + i; })),
      mask(nested("k+q", 38, [](Text i, Text x) { return "(" + x + "%(90+" + i + "))*" + i; }) + "<q"),
      score("s+" + joined(34, "+", [](Text i) { return "min(abs(k-q-" + i + "),max(k,q+" + i + "))"; })),
      score(nested("s", 50, [](Text i, Text x) { return "where(k<q+" + i + "," + x + ",s*" + i + ".5)"; })),
  };
}

TEST(PlanningTime, ExpressionsNearTheLimits) {
  for (const std::string& adversary : adversaries()) {
    for (const char* operation : {"fwd", "bwd"}) {
      const std::string text = std::string(operation) + " bf16 d=64 heads=4 " + adversary;
      const Result<AttentionSpec> spec = parse_spec(text);
      ASSERT_TRUE(spec) << text << ": " << spec.error().message;
      for (const char* target : {"sm_80", "sm_90a", "x86-64-v4"}) {
        const double start = seconds_of_thread();
        (void)make_plan(*spec, **find_target(target));  // refusing it in time is as good

        EXPECT_LT(seconds_of_thread() - start, kMostSeconds) << text << " on " << target;
      }
    }
  }
}

}  // namespace
}  // namespace flashjit
