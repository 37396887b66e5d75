// Unit tests of what is kept so that bytes can be made again.

#include "fake_world.h"

#include <ATen/cuda/detail/LMSCoreValues.h>

#include <gtest/gtest.h>

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

using namespace at::cuda::lms;

namespace {

class TestedValues final : public Values {
 public:
  using Values::Values;

  std::vector<PageEntry*> needless;

 private:
  bool is_allowed() const override {
    return true;
  }
  uint64_t ns_of(const Ingredients& /*recipe*/) const override {
    return 1;
  }
  double copy_ns() override {
    return 1;
  }
  void on_needless(PageEntry& page) override {
    needless.push_back(&page);
  }
};

struct TestedIngredients final : Ingredients {};

class TheValues : public testing::Test {
 protected:
  TheValues() {
    world.start(/*pages=*/1);
    values = std::make_unique<TestedValues>(world.pager.books);
  }

  static std::unique_ptr<PageEntry> page_of(size_t bytes) {
    auto page = std::make_unique<PageEntry>(/*home=*/nullptr);
    page->bytes = bytes;
    return page;
  }
  void make_from(PageEntry& page, PageEntry& source) {
    make_from(page, {Values::value_of(source)});
  }
  void make_from(PageEntry& page, std::vector<ValuePtr> sources) {
    auto recipe = std::make_shared<TestedIngredients>();
    recipe->values = std::move(sources);
    values->note_made(page, std::move(recipe), 0);
  }
  // Of pages that are each made from the one before, and the first of them.
  std::vector<std::unique_ptr<PageEntry>> row_of(size_t pages) {
    std::vector<std::unique_ptr<PageEntry>> row;
    row.push_back(page_of(100));
    while (row.size() <= pages) {
      auto page = page_of(100);
      make_from(*page, *row.back());
      row.push_back(std::move(page));
    }
    return row;
  }
  static bool ends_row(PageEntry& page) {
    return Values::value_of(page)->ends_row;
  }

