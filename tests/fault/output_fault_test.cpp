// Files that a user names to be written: what is there already, who else can write there, and writers that die.
#include "tests/fault/store_fixture.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/sysmacros.h>

#include <fstream>
#include <set>
#include <sstream>

#include "runtime/bundle/bundle.h"
#include "runtime/engine/prepare_log.h"
#include "runtime/store/output_file.h"
#include "runtime/store/temporary_file.h"
#include "runtime/tuned/records.h"
#include "tests/fault/system_calls.h"
#include "tools/command/tune_journal.h"
#include "tools/support/npy.h"

namespace flashjit {
namespace {

class OutputFault : public StoreFault {
 protected:
  std::string at(const std::string& name) const { return folder + "/" + name; }
  static std::string text_of(const std::string& path) {
    std::stringstream text;
    text << std::ifstream(path).rdbuf();
    return std::move(text).str();
  }
  static struct stat stat_of(const std::string& path) {
    struct stat info = {};
    EXPECT_EQ(lstat(path.c_str(), &info), 0) << path;
    return info;
  }
  std::string put(const std::string& name, const std::string& text) const {
    std::ofstream(at(name)) << text;
    return at(name);
  }
  // Everything that writes a file that was named.
  static Result<void> write_each_way(int way, const std::string& path) {
    const std::vector<std::uint8_t> bytes(64, 'x');
    switch (way) {
      case 0: return write_output(path, {"new"});
      case 1: return write_npy(path, {NpyType::U8, {64}, bytes});
      case 2: return write_records(path, {});
      default: return write_bundle(path, bytes);
    }
  }
  static constexpr int kWays = 4;
};

TEST_F(OutputFault, DevicesStayDevices) {
  for (int way = 0; way < kWays; ++way) {
    const std::string device = at("null" + std::to_string(way));
    if (mknod(device.c_str(), S_IFCHR | 0666, makedev(1, 3)) != 0) GTEST_SKIP() << "needs the right to make a device";
    ASSERT_EQ(chmod(device.c_str(), 0666), 0);
    const auto done = write_each_way(way, device);
    EXPECT_TRUE(done) << done.error().message;
    EXPECT_TRUE(S_ISCHR(stat_of(device).st_mode)) << way;
    EXPECT_EQ(stat_of(device).st_mode & 07777, 0666u) << way;
  }
}

TEST_F(OutputFault, AFullDeviceIsAnError) {
  const auto done = write_output("/dev/full", {"text"});
  ASSERT_FALSE(done);
  EXPECT_NE(done.error().message.find("/dev/full: cannot be written: No space left"), std::string::npos);
}

// Nothing can be made beside them: they are written through, and what the system says to that is the error.
TEST_F(OutputFault, FilesOfProcAreThere) {
  for (const char* path : {"/proc/version", "/proc/cmdline"}) {
    const auto done = write_output(path, {"text"});
    ASSERT_FALSE(done);
    EXPECT_TRUE(done.error().message.starts_with(path + std::string(": cannot be written: "))) << done.error().message;
    EXPECT_EQ(done.error().message.find("No such file"), std::string::npos) << done.error().message;
  }
  const auto beside = write_output("/proc/flashjit-test", {"text"});
  ASSERT_FALSE(beside);
  EXPECT_EQ(beside.error().message, "/proc/flashjit-test: cannot be written: Operation not permitted");
  EXPECT_TRUE(write_output("/proc/self/comm", {"a name"}));
}

TEST_F(OutputFault, AReaderOfAFifoGetsWhatIsWritten) {
  for (int way = 0; way < kWays; ++way) {
    const std::string fifo = at("fifo" + std::to_string(way)), link = at("link" + std::to_string(way));
    ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
    ASSERT_EQ(symlink(fifo.c_str(), link.c_str()), 0);
    std::string got;
    std::thread reader([&] { got = text_of(fifo); });
    const auto done = write_each_way(way, link);
    // A writer that replaced the FIFO leaves the reader waiting.
    {
      const FileHandle opened_and_closed(::open(fifo.c_str(), O_WRONLY | O_NONBLOCK));
    }
    reader.join();
    EXPECT_TRUE(done) << done.error().message;
    EXPECT_FALSE(got.empty()) << way;
    EXPECT_TRUE(S_ISFIFO(stat_of(fifo).st_mode)) << way;
    EXPECT_TRUE(S_ISLNK(stat_of(link).st_mode)) << way;
  }
}

TEST_F(OutputFault, AReaderThatGoesAwayIsAnErrorAndNoSignal) {
  const std::string fifo = at("fifo");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  const std::string much(std::size_t{4} << 20, 'x');  // more than a pipe holds
  EXPECT_EQ(in_child([&] {
              const pid_t reader = start([&] {
                const FileHandle file(::open(fifo.c_str(), O_RDONLY));
                char one = 0;
                return read(file.get(), &one, 1) == 1 ? 0 : 1;
              });
              const auto done = write_output(fifo, {much});
              return end_of(reader) == 0 && !done ? 0 : 1;
            }),
            0);
}

TEST_F(OutputFault, LinksGoOnLeadingToTheFile) {
  for (int way = 0; way < kWays; ++way) {
    const std::string name = std::to_string(way), file = put("file" + name, "old");
    ASSERT_EQ(mkdir(at("below" + name).c_str(), 0700), 0);
    ASSERT_EQ(symlink(("../file" + name).c_str(), at("below" + name + "/relative").c_str()), 0);
    ASSERT_EQ(symlink(at("below" + name + "/relative").c_str(), at("link" + name).c_str()), 0);
    EXPECT_TRUE(write_each_way(way, at("link" + name)));
    EXPECT_TRUE(S_ISLNK(stat_of(at("link" + name)).st_mode)) << way;
    EXPECT_TRUE(S_ISLNK(stat_of(at("below" + name + "/relative")).st_mode)) << way;
    EXPECT_NE(text_of(file), "old") << way;
  }
  ASSERT_EQ(symlink(at("later").c_str(), at("dangling").c_str()), 0);
  EXPECT_TRUE(write_output(at("dangling"), {"new"}));
  EXPECT_EQ(text_of(at("later")), "new");
  ASSERT_EQ(symlink(at("round").c_str(), at("round").c_str()), 0);
  EXPECT_FALSE(write_output(at("round"), {"new"}));
}

// What fs.protected_symlinks is for; it cannot help those who read links themselves.
TEST_F(OutputFault, ALinkThatSomebodyPlantedIsNotFollowed) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to be two users";
  ASSERT_EQ(mkdir(at("shared").c_str(), 0755), 0);
  ASSERT_EQ(chmod(at("shared").c_str(), 01777), 0);
  const std::string mine = put("mine", "old");
  for (const std::string& target : {mine, at("fresh")}) {
    const std::string link = at("shared/link");
    ASSERT_EQ(symlink(target.c_str(), link.c_str()), 0);
    ASSERT_EQ(lchown(link.c_str(), kOtherUser, kOtherUser), 0);
    for (int way = 0; way < kWays; ++way) {
      const auto done = write_each_way(way, link);
      ASSERT_FALSE(done) << way;
      EXPECT_NE(done.error().message.find("is a link of user 65534"), std::string::npos) << done.error().message;
    }
    ASSERT_EQ(lchown(link.c_str(), 0, 0), 0);
    EXPECT_EQ(target == mine ? text_of(mine) : "old", "old");
    EXPECT_TRUE(write_output(link, {"new"}));
    EXPECT_EQ(text_of(target), "new");
    ASSERT_EQ(unlink(link.c_str()), 0);
  }
}

TEST_F(OutputFault, OwnerAndModeAreKept) {
  for (int way = 0; way < kWays; ++way) {
    const std::string file = put("file" + std::to_string(way), "old");
    const mode_t mode = way == 3 ? 0604 : 0642;
    ASSERT_EQ(chmod(file.c_str(), mode), 0);
    const bool is_root = geteuid() == 0;
    ASSERT_EQ(is_root ? chown(file.c_str(), kOtherUser, kOtherUser) : 0, 0);
    const ino_t before = stat_of(file).st_ino;
    ASSERT_TRUE(write_each_way(way, file));
    const struct stat after = stat_of(file);
    EXPECT_NE(after.st_ino, before) << "not replaced, but written over";
    EXPECT_EQ(after.st_mode & 07777, mode) << way;
    if (is_root) {
      EXPECT_EQ(after.st_uid, kOtherUser) << way;
      EXPECT_EQ(after.st_gid, kOtherUser) << way;
    }
    EXPECT_NE(text_of(file), "old");
  }
}

TEST_F(OutputFault, BundlesAreWrittenByTheirOwnerAlone) {
  const std::string file = put("kernels.fjb", "old");
  ASSERT_EQ(chmod(file.c_str(), 0666), 0);
  const mode_t before = umask(0);
  const std::vector<std::uint8_t> bytes(8);
  EXPECT_TRUE(write_bundle(file, bytes));
  EXPECT_TRUE(write_bundle(at("new.fjb"), bytes));
  EXPECT_TRUE(write_output(at("new.txt"), {"text"}));
  umask(before);
  EXPECT_EQ(stat_of(file).st_mode & 07777, 0644u);
  EXPECT_EQ(stat_of(at("new.fjb")).st_mode & 07777, 0644u);
  EXPECT_EQ(stat_of(at("new.txt")).st_mode & 07777, 0666u);
}

// Its owner cannot be kept, or nothing can be put beside it.
TEST_F(OutputFault, WhatMayBeWrittenButNotReplacedIsWritten) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to be two users";
  ASSERT_EQ(chmod(folder.c_str(), 0755), 0);
  for (const mode_t mode : {0755, 0777, 01777}) {
    const std::string name = fmt::format("{:o}", mode);
    ASSERT_EQ(mkdir(at(name).c_str(), 0755), 0);
    const std::string file = put(name + "/file", "old");
    ASSERT_EQ(chmod(file.c_str(), 0666), 0);
    ASSERT_EQ(chmod(at(name).c_str(), mode), 0);
    const ino_t before = stat_of(file).st_ino;
    EXPECT_EQ(as_user(kOtherUser, [&] { return write_output(file, {"new"}) ? 0 : 1; }), 0) << name;
    EXPECT_EQ(text_of(file), "new") << name;
    EXPECT_EQ(stat_of(file).st_ino, before) << name;
    EXPECT_EQ(stat_of(file).st_uid, 0u) << name;
  }
}

