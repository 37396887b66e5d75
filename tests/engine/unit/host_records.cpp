// Unit tests of the records that processes share; more in host_ledger.cpp.

#include <ATen/cuda/detail/LMSHostRecords.h>

#include "process.h"

#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

using namespace at::cuda::lms;

namespace {

constexpr uint64_t kMagic = 17;
using Three = std::array<uint64_t, 3>;

std::vector<Three> others_in(const SharedRecords& records) {
  std::vector<Three> others;
  records.visit_others([&others](const uint64_t* numbers) {
    others.push_back({numbers[0], numbers[1], numbers[2]});
  });
  return others;
}

TEST(HostRecords, each_process_reads_what_the_others_write) {
  const std::string file = fresh_file();
  SharedRecords records({file}, kMagic, 3);
  EXPECT_TRUE(records.is_shared() && others_in(records).empty());
  records.write(Three{9, 9, 9}.data()); // it has no record yet
  Process other([&] {
    static SharedRecords own({file}, kMagic, 3); // as long as the process lives
    own.claim(Three{1, 2, 3}.data());
    return others_in(own).empty();
  });
  Process third([&] {
    static SharedRecords own({file}, kMagic, 3);
    own.claim(Three{}.data());
    own.write(Three{4, 5, 6}.data());
    return others_in(own) == std::vector<Three>{{1, 2, 3}};
  });
  EXPECT_TRUE(other.worked() && third.worked());
  EXPECT_TRUE(others_in(records) == (std::vector<Three>{{1, 2, 3}, {4, 5, 6}}));
  other.end(); // SIGKILL
  EXPECT_TRUE(others_in(records) == std::vector<Three>({{4, 5, 6}}));
  // The next process takes the place in the file.
  const auto size = std::filesystem::file_size(file);
  records.claim(Three{7, 8, 9}.data());
  EXPECT_TRUE(records.is_shared() && std::filesystem::file_size(file) == size);
}

TEST(HostRecords, a_file_of_other_records_is_not_used) {
  const std::string file = fresh_file();
  EXPECT_TRUE(SharedRecords({file}, kMagic, 3).is_shared());
  EXPECT_TRUE(!SharedRecords({file}, kMagic + 1, 3).is_shared());
  EXPECT_TRUE(!SharedRecords({file}, kMagic, 4).is_shared());
  EXPECT_TRUE(std::filesystem::file_size(file) == 3 * sizeof(uint64_t));
}

TEST(HostRecords, without_a_file_there_is_nobody) {
  SharedRecords records({}, kMagic, 3);
  records.claim(Three{1, 2, 3}.data());
  records.write(Three{1, 2, 3}.data());
  EXPECT_TRUE(!records.is_shared() && others_in(records).empty());
}

} // namespace
