// Tests that the selftest finds planted faults in kernels.
#include <gtest/gtest.h>

#include "kernels/registry/kernel.h"
#include "selftest/compare.h"
#include "selftest/report.h"

namespace switchyard::selftest {
namespace {

constexpr std::int64_t kCount = 100;

enum class Fault {
  none,
  one_element,
  negated,
  zero,
  not_written,
  after_the_end,
  before_the_start,
  read_after_the_end,
  input_written,
  threads_differ
};

// out = in + 1, but for the fault.
void add_one(Fault fault, ThreadPool& pool, const PoisonedArray& in, PoisonedArray& out) {
  const float sign = fault == Fault::negated ? -1.0f : 1.0f;
  for (std::int64_t i = 0; i < kCount; ++i) out.set(i, fault == Fault::zero ? 0.0f : sign * (in.at(i) + 1));
  if (fault == Fault::one_element) out.set(7, out.at(7) + 1e-3f);
  if (fault == Fault::not_written) out = PoisonedArray(DType::f32, kCount);
  if (fault == Fault::after_the_end) out.set(kCount, 1);
  if (fault == Fault::before_the_start) out.set(-1, 1);
  if (fault == Fault::read_after_the_end) static_cast<void>(*(volatile const float*)(in.floats() + kCount));
  if (fault == Fault::input_written) const_cast<PoisonedArray&>(in).set(0, 5);
  if (fault == Fault::threads_differ && pool.threads() > 1) out.set(3, std::nextafter(out.at(3), 10.0f));
}

template <Fault fault>
std::vector<Case> planted_cases(std::uint32_t seed) {
  return {{DType::f32,
           "planted",
           {PoisonedArray::normal(DType::f32, kCount, seed)},
           {{"out", PoisonedArray(DType::f32, kCount), {0, 1e-5}}},
           [](ThreadPool& pool, const Arrays& in, Arrays& out) { add_one(fault, pool, in[0], out[0]); },
           [](const Arrays& in, Arrays& out) {
             ThreadPool pool(1);
             add_one(Fault::none, pool, in[0], out[0]);
           }}};
}

template <Fault fault>
std::string failure_of() {
  Reach reach;
  const auto results = run_kernel({"planted", nullptr, planted_cases<fault>}, 2, 1, reach);
  EXPECT_EQ(results.size(), 1u);
  EXPECT_EQ(results[0].cases, 1);
  return results[0].failure;
}

TEST(Selftest, FindsPlantedFaults) {
  EXPECT_EQ(failure_of<Fault::none>(), "");
  EXPECT_TRUE(failure_of<Fault::one_element>().starts_with("planted, 1 thread: out[7] is "));
  EXPECT_TRUE(failure_of<Fault::negated>().starts_with("planted, 1 thread: out[0] is "));
  EXPECT_TRUE(failure_of<Fault::zero>().starts_with("planted, 1 thread: out[0] is 0, expected "));
  EXPECT_TRUE(failure_of<Fault::not_written>().starts_with("planted, 1 thread: out[0] is nan, expected "));
  EXPECT_EQ(failure_of<Fault::after_the_end>(), "planted, 1 thread: wrote outside out");
  EXPECT_EQ(failure_of<Fault::before_the_start>(), "planted, 1 thread: wrote outside out");
  EXPECT_EQ(failure_of<Fault::input_written>(), "planted, 1 thread: an input was written to");
  EXPECT_EQ(failure_of<Fault::threads_differ>(), "planted: 2 threads give other bits than one");
}

// What is read and not used changes nothing; where there is a fence, it ends the process.
TEST(Selftest, ReadsOutsideFault) {
  EXPECT_EXIT(failure_of<Fault::read_after_the_end>(), ::testing::ExitedWithCode(3),
              "planted up to .*, float32 of planted: touched memory outside its arrays");
}

// A table with one implementation beside `ref`, which is wrong, or refuses all.
struct PlantedArgs {
  TensorView in, out;
};
template <int added>
void add(ThreadPool&, const PlantedArgs& args) {
  *args.out.kernel_data<float>() = *args.in.kernel_data<float>() + added;
}
Work no_work(const PlantedArgs&) {
  return {};
}
const char* refuse_all(const PlantedArgs&) {
  return "it is planted";
}
constexpr Implementation<PlantedArgs> kWrongRows[] = {{"fast", Isa::avx2, add<2>}, {"ref", Isa::ref, add<1>}};
constexpr Implementation<PlantedArgs> kRefusingRows[] = {
    {"fast", Isa::avx2, add<1>, refuse_all}, {"slow", Isa::avx2, add<1>}, {"ref", Isa::ref, add<1>}};
constexpr Kernel<PlantedArgs> kWrong{"planted", no_work, &PlantedArgs::out, kWrongRows};
constexpr Kernel<PlantedArgs> kRefusing{"planted", no_work, &PlantedArgs::out, kRefusingRows};

template <const auto& kernel>
std::vector<Case> table_cases(std::uint32_t seed) {
  return {{DType::f32,
           "planted",
           {PoisonedArray::integers(DType::f32, 1, seed)},
           {{"out", PoisonedArray(DType::f32, 1)}},
           [](ThreadPool& pool, const Arrays& in, Arrays& out) {
             switchyard::run(pool, kernel, PlantedArgs{in[0].view(), out[0].view()});
           }}};
}

TEST(Selftest, ComparesWithTheReferenceAndReachesEveryRow) {
  if (active_isa() < Isa::avx2) GTEST_SKIP() << "nothing beside ref";
  Reach reach;
  const KernelCases wrong_cases{"planted", "planted", table_cases<kWrong>};
  const auto wrong = run_kernel(wrong_cases, 2, 1, reach);
  ASSERT_EQ(wrong.size(), 1u);
  EXPECT_EQ(wrong[0].implementation, "fast");
  EXPECT_EQ(wrong[0].isa, Isa::avx2);
  EXPECT_EQ(wrong[0].max_abs, 1);
  EXPECT_FALSE(wrong[0].pass());
  EXPECT_TRUE(reach.failures({&wrong_cases, 1}, {&wrong_cases, 1}).empty());

  Reach refused;
  const KernelCases refusing_cases{"planted", "planted", table_cases<kRefusing>};
  const auto refusing = run_kernel(refusing_cases, 2, 1, refused);
  ASSERT_EQ(refusing.size(), 1u);
  EXPECT_EQ(refusing[0].implementation, "slow");
  EXPECT_TRUE(refusing[0].pass());
  const auto unreached = refused.failures({&refusing_cases, 1}, {&refusing_cases, 1});
  ASSERT_EQ(unreached.size(), 1u);
  EXPECT_EQ(unreached[0].implementation, "fast");
  EXPECT_EQ(unreached[0].failure, "no case reached it");
  const KernelCases two[] = {refusing_cases, {"others", "planted", table_cases<kRefusing>}};
  EXPECT_TRUE(refused.failures(two, {&refusing_cases, 1}).empty()) << "cases of the table were left out";
}

TEST(Selftest, BoundsAreOfTheElementAndOfTheLargest) {
  PoisonedArray expected(DType::f32, 2), found = expected;
  expected.set(0, 1), expected.set(1, 100);
  found.set(0, 1.5f), found.set(1, 100);
  Output output{"out", expected};
  EXPECT_EQ(compare(output, found, expected, true).failure, "out[0] is 1.5, expected 1");
  EXPECT_EQ(compare(output, found, expected, true).max_abs, 0.5);
  EXPECT_EQ(compare(output, found, expected, true).max_rel, 0.005);
  output.of_largest = 0.005;
  EXPECT_EQ(compare(output, found, expected, true).failure, "");
  output = {"out", expected, {}, 0, {0.5, 0}};
  EXPECT_EQ(compare(output, found, expected, true).failure, "");
  EXPECT_NE(compare(output, found, expected, false).failure, "");
}

TEST(Selftest, ReportsWhatFails) {
  const Result good{.kernel = "gmm", .implementation = "avx2", .isa = Isa::avx2, .dtype = "float32"};
  Result bad = good;
  bad.failure = "planted, 1 thread: wrote outside out";
  EXPECT_NE(table_row(bad).find("FAIL\n    planted, 1 thread: wrote outside out"), std::string::npos);
  EXPECT_EQ(verdict({good, bad}), "1 of 2 differ from the reference");
  const auto results = results_json({good, bad})["results"];
  EXPECT_FALSE(results[0].contains("failure"));
  EXPECT_EQ(results[1]["failure"].get<std::string>(), bad.failure);
  EXPECT_EQ(results[1]["isa"], "avx2");
}

// One place for a new kernel: its name is told apart from all others by filters.
TEST(Selftest, KernelsHaveNamesOfTheirOwn) {
  std::set<std::string> names;
  for (const KernelCases& kernel : kernels()) EXPECT_TRUE(names.insert(kernel.name).second) << kernel.name;
  EXPECT_TRUE(names.contains("gmm_pair"));
}

}  // namespace
}  // namespace switchyard::selftest