// Whoever works for an hour wants to know it before.
TEST_F(OutputFault, WhatCannotBeWrittenIsKnownBefore) {
  const std::string file = put("file", "old");
  ASSERT_EQ(symlink("gone/away", at("dangling").c_str()), 0);
  ASSERT_EQ(mkdir(at("folder").c_str(), 0755), 0);
  for (const std::string& path : {at("folder"), file + "/below", at("dangling")}) {
    const auto done = check_output(path), written = write_output(path, {"new"});
    ASSERT_FALSE(written) << path;
    EXPECT_FALSE(done) << path;
  }
  for (const std::string& path : {file, at("new"), at("a/b/c"), std::string("/dev/null")}) {
    EXPECT_TRUE(check_output(path)) << path;
    EXPECT_TRUE(path == file ? text_of(file) == "old" : path == "/dev/null" || !fs::exists(path)) << path;
  }
  if (geteuid() != 0) return;
  ASSERT_EQ(chmod(folder.c_str(), 0755), 0);
  ASSERT_EQ(chmod(put("everybodys", "old").c_str(), 0666), 0);
  for (const char* name : {"new", "file", "folder/new", "x/new"})
    EXPECT_EQ(as_user(kOtherUser, [&] { return check_output(at(name)) ? 0 : 1; }), 1) << name;
  EXPECT_EQ(as_user(kOtherUser, [&] { return check_output(at("everybodys")) ? 0 : 1; }), 0);
}

