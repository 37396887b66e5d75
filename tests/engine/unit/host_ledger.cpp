// Unit tests of the ledger of host memory, which processes share.

#include <ATen/cuda/detail/LMSHostLedger.h>

#include "process.h"
#include "temporary.h"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <thread>
#include <vector>

using namespace at::cuda::lms;

namespace {

constexpr auto kShare = HostLedger::Claim::kShare;
constexpr auto kWhole = HostLedger::Claim::kWhole;

TEST(HostLedger, alone_the_limit_is_the_process_own) {
  HostLedger ledger({});
  EXPECT_TRUE(!ledger.is_shared());
  EXPECT_TRUE(
      ledger.take(60, 100, kWhole) && !ledger.take(41, 100, kWhole) &&
      ledger.take(40, 100, kWhole));
  ledger.give_back(50);
  EXPECT_TRUE(ledger.taken() == 50 && ledger.others().bytes == 0);
  EXPECT_TRUE(!ledger.take(51, 100, kWhole) && ledger.take(50, 100, kWhole));
  EXPECT_TRUE(!ledger.take(static_cast<size_t>(-1), 200, kWhole));
}

TEST(HostLedger, processes_share_the_limit) {
  const std::string file = fresh_file();
  HostLedger ledger({file});
  EXPECT_TRUE(ledger.is_shared());
  EXPECT_TRUE(ledger.take(30, 100, kWhole));
  const Process other([&] {
    static HostLedger own({file}); // as long as the process lives
    return own.others().bytes == 30 && !own.take(71, 100, kWhole) &&
        own.take(50, 100, kWhole);
  });
  EXPECT_TRUE(other.worked());
  EXPECT_TRUE(ledger.others().bytes == 50 && ledger.taken() == 30);
  EXPECT_TRUE(!ledger.take(21, 100, kWhole) && ledger.take(20, 100, kWhole));
  // Each process goes by its own limit.
  EXPECT_TRUE(ledger.take(1, 101, kWhole) && !ledger.take(1, 101, kWhole));
}

TEST(HostLedger, a_share_is_the_same_for_all_that_have_taken_something) {
  const std::string file = fresh_file();
  HostLedger ledger({file});
  EXPECT_TRUE(ledger.take(60, 120, kShare)); // nobody else has anything
  const auto hold = [&] {
    static HostLedger own({file}); // as long as the process lives
    return !own.take(41, 120, kShare) && own.take(10, 120, kShare);
  };
  const Process other([&] {
    static HostLedger own({file}); // as long as the process lives
    return !own.take(60, 119, kShare) && own.take(10, 120, kShare);
  });
  EXPECT_TRUE(other.worked() && ledger.others().processes == 1);
  EXPECT_TRUE(!ledger.has_room(1, 120, kShare) && ledger.take(1, 120, kWhole));
  ledger.give_back(20);
  Process third(hold);
  EXPECT_TRUE(third.worked() && ledger.others().processes == 2);
  EXPECT_TRUE(!ledger.has_room(1, 120, kShare)); // it has 41 of 40
  ledger.give_back(2);
  EXPECT_TRUE(
      ledger.has_room(1, 120, kShare) && !ledger.has_room(2, 120, kShare));
  third.end();
  EXPECT_TRUE(
      ledger.has_room(21, 120, kShare) && !ledger.has_room(22, 120, kShare));
}

TEST(HostLedger, those_that_were_launched_together_have_shares_from_the_start) {
  const std::string file = fresh_file();
  const auto share_is = [](size_t share, const std::string& ledger) {
    const HostLedger own({ledger});
    return own.has_room(share, 100, kShare) &&
        !own.has_room(share + 1, 100, kShare) && own.has_room(100, 100, kWhole);
  };
  setenv("LOCAL_WORLD_SIZE", "4", 1);
  EXPECT_TRUE(share_is(25, file));
  EXPECT_TRUE(share_is(
      100, temporary_folder() + "/no/such/folder")); // its limit is its own
  for (const char* nonsense : {"", "0", "-3", "many"}) {
    setenv("LOCAL_WORLD_SIZE", nonsense, 1);
    EXPECT_TRUE(share_is(100, file));
  }
  unsetenv("LOCAL_WORLD_SIZE");
}

TEST(HostLedger, what_a_killed_process_had_is_free_again) {
  const std::string file = fresh_file();
  HostLedger ledger({file});
  EXPECT_TRUE(ledger.take(10, 100, kWhole));
  Process other([&] {
    static HostLedger own({file}); // as long as the process lives
    return own.take(90, 100, kWhole);
  });
  EXPECT_TRUE(other.worked());
  EXPECT_TRUE(ledger.others().bytes == 90 && !ledger.take(1, 100, kWhole));
  other.end(); // SIGKILL
  EXPECT_TRUE(ledger.others().bytes == 0 && ledger.take(90, 100, kWhole));
  // The next process takes the place in the file.
  const auto size = std::filesystem::file_size(file);
  const Process third([&] {
    static HostLedger own({file}); // as long as the process lives
    return own.others().bytes == 100 && own.take(5, 105, kWhole);
  });
  EXPECT_TRUE(third.worked());
  EXPECT_TRUE(
      ledger.others().bytes == 5 && std::filesystem::file_size(file) == size);
}

TEST(HostLedger, a_child_has_taken_nothing_and_keeps_nothing) {
  const std::string file = fresh_file();
  Process parent([&] {
    static HostLedger own({file});
    const bool took = own.take(70, 100, kWhole);
    if (fork() == 0) { // lives on for a while, with the ledger open
      close(STDOUT_FILENO);
      close(STDERR_FILENO);
      alarm(5);
      pause();
    }
    return took;
  });
  EXPECT_TRUE(parent.worked());
  HostLedger ledger({file});
  EXPECT_TRUE(ledger.others().bytes == 70);
  parent.end();
  EXPECT_TRUE(ledger.others().bytes == 0 && ledger.take(100, 100, kWhole));
}

TEST(HostLedger, processes_that_take_at_once_stay_within_the_limit) {
  const std::string file = fresh_file();
  constexpr size_t kLimit = 500;
  const auto struggle = [&] {
    static HostLedger own({file});
    bool ok = true;
    for (int i = 0; i < 20000; ++i) {
      const size_t bytes = 100 + i % 7 * 50;
      if (own.take(bytes, kLimit, kWhole)) {
        ok = ok && own.taken() + own.others().bytes <= kLimit;
        own.give_back(bytes);
      }
    }
    return ok;
  };
  bool first = false, second = false;
  {
    // Constructed side by side: each waits for its process.
    std::thread one([&] { first = Process(struggle).worked(); });
    std::thread two([&] { second = Process(struggle).worked(); });
    one.join();
    two.join();
  }
  EXPECT_TRUE(first && second);
}

TEST(HostLedger, the_first_file_that_can_be_had_is_used) {
  const std::string file = fresh_file();
  HostLedger ledger(
      {temporary_folder() + "/no/such/folder", temporary_folder(), file});
  EXPECT_TRUE(ledger.is_shared() && ledger.take(1, 1, kWhole));
  EXPECT_TRUE(std::filesystem::is_regular_file(file));
  EXPECT_TRUE(
      (std::filesystem::status(file).permissions() &
       std::filesystem::perms::all) ==
      (std::filesystem::perms::owner_read |
       std::filesystem::perms::owner_write));
  EXPECT_TRUE(
      !HostLedger({temporary_folder() + "/no/such/folder"}).is_shared());
  const std::string link = fresh_file(); // could lead to a file of the user's
  std::filesystem::create_symlink(file, link);
  EXPECT_TRUE(!HostLedger({link}).is_shared());
}

TEST(HostLedger, a_file_that_cannot_be_written_is_no_longer_used) {
  const std::string file = fresh_file();
  const Process other([&] {
    static HostLedger own({file});
    const bool took = own.take(10, 100, kWhole) && own.is_shared();
    signal(SIGXFSZ, SIG_IGN);
    const struct rlimit nothing {};
    setrlimit(RLIMIT_FSIZE, &nothing);
    return took && own.take(20, 100, kWhole) && !own.is_shared() &&
        own.taken() == 30 && !own.take(71, 100, kWhole) &&
        own.take(70, 100, kWhole);
  });
  EXPECT_TRUE(other.worked());
  EXPECT_TRUE(
      HostLedger({file}).others().bytes == 10); // what it could still write
}

TEST(HostLedger, the_environment_chooses_the_file) {
  unsetenv("PYTORCH_LMS_HOST_LEDGER");
  EXPECT_TRUE(HostLedger::default_files().size() == 2);
  setenv("PYTORCH_LMS_HOST_LEDGER", "/some/file", 1);
  EXPECT_TRUE(
      HostLedger::default_files() == std::vector<std::string>{"/some/file"});
  setenv("PYTORCH_LMS_HOST_LEDGER", "none", 1);
  EXPECT_TRUE(HostLedger::default_files().empty());
}

// A file with the magic number of a ledger at its beginning.
std::string fresh_ledger() {
  const std::string file = fresh_file();
  EXPECT_TRUE(HostLedger({file}).is_shared());
  return file;
}

std::string contents(const std::string& file) {
  std::ifstream stream(file);
  return {std::istreambuf_iterator<char>(stream), {}};
}

// Whether a process counts alone rather than use the file, and leaves it as it
// is.
bool is_left_alone(const std::string& file) {
  const std::string before = contents(file);
  {
    HostLedger ledger({file});
    if (ledger.is_shared() || !ledger.take(10, 100, kWhole)) {
      return false;
    }
    ledger.give_back(5);
  }
  return contents(file) == before;
}

TEST(HostLedger, a_file_that_is_no_ledger_is_not_written_to) {
  const std::string file = fresh_file();
  for (const char* text : {"", "1", "some text of the user's, 32 bytes"}) {
    std::ofstream(file) << text;
    EXPECT_TRUE(is_left_alone(file));
  }
  std::ofstream(file) << std::string(64, '\0');
  EXPECT_TRUE(is_left_alone(file));
  // The first of several that can be used is.
  HostLedger ledger({file, fresh_file()});
  EXPECT_TRUE(ledger.is_shared() && ledger.take(10, 100, kWhole));
  EXPECT_TRUE(contents(file) == std::string(64, '\0'));
}

TEST(HostLedger, a_ledger_of_a_wrong_size_or_with_two_names_is_not_written_to) {
  const std::string file = fresh_ledger();
  std::filesystem::resize_file(file, 13);
  EXPECT_TRUE(is_left_alone(file));
  std::filesystem::resize_file(file, size_t{1} << 20);
  EXPECT_TRUE(is_left_alone(file));
  std::filesystem::resize_file(file, 16);
  EXPECT_TRUE(HostLedger({file}).is_shared());
  const std::string other = fresh_file();
  std::filesystem::create_hard_link(file, other);
  EXPECT_TRUE(is_left_alone(file) && is_left_alone(other));
}

TEST(HostLedger, what_is_no_file_is_not_opened_for_long) {
  const std::string pipe = fresh_file();
  EXPECT_TRUE(mkfifo(pipe.c_str(), S_IRUSR | S_IWUSR) == 0);
  EXPECT_TRUE(!HostLedger({pipe}).is_shared());
  EXPECT_TRUE(!HostLedger({"/dev/null"}).is_shared());
}

TEST(HostLedger, a_file_that_ceases_to_be_a_ledger_is_not_written_to) {
  const std::string file = fresh_ledger();
  HostLedger ledger({file});
  EXPECT_TRUE(ledger.take(10, 100, kWhole) && ledger.is_shared());
  std::ofstream(file) << "data now"; // the same file, as a shell writes to it
  EXPECT_TRUE(ledger.take(10, 100, kWhole) && !ledger.is_shared());
  ledger.give_back(20);
  EXPECT_TRUE(contents(file) == "data now");
}

TEST(HostLedger, a_new_ledger_leaves_no_draft_behind) {
  const std::string place = temporary_folder() + "/place";
  std::filesystem::create_directory(place);
  EXPECT_TRUE(HostLedger({place + "/ledger"}).is_shared());
  EXPECT_TRUE(HostLedger({place + "/ledger"}).is_shared());
  const auto files = std::filesystem::directory_iterator(place);
  EXPECT_TRUE(std::distance(begin(files), end(files)) == 1);
}

TEST(HostLedger, there_are_not_more_processes_than_places) {
  const std::string file = fresh_ledger();
  const Process crowd([&] { // has all places
    const int all = open(file.c_str(), O_RDWR);
    struct flock request {};
    request.l_type = F_WRLCK;
    request.l_start = 8;
    request.l_len = 0; // to the end and beyond
    return fcntl(all, F_SETLK, &request) == 0;
  });
  EXPECT_TRUE(crowd.worked());
  HostLedger ledger({file});
  EXPECT_TRUE(ledger.take(10, 100, kWhole) && !ledger.is_shared());
  EXPECT_TRUE(ledger.taken() == 10 && std::filesystem::file_size(file) == 8);
}

// Has the mutex of the file, beside what it has taken.
bool take_and_keep_mutex(const std::string& file) {
  static HostLedger own({file}); // as long as the process lives
  struct flock request {};
  request.l_type = F_WRLCK;
  request.l_len = 8;
  const int whole = open(file.c_str(), O_RDWR);
  return own.take(50, 100, kWhole) && fcntl(whole, F_SETLK, &request) == 0;
}

TEST(HostLedger, a_stopped_process_does_not_stop_others) {
  const std::string file = fresh_ledger();
  Process other([&] { return take_and_keep_mutex(file); });
  EXPECT_TRUE(other.worked());
  other.stop();
  HostLedger ledger({file});
  EXPECT_TRUE(ledger.take(30, 100, kWhole) && ledger.is_shared());
  EXPECT_TRUE(ledger.others().bytes == 50 && !ledger.take(21, 100, kWhole));
  other.end();
  EXPECT_TRUE(ledger.take(70, 100, kWhole) && ledger.is_shared());
  const Process third([&] {
    static HostLedger own({file});
    return own.others().bytes == 100;
  });
  EXPECT_TRUE(third.worked());
}

TEST(HostLedger, a_process_that_keeps_the_mutex_does_not_stop_others) {
  const std::string file = fresh_ledger();
  const Process other([&] { return take_and_keep_mutex(file); });
  EXPECT_TRUE(other.worked());
  HostLedger ledger({file});
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(ledger.take(5, 100, kWhole) && ledger.is_shared());
  }
  EXPECT_TRUE(!ledger.take(1, 100, kWhole) && ledger.others().bytes == 50);
}

} // namespace
