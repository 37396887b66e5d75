#pragma once

// What tests of files that processes share have in common.

#include "temporary.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <string>

// A file that no other test uses.
inline std::string fresh_file() {
  static int count = 0;
  return temporary_folder() + "/file" + std::to_string(++count);
}

// A process that has run `work` and then stays until it is killed.
class Process {
 public:
  explicit Process(const std::function<bool()>& work) {
    int done[2];
    failed_ = pipe(done) != 0;
    pid_ = fork();
    if (pid_ == 0) {
      const char ok = work() ? 1 : 0;
      (void)!::write(done[1], &ok, 1);
      while (true) {
        pause();
      }
    }
    char ok = 0;
    failed_ = failed_ || read(done[0], &ok, 1) != 1 || ok != 1;
    close(done[0]);
    close(done[1]);
  }
  ~Process() {
    end();
  }
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  bool worked() const {
    return !failed_;
  }
  void stop() {
    kill(pid_, SIGSTOP);
    failed_ = failed_ || waitpid(pid_, nullptr, WUNTRACED) != pid_;
  }
  void end() {
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
    pid_ = -1;
  }

 private:
  pid_t pid_ = -1;
  bool failed_ = false;
};