TEST_F(OutputFault, AFullDiskLeavesWhatWasThere) {
  const std::string file = put("file", "old");
  for (const char* call : {"openat", "write", "renameat"}) {
    EXPECT_EQ(in_child([&] {
                system_calls::fail(call, ENOSPC);
                return write_output(file, {"new"}) ? 1 : 0;
              }),
              0)
        << call;
    EXPECT_EQ(text_of(file), "old") << call;
  }
  EXPECT_EQ(std::distance(fs::directory_iterator(folder), fs::directory_iterator()), 1);
  EXPECT_EQ(in_child([&] {
              const rlimit little = {1000, 1000};
              setrlimit(RLIMIT_FSIZE, &little);
              return write_output(file, {std::string(5000, 'x')}) ? 1 : 0;
            }),
            0);
  EXPECT_EQ(text_of(file), "old");
}

TEST_F(OutputFault, AKilledWriterLeavesTheOldOrTheNew) {
  const std::string texts[] = {std::string(3 << 20, 'a'), std::string(2 << 20, 'b')};
  const std::string file = put("file", texts[0]);
  SharedCounter written;
  for (int round = 0; round < (is_long() ? 1000 : 60); ++round) {
    const int before = written;
    const pid_t writer = start([&] {
      for (;; ++written) {
        for (const std::string& text : texts) {
          if (!write_output(file, {text})) return 1;
        }
      }
    });
    ASSERT_TRUE(written.reaches(before + 1));
    std::this_thread::sleep_for(std::chrono::microseconds(137 * round % 5000));
    kill(writer, SIGKILL);
    end_of(writer);
    const std::string found = text_of(file);
    ASSERT_TRUE(found == texts[0] || found == texts[1]) << round << ": " << found.size() << " bytes";
  }
}

