// What it costs to learn a cycle of operators and to plan it: the command is in
// paging-cost.md.
//   planning_cost OPERATORS
// goes five times over a model of so many operators. Prints for each time, in
// processor time: nanoseconds per operator (the test itself takes most of it),
// milliseconds of the longest time under the lock so far, and of one operator
// with what is planned outside of the lock; pages that came, and the part that
// no plan had fetched; the lag, for how long it has held, and the history's
// MiB.

#include <ATen/cuda/detail/LMSCorePlannedPolicy.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <memory>
#include <vector>

using namespace at::cuda::lms;

namespace {

// Of the processor, for this thread: what others do makes no difference.
double seconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) +
      1e-9 * static_cast<double>(now.tv_nsec);
}

double seconds_since(double start) {
  return seconds() - start;
}

// A forward and a backward pass over `layers` layers, of three storages per
// operator: the weight, the activation before, and the one after.
class Model {
 public:
  explicit Model(size_t layers) : weights_(layers), activations_(layers + 1) {
    for (Page& weight : weights_) {
      start(weight);
    }
    policy_.set_capacity(3 * layers * kBytes / 5); // of 2 * layers storages
    policy_.choose_window({}, {}); // memory is short
  }

  void iterate() {
    const size_t layers = weights_.size();
    start(activations_[0]);
    for (size_t i = 0; i < layers; ++i) {
      start(activations_[i + 1]);
      run(1,
          {{&activations_[i], false},
           {&weights_[i], false},
           {&activations_[i + 1], true}});
    }
    for (size_t i = layers; i > 0; --i) {
      run(2,
          {{&activations_[i], false},
           {&weights_[i - 1], true},
           {&activations_[i - 1], true}});
      policy_.on_death(&activations_[i]);
    }
    policy_.on_death(&activations_[0]);
  }

  double under_lock = 0; // seconds, the longest
  double in_all = 0; // seconds of one operator, the longest
  size_t arrived = 0; // pages
  size_t demanded = 0; // the part that came no sooner than it was needed
  const PlannedPolicy& policy() const {
    return policy_;
  }

 private:
  static constexpr size_t kBytes = 1 << 20;

  void start(Page& page) {
    page = Page{};
    page.id = ++last_id_;
    page.bytes = kBytes;
    page.resident = page.evictable = true;
  }

  void run(uint64_t name, std::vector<Use> uses) {
    for (const Use& use : uses) {
      demanded += use.page->resident ? 0 : 1;
      arrived += use.page->resident ? 0 : 1;
      use.page->resident = true;
    }
    const Operator op{name, 0, std::move(uses)};
    Actions actions;
    const auto start = seconds();
    policy_.on_operator(op, actions);
    under_lock = std::max(under_lock, seconds_since(start));
    finish(actions);
    in_all = std::max(in_all, seconds_since(start));
    for (Page* page : actions.evict) {
      page->resident = false;
    }
    for (Page* page : actions.fetch) {
      arrived += page->resident ? 0 : 1;
      page->resident = true;
    }
  }

  // As finish_draft does it, with a clock.
  void finish(Actions& actions) {
    const std::shared_ptr<Draft> draft = std::move(actions.draft);
    bool goes_on = draft != nullptr;
    while (goes_on) {
      draft->compute();
      const auto start = seconds();
      goes_on = policy_.advance(*draft, actions);
      under_lock = std::max(under_lock, seconds_since(start));
    }
  }

  PlannedPolicy policy_;
  std::vector<Page> weights_;
  std::vector<Page> activations_;
  uint64_t last_id_ = 0;
};

} // namespace

int main(int, char** argv) {
  const size_t operators = std::strtoull(argv[1], nullptr, 10);
  Model model(operators / 2);
  for (int i = 0; i < 5; ++i) {
    model.arrived = model.demanded = 0;
    const auto start = seconds();
    model.iterate();
    std::printf(
        "%d: %7.0f %8.2f %8.2f %zu %zu  lag %zu matched %zu MiB %zu\n",
        i,
        1e9 * seconds_since(start) / static_cast<double>(operators),
        1e3 * model.under_lock,
        1e3 * model.in_all,
        model.arrived,
        model.demanded,
        model.policy().history().lag(),
        model.policy().history().matched(),
        model.policy().history().bytes() >> 20);
  }
}
