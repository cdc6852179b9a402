// Tests that weights have the same bits on the emulated GPU as on the CPU: those that are drawn there, and
// those that come from the host through pinned buffers.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <tuple>

#include "core/box.h"
#include "core/rng.h"
#include "core/upload.h"
#include "engine/session.h"
#include "models/packed_parameters.h"
#include "models/parameters.h"

namespace switchyard {
namespace {

Memory emulated() {
  return {Device::cuda_emulated(), nullptr};
}

ParameterSpec spec_of(Initializer initializer, DType dtype, const Shape& shape) {
  return {.name = "layers.1.mlp.wi_0",
          .shape = shape,
          .dims = std::vector<std::string>(shape.size(), "embed"),
          .initializer = initializer,
          .deviation = initializer == Initializer::log_uniform ? 16.0 : 0.02,
          .dtype = dtype};
}

void expect_same_bits(const Tensor& got, const Tensor& want) {
  const Tensor here = to_host(got);
  ASSERT_EQ(here.dtype(), want.dtype());
  ASSERT_EQ(here.shape(), want.shape());
  ASSERT_GT(want.size(), 0);
  EXPECT_EQ(std::memcmp(here.raw(), want.raw(), want.bytes()), 0);
}

constexpr Initializer kInitializers[] = {Initializer::ones, Initializer::zeros, Initializer::normal,
                                         Initializer::truncated_normal, Initializer::log_uniform};

// 2^20 elements of each, and some of an array whose indices need more than 32 bits.
TEST(DrawnParameters, HaveTheSameBitsOnAGpu) {
  ThreadPool pool(2);
  const std::pair<Shape, Box> blocks[] = {
      {{1 << 20}, {{0}, {1 << 20}}},
      {{8, 300, 257}, {{2, 100, 0}, {3, 100, 257}}},  // rows of three of eight experts
      {{8, 300, 257}, {{0, 0, 128}, {8, 300, 129}}},  // columns
      {{1 << 17, 1 << 16}, {{(1 << 16) - 1, 9}, {3, 1000}}}};
  for (const Initializer initializer : kInitializers) {
    for (const DType dtype : {DType::f32, DType::bf16}) {
      for (const auto& [shape, box] : blocks) {
        SCOPED_TRACE(static_cast<int>(initializer));
        SCOPED_TRACE(to_string(box));
        const ParameterSpec spec = spec_of(initializer, dtype, shape);
        const Tensor want = draw_block(pool, Memory(), spec, 7, box);
        expect_same_bits(draw_block(pool, emulated(), spec, 7, box), want);
      }
    }
  }
}

// The host's draws are those of the functions for one element.
TEST(DrawnParameters, AreTheNumbersOfTheirIndices) {
  ThreadPool pool(2);
  const Box box{{3, 20}, {90, 31}};
  const ParameterSpec spec = spec_of(Initializer::normal, DType::f32, {100, 60});
  const Tensor got = draw_block(pool, Memory(), spec, 3, box);
  const RngKey key = rng_fold_in(rng_key(3), spec.name);
  for (std::int64_t r = 0; r < 90; ++r) {
    for (std::int64_t c = 0; c < 31; ++c)
      ASSERT_EQ(got.data<float>()[r * 31 + c],
                rng_normal(key, static_cast<std::uint64_t>((r + 3) * 60 + c + 20)) * 0.02f);
  }
}

Tensor numbers(DType dtype, const Shape& shape) {
  const Tensor x(DType::f32, shape);
  rng_fill_normal(rng_key(5), 0, x.span<float>());
  return x.cast(dtype);
}

// Buffers that the ring uses many times, sizes that do not divide them, tensors that are empty or small.
TEST(Uploads, KeepEveryBit) {
  ThreadPool pool(2);
  for (const std::int64_t buffer : {std::int64_t{64}, std::int64_t{4096}, Upload::kBufferBytes}) {
    Upload upload(emulated(), pool, buffer);
    for (const DType from : {DType::f32, DType::bf16}) {
      for (const DType to : {DType::f32, DType::bf16}) {
        for (const std::int64_t count : {1, 15, 16, 17, 1024, 4097, 50001}) {
          SCOPED_TRACE(count);
          const Tensor host = numbers(from, {count});
          expect_same_bits(upload.send(host, to), host.cast(to));
        }
        EXPECT_EQ(upload.send(numbers(from, {0, 3}), to).size(), 0);
      }
    }
    upload.finish();
  }
}

// body(parameters) of the one parameter on the device.
void with_parameters(const std::string& device, const ParameterSpec& spec, const Parameters::FillBlock& fill,
                     const std::function<void(const Parameters&)>& body) {
  const Config config =
      Config::from_args(std::vector<std::string>{"model_name=deepseek3-tiny", "device=" + device});
  int ranks = 0;
  run_session(config, mesh_from_config(config), [&](Context& context) {
    ASSERT_EQ(context.memory.device().name(), device);
    body(Parameters::create_from_blocks(context, {spec}, 0, fill, nullptr));
    ++ranks;
  });
  EXPECT_EQ(ranks, 1);
}

// The stored tensor is larger than a buffer, which does not divide it.
TEST(LoadedParameters, HaveTheSameBitsOnAGpu) {
  const Shape shape{70001, 67};
  ASSERT_GT(num_elements(shape) * 4, Upload::kBufferBytes);
  for (const DType stored : {DType::f32, DType::bf16}) {
    for (const DType wanted : {DType::f32, DType::bf16}) {
      ParameterSpec spec = spec_of(Initializer::normal, wanted, shape);
      spec.name = "embedding";
      spec.dims = {"vocab", "embed"};
      const Tensor whole = numbers(stored, shape);
      const auto fill = [&](const ParameterSpec&, const Box& block) {
        return slice_block(whole, block.start, block.shape);
      };
      for (const char* device : {"cpu", "cuda_emulated"}) {
        with_parameters(device, spec, fill, [&](const Parameters& loaded) {
          expect_same_bits(loaded["embedding"].tensor(), whole.cast(wanted));
        });
      }
    }
  }
}

// Packed where they are drawn or loaded: whole, and in pieces of matrices and of columns.
TEST(PackedParameters, HaveTheSameBitsOnAGpu) {
  for (const DType packed : packed_types(true)) {
    for (const auto& [stack, inputs, outputs] :
         {std::tuple<std::int64_t, std::int64_t, std::int64_t>{0, 64, 48}, {3, 64, 48}, {0, 4096, 2080}}) {
      for (const bool loaded : {false, true}) {
        SCOPED_TRACE(
            fmt::format("{} [{}, {}, {}], loaded {}", name_of(packed), stack, inputs, outputs, loaded));
        ParameterSpec spec =
            spec_of(Initializer::normal, packed, {inputs / kGroupInputs, outputs / kBlockOutputs});
        spec.name = "layers.0.mlp.wi_0";
        spec.dims = {"embed", "mlp"};
        spec.matrix = {.stack = stack > 0 ? 1u : 0u, .inputs = 1};
        Shape dense{inputs, outputs};
        if (stack > 0) {
          spec.shape.insert(spec.shape.begin(), stack);
          spec.dims.insert(spec.dims.begin(), "exp");
          dense.insert(dense.begin(), stack);
        }
        const Tensor whole = loaded ? numbers(DType::bf16, dense) : Tensor();
        const auto fill = [&](const ParameterSpec&, const Box& block) {
          const Box values = dense_box(spec, block);
          return loaded ? slice_block(whole, values.start, values.shape) : Tensor();
        };
        Tensor want;
        for (const char* device : {"cpu", "cuda_emulated"}) {
          with_parameters(device, spec, fill, [&](const Parameters& parameters) {
            const Tensor here = to_host(parameters[spec.name].tensor());
            if (want.defined())
              expect_same_bits(here, want);
            else
              want = here;
          });
        }
      }
    }
  }
}

TEST(PackedParameters, ThatAreNoNumbersAreRefusedOnAGpu) {
  ParameterSpec spec = spec_of(Initializer::normal, DType::packed_int4, {2, 3});
  spec.matrix = {.stack = 0, .inputs = 1};
  for (const float value : {INFINITY, NAN, 1e9f}) {
    const auto fill = [&](const ParameterSpec&, const Box& block) {
      Tensor x = numbers(DType::f32, dense_box(spec, block).shape);
      x.data<float>()[77] = value;
      return x;
    };
    for (const char* device : {"cpu", "cuda_emulated"})
      EXPECT_THROW(with_parameters(device, spec, fill, [](const Parameters&) {}), Error) << device << value;
  }
}

}  // namespace
}  // namespace switchyard