// Names that could be foretold were opened without a look at what is there.
TEST_F(OutputFault, PlantedLinksAreNotFollowed) {
  const std::string victim = put("victim", "precious");
  for (int way = 0; way < kWays; ++way) {
    const std::string file = at("out" + std::to_string(way)), pid = std::to_string(getpid());
    for (const std::string& name : {file + "." + pid + ".part", file + ".tmp-" + pid})
      ASSERT_EQ(symlink(victim.c_str(), name.c_str()), 0);
    const auto done = write_each_way(way, file);
    EXPECT_TRUE(done) << way << ": " << done.error().message;
    EXPECT_EQ(text_of(victim), "precious") << way;
    EXPECT_TRUE(S_ISREG(stat_of(file).st_mode)) << way;
  }
}

TEST_F(OutputFault, TemporaryNamesCannotBeForetold) {
  const FileHandle here(::open(folder.c_str(), O_PATH | O_DIRECTORY));
  std::set<std::string> names;
  // Children start alike: what they draw must not be.
  for (int i = 0; i < 8; ++i) {
    EXPECT_EQ(in_child([&] {
                for (int j = 0; j < 8; ++j) {
                  TemporaryFile file(here.get(), fmt::format("part-{}-", i), 0600);
                  if (!file ||
                      !file.take_place_of(
                          (fs::read_symlink(fmt::format("/proc/self/fd/{}", file.get())).filename().string() + "-kept")
                              .c_str()))
                    return 1;
                }
                return 0;
              }),
              0);
  }
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string().substr(7);
    EXPECT_EQ(name.find_first_not_of("0123456789abcdef"), 32u) << name;
    // All of it differs, not only a part at one end.
    EXPECT_TRUE(names.insert(name.substr(0, 16)).second && names.insert(name.substr(16, 16)).second) << name;
  }
  EXPECT_EQ(names.size(), 128u);
}

TEST_F(OutputFault, InAFolderOfOthersNoLinkIsFollowed) {
  const std::string victim = put("victim", "precious");
  fs::create_directories(at("dump/kernel"));
  fs::create_directories(at("elsewhere"));
  ASSERT_EQ(symlink(victim.c_str(), at("dump/kernel/spec.txt").c_str()), 0);
  ASSERT_EQ(symlink(at("elsewhere").c_str(), at("dump/kernel/ir").c_str()), 0);
  ASSERT_EQ(symlink(at("elsewhere").c_str(), at("dump/other").c_str()), 0);
  const FileHandle dump(::open(at("dump").c_str(), O_PATH | O_DIRECTORY));
  EXPECT_TRUE(write_beneath(dump.get(), "kernel/spec.txt", "new"));
  EXPECT_EQ(text_of(at("dump/kernel/spec.txt")), "new");
  EXPECT_EQ(text_of(victim), "precious");
  EXPECT_FALSE(write_beneath(dump.get(), "kernel/ir/01.txt", "new"));
  EXPECT_FALSE(write_beneath(dump.get(), "other/spec.txt", "new"));
  EXPECT_TRUE(fs::is_empty(at("elsewhere")));
}