  FakeWorld world{"chaos"};
  std::unique_ptr<TestedValues> values;
};

TEST_F(TheValues, KeepASmallSourceUntilWhatIsMadeFromItIsGone) {
  const auto source = page_of(100);
  const auto made = page_of(800);
  make_from(*made, *source);
  EXPECT_TRUE(Values::is_kept(*source));
  EXPECT_FALSE(Values::is_needed(*source)); // nothing is dropped
  values->forget(*made);
  EXPECT_FALSE(Values::is_kept(*source));
  EXPECT_EQ(values->needless, std::vector<PageEntry*>{source.get()});
}

TEST_F(TheValues, KeepASmallSourceUntilWhatIsMadeFromItIsOverwritten) {
  const auto source = page_of(100);
  const auto made = page_of(800);
  make_from(*made, *source);
  EXPECT_TRUE(values->note_write(*made));
  EXPECT_FALSE(Values::is_kept(*source));
}

TEST_F(TheValues, KeepASourceOfMuchTogether) {
  const auto source = page_of(100);
  const auto one = page_of(400);
  const auto other = page_of(400);
  make_from(*one, *source);
  EXPECT_FALSE(Values::is_kept(*source));
  make_from(*other, *source);
  EXPECT_TRUE(Values::is_kept(*source));
  values->forget(*one);
  EXPECT_FALSE(Values::is_kept(*source));
}

TEST_F(TheValues, KeepNoSourceThatIsWrittenTo) {
  const auto source = page_of(100);
  const auto made = page_of(800);
  make_from(*made, *source);
  EXPECT_TRUE(values->note_write(*source));
  EXPECT_FALSE(Values::is_kept(*source));
  values->forget(*made);
  EXPECT_TRUE(values->needless.empty()); // it has another value by now
}

TEST_F(TheValues, KnowWhatAnOperatorOverwroteThatRunsOthers) {
  const auto page = page_of(100);
  const ValuePtr before = Values::value_of(*page);
  EXPECT_TRUE(values->note_write(*page));
  EXPECT_TRUE(values->note_write(*page, /*is_inside=*/true));
  EXPECT_EQ(page->overwritten, before);
  EXPECT_TRUE(values->note_write(*page)); // another operator
  EXPECT_EQ(page->overwritten, nullptr);
}

TEST_F(TheValues, KnowWhatAnOperatorInsideOverwrote) {
  const auto page = page_of(100);
  const ValuePtr before = Values::value_of(*page);
  EXPECT_TRUE(values->note_write(*page, /*is_inside=*/true));
  EXPECT_EQ(page->overwritten, before);
  EXPECT_EQ(page->value, nullptr);
}

TEST_F(TheValues, KeepASourceThatADroppedPageNeeds) {
  const auto source = page_of(100);
  const auto made = page_of(100);
  make_from(*made, *source);
  EXPECT_FALSE(Values::is_kept(*source));
  EXPECT_TRUE(values->give_up(*made, /*at_any_cost=*/true));
  EXPECT_TRUE(Values::is_needed(*source));
  EXPECT_TRUE(Values::is_kept(*source));
  values->let_go_of_sources(*made);
  EXPECT_FALSE(Values::is_kept(*source));
  EXPECT_EQ(values->needless, std::vector<PageEntry*>{source.get()});
}

TEST_F(TheValues, TellWhenASourceIsNeeded) {
  constexpr uint64_t kNever = Page::kNever;
  const auto source = page_of(100);
  const auto early = page_of(100);
  const auto late = page_of(100);
  make_from(*early, *source);
  make_from(*late, *source);
  early->next_use = 100;
  late->next_use = 200;
  source->next_use = 1000;
  EXPECT_TRUE(values->give_up(*late, /*at_any_cost=*/true));
  EXPECT_EQ(source->makes_at, 200u);
  EXPECT_TRUE(values->give_up(*early, /*at_any_cost=*/true));
  EXPECT_EQ(source->makes_at, 100u);
  EXPECT_EQ(source->needed_at(), 100u);
  values->let_go_of_sources(*early);
  EXPECT_EQ(source->makes_at, 200u);
  values->let_go_of_sources(*late);
  EXPECT_EQ(source->makes_at, kNever);
  EXPECT_EQ(source->needed_at(), 1000u);
}

TEST_F(TheValues, TellNothingOfASourceThatComesForItsOwnUse) {
  const auto source = page_of(100);
  const auto made = page_of(100);
  make_from(*made, *source);
  made->next_use = 100;
  source->next_use = 102;
  EXPECT_TRUE(values->give_up(*made, /*at_any_cost=*/true));
  EXPECT_EQ(source->makes_at, Page::kNever);
  values->let_go_of_sources(*made);
}

TEST_F(TheValues, TellWhenTheSourceOfADroppedSourceIsNeeded) {
  const auto row = row_of(2);
  row[0]->next_use = 1000;
  row[1]->next_use = 500;
  row[2]->next_use = 100;
  EXPECT_TRUE(values->give_up(*row[1], /*at_any_cost=*/true));
  EXPECT_EQ(row[0]->makes_at, 500u);
  EXPECT_TRUE(values->give_up(*row[2], /*at_any_cost=*/true));
  EXPECT_EQ(row[0]->makes_at, 100u);
  values->let_go_of_sources(*row[2]);
  EXPECT_EQ(row[0]->makes_at, 500u);
  values->let_go_of_sources(*row[1]);
}

TEST_F(TheValues, EndARowThatIsAsLongAsItMayBe) {
  const auto row = row_of(30);
  for (size_t i = 0; i <= 30; ++i) {
    EXPECT_EQ(ends_row(*row[i]), i == 24) << i;
  }
  EXPECT_TRUE(values->can_be_made(*row[23]));
  EXPECT_FALSE(values->can_be_made(*row[24]));
  EXPECT_TRUE(values->can_be_made(*row[25]));
}

TEST_F(TheValues, EndARowWhereASkipDoes) {
  for (const size_t length : {10, 11, 12}) { // and the sum
    const auto row = row_of(length);
    const auto sum = page_of(100);
    make_from(*sum, {Values::value_of(*row.back()), Values::value_of(*row[8])});
    EXPECT_EQ(ends_row(*sum), length >= 11) << length;
  }
}

TEST_F(TheValues, TakeNoSmallArgumentForASkip) {
  const auto row = row_of(12);
  const auto weight = page_of(10);
  const auto product = page_of(100);
  make_from(
      *product, {Values::value_of(*row.back()), Values::value_of(*weight)});
  EXPECT_FALSE(ends_row(*product));
}

TEST_F(TheValues, EndARowWithStepsInPlace) {
  const auto row = row_of(12);
  const auto page = page_of(100);
  make_from(*page, *row[0]);
  const ValuePtr step = Values::value_of(*page);
  values->note_write(*page);
  make_from(*page, {step, Values::value_of(*row.back())}); // a sum
  EXPECT_TRUE(ends_row(*page));
  const ValuePtr sum = Values::value_of(*page);
  values->note_write(*page);
  make_from(*page, {sum}); // a ReLU
  EXPECT_TRUE(ends_row(*page));
  const auto next = page_of(100);
  make_from(*next, *page);
  EXPECT_EQ(Values::value_of(*next)->row, 1);
}

TEST_F(TheValues, FollowHints) {
  auto source = page_of(10);
  auto page = page_of(100);
  make_from(*page, *source);
  EXPECT_EQ(values->gain(*page), 100u); // a byte is copied in a nanosecond
  auto small = page_of(1);
  make_from(*small, *source);
  EXPECT_EQ(values->gain(*small), 1u);
  small->hint.again = Hint::Again::kPreferred;
  EXPECT_EQ(values->gain(*small), kMostCopied);
  page->hint.again = Hint::Again::kPreferred;
  EXPECT_EQ(values->gain(*page), 100u);
  page->hint.again = Hint::Again::kNever;
  EXPECT_EQ(values->gain(*page), 0u);
  EXPECT_FALSE(values->give_up(*page, /*at_any_cost=*/true));
}

} // namespace
