// The worked example of docs/extending.md; the document quotes this file, and a test compares the two.
#include <fstream>
#include <sstream>

#include "kernels/pointwise/soft_cap.h"
#include "ops/gradient_testing.h"

namespace switchyard {
namespace {

using namespace autograd_test;

// y = cap · tanh(x / cap), element by element; f32.
class SoftCapOp : public Op {
 public:
  explicit SoftCapOp(float cap) : cap_(cap) {}
  std::string_view name() const override { return "soft_cap"; }

  std::vector<ArrayInfo> infer(const Context&, std::span<const ArrayInfo> in) const override {
    CHECK(in[0].dtype == DType::f32 && in[0].sharding.partial.empty(), "[soft_cap] partial sums or no f32");
    return {in[0]};
  }
  std::vector<Tensor> forward(Context& c, std::span<const Tensor> in,
                              std::span<const ArrayInfo>) const override {
    const Tensor y = c.empty(DType::f32, in[0].shape());
    switchyard::soft_cap(*c.pool, cap_, in[0].view(), y.view());
    return {y};
  }
  std::vector<Tensor> backward(Context& c, const BackwardCall& call) const override {
    const Tensor y = call.output(0), &dy = call.grad(0), dx = c.empty(DType::f32, dy.shape());
    switchyard::soft_cap_backward(*c.pool, cap_, y.view(), dy.view(), dx.view());
    return {dx};
  }
  std::uint32_t needs_inputs(std::uint32_t) const override { return 0; }
  std::uint32_t needs_outputs() const override { return 1; }

 private:
  float cap_;
};

Array soft_cap(Context& context, const Array& x, float cap) {
  return apply_one(context, std::make_shared<SoftCapOp>(cap), {x});
}

TEST(ExampleOp, GradientAndMeshes) {
  check_gradients({.function = [](Context& c, std::span<const Array> in) { return soft_cap(c, in[0], 2.0f); },
                   .inputs = {{random_tensor({4, 3, 8}, 1), {{{{"data"}, {}, {"tensor"}}, {}}}}},
                   .meshes = {Mesh({{"data", 2}, {"tensor", 2}})}});
}

// Every ```cpp block of the document stands in this file.
TEST(ExampleOp, DocumentQuotesIt) {
  const auto read = [](const std::string& name) {
    std::ifstream file(std::string(kSourceFolder) + name);
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  };
  const std::string document = read("/docs/extending.md"), source = read("/src/ops/example_op_test.cc"),
                    fence = "```cpp\n";
  std::size_t blocks = 0;
  for (std::size_t at = document.find(fence); at != std::string::npos; at = document.find(fence, at + 1)) {
    const std::size_t begin = at + fence.size();
    const std::string block = document.substr(begin, document.find("```", begin) - begin);
    EXPECT_NE(source.find(block), std::string::npos) << block;
    ++blocks;
  }
  EXPECT_EQ(blocks, 3u);
}

}  // namespace
}  // namespace switchyard