TEST_F(OutputFault, AJournalOfSomebodyElseIsNotUsed) {
  const std::string victim = put("victim", "precious\n"), journal = at("journal");
  const auto is_refused = [&] {
    const auto opened = Journal::open(journal, Json::object());
    unlink(journal.c_str());
    return !opened && opened.error().message.find(journal) == 0;
  };
  ASSERT_EQ(symlink(victim.c_str(), journal.c_str()), 0);
  EXPECT_TRUE(is_refused());
  ASSERT_EQ(link(victim.c_str(), journal.c_str()), 0);
  EXPECT_TRUE(is_refused());
  ASSERT_EQ(mkfifo(journal.c_str(), 0600), 0);
  EXPECT_TRUE(is_refused());  // at once
  if (geteuid() == 0) {
    put("journal", "");
    ASSERT_EQ(chown(journal.c_str(), kOtherUser, kOtherUser), 0);
    EXPECT_TRUE(is_refused());
  }
  EXPECT_EQ(text_of(victim), "precious\n");
  EXPECT_TRUE(Journal::open(journal, Json::object()));
}

TEST_F(OutputFault, AnUnwritableLogIsSaidOnceAndItsLinesAreHarmless) {
  const Schedule pins;
  const auto says = [&](const PrepareLog& log) {
    Facts facts;
    log.record(facts, pins);
    log.log(Error{ErrorKind::Invalid, "no\x1b[2J", {}}, "fwd \x1b]0;x\x07\nprepare all: fine");
    return facts.notes;
  };
  for (const char* file : {"/dev/full", "/dev/null/log"}) {
    const auto log = PrepareLog::open(file, "", "record");
    ASSERT_TRUE(log);
    std::vector<std::string> notes;
    for (int i = 0; i < 3; ++i) {
      for (const std::string& note : says(*log)) notes.push_back(note);
    }
    ASSERT_EQ(notes.size(), 1u) << file;
    EXPECT_EQ(notes[0].find(std::string("FLASHJIT_LOG: ") + file + ": cannot be written: "), 0u) << notes[0];
    EXPECT_NE(notes[0].find("unset it"), std::string::npos);
  }
  const auto log = PrepareLog::open(at("log"), "", "record");
  ASSERT_TRUE(log);
  EXPECT_TRUE(says(*log).empty());
  EXPECT_EQ(text_of(at("log")), "prepare fwd \\x1b]0;x\\x07\\x0aprepare all: fine: invalid: no\\x1b[2J\n");
  // A FIFO that nobody reads does not stop the program.
  ASSERT_EQ(mkfifo(at("fifo").c_str(), 0600), 0);
  const auto fifo = PrepareLog::open(at("fifo"), "", "record");
  EXPECT_EQ(says(*fifo).size(), 1u);
}

// A program must not wait in prepare for somebody to read what it records.
TEST_F(OutputFault, RecordingIntoAFifo) {
  const std::string fifo = at("fifo");
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  const auto recorder = Recorder::open(fifo);
  ASSERT_TRUE(recorder);
  EXPECT_FALSE(recorder->add({.spec = "fwd bf16 d=64 heads=8"}));  // nobody reads
  const FileHandle reader(::open(fifo.c_str(), O_RDONLY | O_NONBLOCK));
  ASSERT_TRUE(recorder->add({.spec = "fwd bf16 d=64 heads=8"}));
  char line[64] = {};
  EXPECT_EQ(read(reader.get(), line, sizeof line), 22);
  EXPECT_EQ(std::string(line), "fwd bf16 d=64 heads=8\n");
}

}  // namespace
}  // namespace flashjit
