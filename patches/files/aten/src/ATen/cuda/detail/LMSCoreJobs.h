#pragma once

#include <ATen/cuda/detail/LMSCorePlannedPolicy.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

namespace at::cuda::lms {

// Note [Jobs]
// ~~~~~~~~~~~
// Several trainings may take turns on a device (torch.cuda.lms.jobs). What they
// run together is no sequence that repeats: turns differ in length, jobs come
// and end. But each of them repeats. So each has a policy of its own, which
// counts the job's operators only and whose plan holds from one turn to the
// next. A page is of the job that used it last.
//
// To a job in its turn the pages of others are not needed for long. What it
// drives out of them comes back when their turn begins, in the order of need.
// Before that, in the last iteration of a turn, if it is announced: what the
// job has used for the last time leaves, and what the next job needs first
// takes its place as far as there is room.

// Gives each job a policy. What is of no job has number 0.
class JobsPolicy final : public Policy, private OtherJobs {
 public:
  JobsPolicy();

  void set_capacity(size_t bytes) override;
  void on_operator(const Operator& op, Actions& actions) override;
  bool advance(Draft& draft, Actions& actions) override;
  bool makes_again() const override;
  void note_source(Page& page, uint64_t makes_at) override;
  void note_hint(Page& page, Hint hint) override;
  void on_death(Page* page, uint8_t gain) override;
  void begin_turn(uint64_t job) override;
  void announce_turn(uint64_t next) override;
  void end_job(uint64_t job) override;
  std::vector<Page*> choose_window(const Layout& layout, const Request& request)
      override;
  std::vector<Page*> choose_segments(const Layout& layout, size_t bytes)
      override;

 private:
  uint64_t distance_to(const Page& page) const override;
  void note_driven_out(Page& page) override;

  PlannedPolicy& of(uint64_t job);
  PlannedPolicy& of(const Page& page) const;
  void give_to(uint64_t job, Page& page);

  size_t capacity_ = Page::kNever;
  std::map<uint64_t, std::unique_ptr<PlannedPolicy>> policies_; // by job
  uint64_t job_ = 0; // whose turn it is
  PlannedPolicy* current_; // of that job
  PlannedPolicy* next_ = nullptr; // null: it is not known
};

} // namespace at::cuda::lms
