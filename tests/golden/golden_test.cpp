// Golden tests: what a pass or the emitter makes of a spec, compared with a file that was read and found right.
//
// A file NAME.txt in passes/ or emitted/ begins with lines `# key: value`; an empty line ends them, and the expected text
// follows.
//   # spec: fwd bf16 d=128 mask="causal"
//   # target: sm_80
//   # schedule: tile_q=128,...                 optional pins
//   # pass: pipeline_copies                    or
//   # emit: config.gen.cuh variant.gen.cuh     generated files, one after the other
// `golden_tests --update` writes the files anew; look at the difference before committing it.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "codegen/cuda/emit.h"
#include "compiler/plan.h"

namespace flashjit {
namespace {

bool g_update = false;

struct Golden {
  std::filesystem::path path;
  std::string header;  // as it stands in the file
  std::map<std::string, std::string> fields;
  std::string expected;
};

Golden read_golden(const std::filesystem::path& path) {
  Golden golden{path, {}, {}, {}};
  std::ifstream file(path, std::ios::binary);
  std::string line;
  while (std::getline(file, line) && line.starts_with("# ")) {
    golden.header += line + "\n";
    const std::size_t colon = line.find(": ");
    if (colon != line.npos) golden.fields[line.substr(2, colon - 2)] = line.substr(colon + 2);
  }
  std::ostringstream rest;
  rest << file.rdbuf();
  golden.expected = rest.str();
  return golden;
}

std::vector<std::filesystem::path> golden_files() {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(FLASHJIT_TESTS_DIR "/golden")) {
    if (entry.path().extension() == ".txt") paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

Result<std::string> emitted(const Plan& plan, const std::string& names) {
  FLASHJIT_ASSIGN(source, emit_cuda(plan));
  std::istringstream wanted(names);
  std::string text;
  for (std::string name; wanted >> name;) {
    const auto file = std::find_if(source.generated.begin(), source.generated.end(),
                                   [&](const SourceFile& f) { return f.name == name; });
    if (file == source.generated.end()) return invalid("emit: no generated file is called " + name);
    text += "==== " + name + "\n" + file->text;
  }
  return text;
}

Result<std::string> produce(Golden& golden) {
  FLASHJIT_ASSIGN(spec, parse_spec(golden.fields["spec"]));
  FLASHJIT_ASSIGN(target, find_target(golden.fields["target"]));
  FLASHJIT_ASSIGN(schedule, parse_schedule(golden.fields["schedule"]));
  const std::string wanted = golden.fields["pass"];
  std::string dumped;
  FLASHJIT_ASSIGN(plan, make_plan(spec, *target, schedule, [&](std::string_view pass, const std::string& dump) {
                    if (pass == wanted) dumped = dump;
                  }));
  if (const auto emit = golden.fields.find("emit"); emit != golden.fields.end()) return emitted(plan, emit->second);
  if (dumped.empty()) return invalid("pass: there is no pass `" + wanted + "`");
  return dumped;
}

class GoldenTest : public testing::TestWithParam<std::filesystem::path> {};

TEST_P(GoldenTest, Matches) {
  Golden golden = read_golden(GetParam());
  const auto produced = produce(golden);
  ASSERT_TRUE(produced) << golden.path << ": " << produced.error().message;
  if (g_update && *produced != golden.expected) {
    std::ofstream(golden.path, std::ios::binary) << golden.header << "\n" << *produced;
    return;
  }
  EXPECT_EQ(*produced, golden.expected) << golden.path << "\nafter looking at the difference: golden_tests --update";
}

std::string test_name(const testing::TestParamInfo<std::filesystem::path>& info) {
  return info.param.parent_path().stem().string() + "_" + info.param.stem().string();
}

INSTANTIATE_TEST_SUITE_P(Files, GoldenTest, testing::ValuesIn(golden_files()), test_name);

}  // namespace
}  // namespace flashjit

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    if (std::string_view(argv[i]) == "--update") {
      flashjit::g_update = true;
    } else {
      fprintf(stderr, "%s: the only option of its own is --update\n", argv[i]);
      return 2;
    }
  }
  return RUN_ALL_TESTS();
}
