// A test is a function; run_tests runs all of them, prints a line for each, and
// returns the number of those that failed.
#pragma once

#include <cstdio>
#include <vector>

inline int failures = 0; // of the running test

#define EXPECT(condition)                                             \
  do {                                                                \
    if (!(condition)) {                                               \
      std::printf("  line %d: not true: %s\n", __LINE__, #condition); \
      ++failures;                                                     \
    }                                                                 \
  } while (false)

struct Test {
  const char* name;
  void (*run)();
};
inline std::vector<Test>& tests() {
  static std::vector<Test> all;
  return all;
}
struct Register {
  Register(const char* name, void (*run)()) {
    tests().push_back({name, run});
  }
};
#define TEST(name)                               \
  void name();                                   \
  const Register name##_registered(#name, name); \
  void name()

inline int run_tests() {
  int failed = 0;
  for (const Test& test : tests()) {
    failures = 0;
    test.run();
    std::printf("%s %s\n", failures ? "FAILED" : "ok", test.name);
    failed += failures ? 1 : 0;
  }
  return failed;
}
