// Bundles without a compiler: their bytes, what is found in them, manifests and recordings.
#include "runtime/bundle/bundle.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "flashjit/flashjit.h"
#include "runtime/driver/driver.h"
#include "tests/requests.h"
#include "tests/temporary_folder.h"

namespace flashjit {
namespace {

namespace fs = std::filesystem;
using Bytes = std::vector<std::uint8_t>;

constexpr char kSpec[] = "fwd bf16 d=64 heads=4/2 mask=\"causal\"";
constexpr char kPlain[] = "fwd bf16 d=64 heads=4/2";

// Code that compresses, and differs from kernel to kernel.
Bytes code_of(std::uint8_t seed) {
  Bytes code(3000);
  for (std::size_t i = 0; i < code.size(); ++i) code[i] = static_cast<std::uint8_t>(i % 37 * seed);
  return code;
}

// As `flashjit build` would have made it, without a compiler: the code is no code.
BundleItem item_of(const char* spec, const char* target, const char* pins, const char* taken) {
  auto plan = plan_spec(spec, target, taken);
  EXPECT_TRUE(plan) << plan.error().message;
  auto source = emit_cuda(*plan);
  EXPECT_TRUE(source);
  Compiled compiled{.plan = *plan, .source = *source};
  compiled.facts.schedule = print(plan->schedule);
  compiled.facts.registers = 123;
  compiled.facts.notes = {"one", "two"};
  compiled.facts.key = "abc";
  const auto request = Request::parse(spec, target, pins);
  EXPECT_TRUE(request);
  return bundle_item(bundle_key(*request), compiled, "nvrtc 1.2");
}

std::string text_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class BundleTest : public testing::Test {
 protected:
  std::string write(const char* name, const Bytes& bytes) const {
    const std::string path = folder + "/" + name;
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    chmod(path.c_str(), 0644);
    return path;
  }
  static Bytes bundle(std::vector<BundleItem> items, const std::string& templates = templates_digest()) {
    std::vector<PackedCode> codes;
    for (std::size_t i = 0; i < items.size(); ++i) codes.push_back(pack(code_of(static_cast<std::uint8_t>(i + 1))));
    return encode_bundle({templates, std::move(items)}, std::move(codes));
  }
  // The causal spec for sm_80 and sm_90a, where another schedule than the first choice was taken, and once with pins.
  std::string usual() const {
    return write("x.fjb",
                 bundle({item_of(kSpec, "sm_90a", "", "family=hopper,warpgroups=1,tile_kv=64"),
                         item_of(kSpec, "sm_80", "", ""), item_of(kSpec, "sm_80", "tile_kv=32", "tile_kv=32")}));
  }
  static Request asked(const char* spec, const char* target, const char* pins = "", int sm_count = 0) {
    return *Request::parse(spec, target, pins, sm_count);
  }
  static void expect_error(const Error& error, ErrorKind kind, std::initializer_list<const char*> words) {
    EXPECT_EQ(error.kind, kind);
    for (const char* word : words)
      EXPECT_NE((error.message + error.detail).find(word), std::string::npos) << error.message << "\n" << error.detail;
  }
  const TemporaryFolder temporary;
  const std::string& folder = temporary.path();
};

// Everything that can be wrong with a file, found without a crash.
bool is_sound(const Bytes& file) {
  const std::span<const std::uint8_t> bytes = file;
  const auto head = bundle_head_bytes(bytes.first(std::min(file.size(), kBundleHeaderBytes)), file.size());
  if (!head || *head > file.size()) return false;
  const auto index = decode_index(bytes.first(*head), file.size());
  if (!index) return false;
  return std::ranges::all_of(index->items, [&](const BundleItem& item) {
    return bool(unpack(item, bytes.subspan(item.offset, item.packed_bytes)));
  });
}

TEST_F(BundleTest, EveryFlippedBitAndEveryTruncationIsFound) {
  const Bytes file = bundle({item_of(kSpec, "sm_80", "", ""), item_of(kPlain, "sm_80", "", "")});
  ASSERT_TRUE(is_sound(file));
  for (std::size_t i = 0; i < file.size(); ++i) {
    Bytes bad = file;
    bad[i] ^= static_cast<std::uint8_t>(1u << i % 8);
    EXPECT_FALSE(is_sound(bad)) << i;
    EXPECT_FALSE(is_sound(Bytes(file.begin(), file.begin() + static_cast<std::ptrdiff_t>(i)))) << i;
  }
  Bytes longer = file;
  longer.push_back(0);
  EXPECT_FALSE(is_sound(longer));
}

TEST_F(BundleTest, SizesThatTheChecksumsCoverMayStillBeAnything) {
  const Bytes code = code_of(1);
  const PackedCode packed = pack(code);
  BundleItem item = item_of(kSpec, "sm_80", "", "");
  for (const std::uint64_t size :
       {std::uint64_t{0}, std::uint64_t{code.size() - 1}, std::uint64_t{code.size() + 1}, ~std::uint64_t{0}}) {
    EXPECT_FALSE(is_sound(encode_bundle({"t", {item}}, {{size, packed.frame}}))) << size;
  }
  for (const Bytes& frame : {Bytes{}, Bytes{1, 2, 3}, code})
    EXPECT_FALSE(is_sound(encode_bundle({"t", {item}}, {{code.size(), frame}})));
  EXPECT_TRUE(is_sound(encode_bundle({"t", {item}}, {packed})));
  EXPECT_TRUE(is_sound(encode_bundle({"t", {}}, {})));
  EXPECT_FALSE(is_sound(encode_bundle({"t", {item, item}}, {packed, packed}))) << "one key twice";
}

TEST_F(BundleTest, TheOrderOfKernelsChangesNoByte) {
  const BundleItem a = item_of(kSpec, "sm_80", "", ""), b = item_of(kPlain, "sm_80", "", ""),
                   c = item_of(kPlain, "sm_90a", "", "");
  const PackedCode x = pack(code_of(1)), y = pack(code_of(2)), z = pack(code_of(3));
  EXPECT_EQ(encode_bundle({"t", {a, b, c}}, {x, y, z}), encode_bundle({"t", {c, a, b}}, {z, x, y}));
}

TEST_F(BundleTest, WhatIsFoundIsWhatWasBuilt) {
  const auto bundles = Bundles::open({usual()});
  ASSERT_TRUE(bundles) << bundles.error().message;
  const auto found = bundles->find(asked(kSpec, "sm_90a", "", 99));
  ASSERT_TRUE(found && *found) << (found ? "missing" : found.error().message);
  const Compiled& compiled = **found;
  const auto plan = plan_spec(kSpec, "sm_90a", "family=hopper,warpgroups=1,tile_kv=64", 99);
  ASSERT_TRUE(plan);
  EXPECT_EQ(print(compiled.plan.schedule), print(plan->schedule));
  EXPECT_NE(print(compiled.plan.schedule), print(plan_spec(kSpec, "sm_90a", "")->schedule));
  EXPECT_EQ(compiled.plan.config.tile_kv, 64);
  EXPECT_EQ(compiled.plan.config.hopper.warpgroups, 1);
  EXPECT_EQ(compiled.plan.smem_bytes(), plan->smem_bytes());
  EXPECT_EQ(compiled.plan.threads(), plan->threads());
  EXPECT_EQ(compiled.plan.target.sm_count, 99);
  ASSERT_EQ(compiled.plan.launches.size(), 1u);
  EXPECT_EQ(compiled.plan.launches[0].entry, "flashjit_forward");
  EXPECT_EQ(compiled.binary->payload, code_of(1));
  EXPECT_EQ(compiled.facts.source, "bundle");
  EXPECT_EQ(compiled.facts.spec, kSpec);
  EXPECT_EQ(compiled.facts.schedule, print(plan->schedule));
  EXPECT_EQ(compiled.facts.family, "hopper");
  EXPECT_EQ(compiled.facts.registers, 123);
  EXPECT_EQ(compiled.facts.key, "abc");
  EXPECT_EQ(compiled.facts.notes, (std::vector<std::string>{"one", "two"}));
}

TEST_F(BundleTest, SpecPinsAndTargetMustAllAgree) {
  const auto bundles = Bundles::open({usual()});
  ASSERT_TRUE(bundles);
  const auto has = [&](const Request& request) {
    const auto found = bundles->find(request);
    EXPECT_TRUE(found);
    return found && found->has_value();
  };
  EXPECT_TRUE(has(asked("fwd  bf16 heads=4/2 d=64 layout=bshd mask=\"causal\"", "sm_80")))
      << "texts are compared in canonical form";
  EXPECT_TRUE(has(asked(kSpec, "sm_80", "tile_kv=32")));
  EXPECT_FALSE(has(asked(kSpec, "sm_80", "tile_kv=64")));
  EXPECT_FALSE(has(asked(kSpec, "sm_89")));
  EXPECT_FALSE(has(asked(kPlain, "sm_80")));
}

TEST_F(BundleTest, TheFirstBundleThatHasItIsTaken) {
  const std::string other =
      write("y.fjb", bundle({item_of(kPlain, "sm_80", "", ""), item_of(kSpec, "sm_80", "", "tile_q=64")}));
  const auto bundles = Bundles::open({usual(), other});
  ASSERT_TRUE(bundles);
  EXPECT_EQ((*bundles->find(asked(kSpec, "sm_80")))->facts.schedule, print(plan_spec(kSpec, "sm_80", "")->schedule));
  EXPECT_TRUE((*bundles->find(asked(kPlain, "sm_80"))).has_value());
}

TEST_F(BundleTest, WhatABundleOfAShardLacksMayBeInAnother) {
  const BundleShards shards{.whole = "digest", .kernels = 20, .count = 16, .numbers = {3}};
  const auto bundles =
      Bundles::open({write("part.fjb", encode_bundle({templates_digest(), {item_of(kPlain, "sm_80", "", "")}, shards},
                                                     {pack(code_of(1))}))});
  ASSERT_TRUE(bundles);
  EXPECT_TRUE((*bundles->find(asked(kPlain, "sm_80"))).has_value()) << "what it has it is used for";
  for (const char* target : {"sm_80", "sm_89"}) {
    const Error missing = bundles->missing(asked(kSpec, target));
    EXPECT_NE(missing.detail.find("part.fjb has 1 of 16 shards"), std::string::npos) << missing.detail;
  }
}

TEST_F(BundleTest, BundlesOfOtherVersionsAreRefused) {
  const auto refused = Bundles::open({write("x.fjb", bundle({item_of(kSpec, "sm_80", "", "")}, std::string(64, 'f')))});
  ASSERT_FALSE(refused);
  expect_error(refused.error(), ErrorKind::Unsupported,
               {"x.fjb", "another version of FlashJIT", "ffffffffffff",
                "build it with this one: flashjit build MANIFEST --arch sm_80 -o "});
  // The templates agree, but not what is generated for this spec.
  BundleItem item = item_of(kSpec, "sm_80", "", "");
  item.facts["source"] = std::string(64, '0');
  const auto bundles = Bundles::open({write("y.fjb", bundle({item}))});
  ASSERT_TRUE(bundles);
  const auto found = bundles->find(asked(kSpec, "sm_80"));
  ASSERT_FALSE(found);
  expect_error(found.error(), ErrorKind::Unsupported,
               {"y.fjb", "another version of FlashJIT", "its source differs", "flashjit build MANIFEST --arch sm_80"});
}

TEST_F(BundleTest, FilesThatAreNoBundlesAreRefused) {
  const auto refused = [&](const std::string& path, ErrorKind kind, std::initializer_list<const char*> words) {
    const auto opened = Bundles::open({path});
    ASSERT_FALSE(opened);
    expect_error(opened.error(), kind, words);
    EXPECT_NE(opened.error().message.find(path), std::string::npos);
  };
  refused(folder + "/none.fjb", ErrorKind::NotFound, {"cannot be opened"});
  refused(folder, ErrorKind::Invalid, {"it is no file but a folder"});
  refused(write("empty", {}), ErrorKind::Invalid, {"no bundle"});
  refused(write("other", Bytes(5000, 7)), ErrorKind::Invalid, {"no bundle"});
  const std::string path = usual();
  ASSERT_EQ(chmod(path.c_str(), 0666), 0);
  refused(path, ErrorKind::Io, {"mode 666", "chmod go-w"});
  ASSERT_EQ(chmod(path.c_str(), 0644), 0);
  fs::resize_file(path, fs::file_size(path) - 1);
  refused(path, ErrorKind::Io, {"damaged", "bytes"});
}

TEST_F(BundleTest, ABundleThatIsCutShortWhileItIsOpenIsAnError) {
  const std::string path = usual();
  const auto bundles = Bundles::open({path});
  ASSERT_TRUE(bundles);
  fs::resize_file(path, 100);
  const auto found = bundles->find(asked(kSpec, "sm_90a"));
  ASSERT_FALSE(found);
  expect_error(found.error(), ErrorKind::Io, {"x.fjb", "damaged"});
}

TEST_F(BundleTest, WhatIsMissingIsNamedWithTheNearestAndTheCommand) {
  const auto bundles = Bundles::open({usual()});
  ASSERT_TRUE(bundles);
  expect_error(
      bundles->missing(asked("fwd bf16 d=64 heads=4/1 mask=\"causal\"", "sm_80", "tile_q=64")), ErrorKind::NotFound,
      {"heads=4/1", "FLASHJIT_JIT=off", "2 kernels for sm_80", "heads=4/2 mask=\"causal\" ;; schedule=tile_kv=32",
       "printf '%s\\n' 'fwd bf16 d=64 heads=4/1 mask=\"causal\" ;; schedule=tile_q=64' | flashjit build - --arch sm_80 -o more.fjb"});
  const auto other = bundles->check_target("sm_100a");
  ASSERT_FALSE(other);
  expect_error(other.error(), ErrorKind::NotFound,
               {"x.fjb", "kernels for sm_80, sm_90a", "nothing for sm_100a", "--arch sm_100a"});
  EXPECT_TRUE(bundles->check_target("sm_80"));
  EXPECT_FALSE(Bundles().check_target("sm_80"));
}

TEST_F(BundleTest, AManifestIsCheckedAsAWhole) {
  const auto bundles = Bundles::open({usual()});
  ASSERT_TRUE(bundles);
  const auto manifest = [&](const std::string& text) { return write("m.txt", Bytes(text.begin(), text.end())); };
  const std::string spec = kSpec, plain = kPlain;
  EXPECT_TRUE(bundles->check_manifest(
      manifest(spec + "\n# " + plain + "\n" + plain + " ;; arch=sm_90a\n" + spec + ";;schedule=tile_kv=32"), "sm_80"));
  const auto two =
      bundles->check_manifest(manifest(plain + "\n" + spec + "\n" + spec + ";;schedule=tile_q=64\n"), "sm_80");
  ASSERT_FALSE(two);
  expect_error(two.error(), ErrorKind::NotFound,
               {"2 of the 3 specs", "flashjit build '", "m.txt' --arch sm_80", "  fwd bf16 d=64 heads=4/2\n",
                "schedule=tile_q=64"});
  const auto bad = bundles->check_manifest(manifest("\nfwd bf16 d=63 heads=1\n"), "sm_80");
  ASSERT_FALSE(bad);
  expect_error(bad.error(), ErrorKind::Invalid, {"m.txt:2: d: 63"});
  EXPECT_FALSE(bundles->check_manifest(folder + "/none", "sm_80"));
}

// A death test of this style runs in a process of its own, in which nothing has opened NVRTC before.
TEST_F(BundleTest, SealedNothingOpensACompiler) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  const std::string path = usual();
  EXPECT_EXIT(
      {
        setenv("FLASHJIT_JIT", "off", 1);
        const auto bundles = Bundles::open({path});
        const auto found = compile_spec(kSpec, "sm_90a", "", {.bundles = &*bundles});
        const auto missing = compile_spec(kPlain, "sm_90a", "", {.bundles = &*bundles});
        const bool opened = text_of("/proc/self/maps").find("libnvrtc") != std::string::npos;
        fs::remove_all(fs::path(path).parent_path());  // _exit() leaves the fixture's folder
        _exit(!found                                        ? 1
              : missing                                     ? 2
              : missing.error().kind != ErrorKind::NotFound ? 3
              : opened                                      ? 4
              : found->facts.source != "bundle"             ? 5
                                                            : 0);
      },
      testing::ExitedWithCode(0), "");
}

TEST_F(BundleTest, WithACompilerABadKernelIsMadeAnewWithANote) {
  if (const auto nvrtc = Nvrtc::open(getenv("FLASHJIT_NVRTC") ? getenv("FLASHJIT_NVRTC") : ""); !nvrtc)
    GTEST_SKIP() << nvrtc.error().message;
  const std::string path = usual();
  const auto bundles = Bundles::open({path});
  ASSERT_TRUE(bundles);
  fs::resize_file(path, 100);
  const auto compiled = compile_spec(kSpec, "sm_80", "", {.bundles = &*bundles});
  ASSERT_TRUE(compiled) << compiled.error().message;
  EXPECT_EQ(compiled->facts.source, "compiled");
  EXPECT_NE(compiled->facts.notes.back().find("although a bundle has it"), std::string::npos);
}

TEST_F(BundleTest, OnAGpuWhatIsMissingFailsWhenTheEngineIsMade) {
  const auto driver = Driver::open();
  if (!driver) GTEST_SKIP() << driver.error().message;
  const auto info = (*driver)->device(0);
  ASSERT_TRUE(info);
  const Target* target = target_for_compute_capability(info->major, info->minor);
  if (!target) GTEST_SKIP() << "no target for this GPU";
  const std::string own(target->name), wanted = std::string(kSpec) + "\n" + kPlain + "\n";
  const std::string good = write("good.fjb", bundle({item_of(kSpec, own.c_str(), "", "")}));
  const std::string manifest = write("m.txt", Bytes(wanted.begin(), wanted.end()));
  setenv("FLASHJIT_JIT", "off", 1);
  const auto none = Engine::create({}),
             other = Engine::create({.bundles = {write("other.fjb", bundle({item_of(kSpec, "sm_87", "", "")}))}}),
             missing = Engine::create({.bundles = {good}, .required = manifest}),
             enough = Engine::create({.bundles = {good}});
  const auto absent = enough ? (*enough)->prepare(kPlain) : Result<std::shared_ptr<Kernel>>(enough.error());
  unsetenv("FLASHJIT_JIT");
  ASSERT_FALSE(none || other || missing || absent);
  EXPECT_TRUE(enough);
  expect_error(none.error(), ErrorKind::NotFound, {"no bundle was given", "flashjit build"});
  expect_error(other.error(), ErrorKind::NotFound, {"other.fjb", "kernels for sm_87", own.c_str()});
  expect_error(missing.error(), ErrorKind::NotFound, {"1 of the 2 specs", kPlain, "flashjit build '"});
  expect_error(absent.error(), ErrorKind::NotFound, {kPlain, kSpec, "flashjit build -"});
}

TEST_F(BundleTest, ManifestsAreReadLineByLine) {
  const auto lines =
      parse_manifest("# a\n\n  fwd a  \r\nfwd b;;arch=sm_80 , sm_90a;; schedule=x=1,y=2\n\t# c\nfwd d ;; ", "m");
  ASSERT_TRUE(lines) << lines.error().message;
  const std::vector<ManifestLine> expected = {
      {"fwd a", "", {}, 3}, {"fwd b", "x=1,y=2", {"sm_80", "sm_90a"}, 4}, {"fwd d", "", {}, 6}};
  EXPECT_EQ(*lines, expected);
  EXPECT_EQ(print(expected[1]), "fwd b ;; schedule=x=1,y=2 ;; arch=sm_80,sm_90a");
  constexpr std::pair<const char*, const char*> kBad[] = {
      {";; arch=sm_80", "the spec is missing"},
      {"fwd ;; arch", "arch= has no value"},
      {"fwd ;; arch=", "arch= has no value"},
      {"fwd ;; schedule=", "schedule= has no value"},
      {"fwd ;; arch=,", "a comma too many"},
      {"fwd ;; arch=a,", "a comma too many"},
      {"fwd ;; arch=a, ,b", "a comma too many"},
      {"fwd ;; colour=red", "'colour' is neither"},
      {"fwd ;; arch=a ;; arch=b", "arch= is given twice"},
      {"fwd ;; schedule=a ;; schedule=b", "schedule= is given twice"},
      {"fwd ;; ;; x", "'' is neither"}};
  for (const auto& [bad, words] : kBad) {
    const auto refused = parse_manifest(std::string("fwd\n") + bad, "m");
    ASSERT_FALSE(refused) << bad;
    expect_error(refused.error(), ErrorKind::Invalid, {"m:2: ", words});
  }
}

TEST_F(BundleTest, ManyWritersRecordEachLineOnce) {
  const std::string path = folder + "/recorded.txt";
  std::ofstream(path) << "# by hand\nfwd 0";  // the last line is not finished
  constexpr int kProcesses = 4, kThreads = 4, kLines = 25;
  for (int p = 0; p < kProcesses; ++p) {
    if (fork() != 0) continue;
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&] {
        const auto recorder = Recorder::open(path);
        for (int i = 0; i < kLines; ++i) {
          if (!recorder || !recorder->add({.spec = "fwd " + std::to_string(i)})) _exit(1);
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    _exit(0);
  }
  for (int p = 0; p < kProcesses; ++p) {
    int status = 0;
    ASSERT_GT(wait(&status), 0);
    EXPECT_EQ(status, 0);
  }
  const auto lines = read_manifest(path);
  ASSERT_TRUE(lines);
  std::vector<std::string> specs;
  for (const ManifestLine& line : *lines) specs.push_back(line.spec);
  std::ranges::sort(specs);
  EXPECT_EQ(specs.size(), static_cast<std::size_t>(kLines));
  EXPECT_EQ(std::ranges::adjacent_find(specs), specs.end());
}

TEST_F(BundleTest, ARecordingThatCannotBeWrittenIsRefusedAtOnce) {
  const std::string file = folder + "/file";
  std::ofstream(file) << "\n";
  for (const Device device : {Device::Host, Device::Gpu}) {  // before a device is looked for
    const auto engine = Engine::create({.device = device, .record = file + "/recorded.txt"});
    ASSERT_FALSE(engine);
    expect_error(engine.error(), ErrorKind::Io, {"record: ", file.c_str(), "name a file that can be written"});
  }
}

TEST_F(BundleTest, AnEngineRecordsWhatItPrepares) {
  const std::string path = folder + "/recorded.txt";
  const auto engine = Engine::create({.device = Device::Host, .disk_cache = false, .threads = 1, .record = path});
  if (!engine) GTEST_SKIP() << engine.error().message;
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE((*engine)->prepare("fwd  fp32 heads=2 d=32"));
    ASSERT_TRUE((*engine)->prepare("fwd fp32 d=32 heads=2 mask=\"k <= q\""));
    ASSERT_TRUE((*engine)->prepare("fwd fp32 d=32 heads=2 mask=\"k<=q\""));
    ASSERT_TRUE((*engine)->prepare("fwd fp32 d=32 heads=2", {.schedule = "tile_q=16"}));
    ASSERT_FALSE((*engine)->prepare("fwd fp32 d=31 heads=2"));
  }
  // A kernel that is found by what its mask means has a line for each text: by these a bundle is asked.
  EXPECT_EQ(text_of(path),
            "fwd fp32 d=32 heads=2\nfwd fp32 d=32 heads=2 mask=\"k <= q\"\nfwd fp32 d=32 heads=2 mask=\"k<=q\"\n"
            "fwd fp32 d=32 heads=2 ;; schedule=tile_q=16\n");
  EXPECT_EQ((*engine)->counters().compiles, 3);
}

TEST_F(BundleTest, TheCInterfaceChecksItsList) {
  flashjit_engine_options options = {};
  options.struct_size = sizeof options;
  options.host = 1;
  const auto refused = [&](const char* words) {
    flashjit_engine* engine = nullptr;
    flashjit_error* error = nullptr;
    EXPECT_EQ(flashjit_engine_create(&options, &engine, &error), FLASHJIT_INVALID);
    EXPECT_NE(std::string(flashjit_error_message(error)).find(words), std::string::npos)
        << flashjit_error_message(error);
    flashjit_error_destroy(error);
  };
  options.bundle_count = 1;
  refused("bundle_count: 1 with bundles null");
  const char* const none[] = {nullptr};
  options.bundles = none;
  refused("bundles[0]: null");
  options.bundle_count = -1;
  refused("bundle_count: -1");
}

}  // namespace
}  // namespace flashjit
