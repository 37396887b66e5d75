// Replays a packed trace with actions that the command line names:
//   lms-scripted NAME=NUMBER... [ACTION...]
// with the machine as lms-replay has it. 3-0 evicts storage 0 after operator 3,
// 3+0 fetches it, 3x0 lets it be dropped when its memory is needed; both are
// numbered from 0. Room for what is asked for is made as the policy "original"
// makes it.

#include "report.h"

#include <cstdio>
#include <exception>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace at::cuda::lms;

struct Action {
  char kind;
  uint64_t page;
};

std::vector<std::string> script; // of the command line

class Scripted final : public Policy {
 public:
  Scripted() {
    for (const std::string& word : script) {
      const size_t at = word.find_first_of("+-x");
      const Action action{word.at(at), std::stoull(word.substr(at + 1))};
      script_.emplace(std::stoull(word.substr(0, at)), action);
      drops_ = drops_ || action.kind == 'x';
    }
  }

  void on_operator(const Operator& op, Actions& actions) override {
    original_->on_operator(op, actions);
    for (const Use& use : op.uses) {
      pages_[use.page->id - 1] = use.page;
    }
    const auto [first, last] = script_.equal_range(now_++);
    for (auto it = first; it != last; ++it) {
      Page* page = pages_.at(it->second.page);
      auto& pages = it->second.kind == '-' ? actions.evict
          : it->second.kind == '+'         ? actions.fetch
                                           : actions.drop;
      pages.push_back(page);
    }
  }

  bool makes_again() const override {
    return drops_;
  }

  std::vector<Page*> choose_window(const Layout& layout, const Request& request)
      override {
    return original_->choose_window(layout, request);
  }

  std::vector<Page*> choose_segments(const Layout& layout, size_t bytes)
      override {
    return original_->choose_segments(layout, bytes);
  }

 private:
  std::unique_ptr<Policy> original_ = make_original_policy();
  std::multimap<uint64_t, Action> script_; // by operator
  std::map<uint64_t, Page*> pages_; // by storage
  uint64_t now_ = 0; // operators seen
  bool drops_ = false;
};

} // namespace

int main(int argc, char** argv) {
  try {
    std::vector<std::string> machine;
    for (int i = 1; i < argc; ++i) {
      const std::string word = argv[i];
      const bool is_number = word.find('=') != std::string::npos;
      (is_number ? machine : script).push_back(word);
    }
    const PolicyKind policy{
        "scripted",
        []() -> std::unique_ptr<Policy> {
          return std::make_unique<Scripted>();
        },
        {}};
    lms_replay::replay_and_report(
        std::cin, lms_replay::parse_machine(machine), &policy);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
