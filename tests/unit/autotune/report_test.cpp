#include <string>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "autotune/report/report.h"

namespace flashjit {
namespace {

// What stands between the tags of the data, as a browser's parser would cut it out.
std::string data_of(const std::string& page) {
  const std::string open = "<script type=\"application/json\" id=\"data\">";
  const auto begin = page.find(open) + open.size();
  return page.substr(begin, page.find("</script", begin) - begin);
}

std::string page_of(const std::string& json) {
  const auto page = html_report(json);
  EXPECT_TRUE(page) << page.error().message;
  return page ? *page : "";
}

TEST(Report, HoldsEverySpecAsItWasGiven) {
  nlohmann::json report{{"machine", {{"gpu", "NVIDIA H200"}, {"noise", 0.004}, {"driver", nullptr}}},
                        {"specs", nlohmann::json::array()}};
  for (int i = 0; i < 200; ++i) {
    report["specs"].push_back(
        {{"spec", "fwd bf16 d=64 heads=" + std::to_string(i) + " mask=\"q < k & k <= 9\""},
         {"default_us", 2.5},
         {"best_us", nullptr},
         {"cut", {{{"why", "a"}, {"count", 3}}}},
         {"candidates", {{{"schedule", "family=sync"}, {"fields", {{"tile_q", 64}}}, {"us", 2.5}}}}});
  }
  const std::string page = page_of(report.dump());
  EXPECT_EQ(nlohmann::json::parse(data_of(page)), report);
}

TEST(Report, NothingInTheDataEndsItsElement) {
  for (const std::string text : {"</script><script>alert(1)</script>", "<!-- <script>", "]]>", "&lt;", "' \" \\ \n \t",
                                 "\xe2\x80\xa8", "@data@", "@report.js@", "{", "</SCRIPT "}) {
    const nlohmann::json report{
        {"specs", {{{"spec", text}, {"candidates", {{{"schedule", text}, {"fields", {{text, text}}}}}}}}}};
    const std::string page = page_of(report.dump());
    const std::string data = data_of(page);
    EXPECT_EQ(data.find('<'), std::string::npos) << text;
    EXPECT_EQ(nlohmann::json::parse(data), report) << text;
    EXPECT_TRUE(page.ends_with("</html>\n"));
  }
}

TEST(Report, IsOneFileOfItsOwn) {
  const std::string page = page_of(R"({"specs":[]})");
  EXPECT_TRUE(page.starts_with("<!DOCTYPE html>"));
  for (const char* outside : {"src=", "@import", "url(", "<link", "https:", "//cdn", "@report", "@data@", "innerHTML",
                              "insertAdjacentHTML", "document.write", "eval("}) {
    EXPECT_EQ(page.find(outside), std::string::npos) << outside;
  }
  EXPECT_NE(page.find("default-src 'none'"), std::string::npos);
}

TEST(Report, AByteOrderMarkIsLeftOut) { EXPECT_EQ(data_of(page_of("\xef\xbb\xbf {\"specs\":[]}")), "{\"specs\":[]}"); }

TEST(Report, RefusesWhatIsNotAReport) {
  const struct {
    std::string json, says;
  } cases[] = {
      {"", "not JSON"},
      {"{\"specs\":[]", "not JSON"},
      {"{\"specs\":[]} {}", "not JSON"},
      {"{\"specs\":[{\"spec\":\"a\",\"flops\":1e999}]}", "not JSON"},
      {"{\"specs\":[{\"spec\":\"a\",\"flops\":NaN}]}", "not JSON"},
      {"{\"specs\":[{\"spec\":\"\xff\"}]}", "not JSON"},
      {std::string("{\"specs\":[]}\0", 13), "not JSON"},
      {std::string("{\"specs\":[]}\0 more", 18), "not JSON"},
      {std::string(1000000, '['), "not JSON"},
      {std::string(1000000, '[') + std::string(1000000, ']'), "report must be an object, it is array"},
      {"[]", "report must be an object"},
      {"{}", "report.specs must be an array, it is missing"},
      {"{\"specs\":null}", "report.specs must be an array, it is null"},
      {"{\"specs\":{}}", "report.specs must be an array, it is object"},
      {"{\"specs\":[1]}", "report.specs[0] must be an object, it is number"},
      {"{\"specs\":[{\"spec\":\"a\"},{}]}", "report.specs[1].spec must be a string, it is missing"},
      {"{\"specs\":[{\"spec\":\"a\",\"best_us\":\"12\"}]}", "report.specs[0].best_us must be a number, it is string"},
      {"{\"specs\":[{\"spec\":\"a\",\"cut\":[{\"count\":[]}]}]}",
       "report.specs[0].cut[0].count must be a number, it is array"},
      {"{\"specs\":[{\"spec\":\"a\",\"candidates\":{}}]}", "report.specs[0].candidates must be an array"},
      {"{\"specs\":[{\"spec\":\"a\",\"candidates\":[{\"schedule\":null}]}]}",
       "candidates[0].schedule must be a string, it is null"},
      {"{\"specs\":[{\"spec\":\"a\",\"candidates\":[{\"schedule\":\"b\",\"fields\":[]}]}]}",
       "candidates[0].fields must be an object"},
      {"{\"specs\":[{\"spec\":\"a\",\"candidates\":[{\"schedule\":\"b\",\"fields\":{\"c\":{}}}]}]}",
       "fields.c must be a string, a number"},
      {"{\"command\":[\"flashjit\"],\"specs\":[]}", "report.command must be a string, it is array"},
      {"{\"specs\":[{\"spec\":\"a\",\"best_low\":\"1\"}]}", "report.specs[0].best_low must be a number, it is string"},
      {"{\"specs\":[{\"spec\":\"a\",\"default_schedule\":1}]}",
       "report.specs[0].default_schedule must be a string, it is number"},
      {"{\"machine\":[],\"specs\":[]}", "report.machine must be an object"},
      {"{\"machine\":{\"gpu\":[]},\"specs\":[]}", "report.machine.gpu must be a string"},
  };
  for (const auto& [json, says] : cases) {
    const auto page = html_report(json);
    ASSERT_FALSE(page) << json.substr(0, 80);
    EXPECT_EQ(page.error().kind, ErrorKind::Invalid);
    EXPECT_NE(page.error().message.find(says), std::string::npos) << page.error().message;
  }
}

}  // namespace
}  // namespace flashjit
