// The engine's weights: what a caller reads and replaces.
#include <algorithm>
#include <utility>

#include "config/declaration.h"
#include "core/error.h"
#include "core/gpu.h"
#include "engine/changing_weights.h"
#include "engine/engine_impl.h"
#include "parallel/sharding.h"

namespace switchyard {
namespace {

std::vector<std::int64_t> numbers(const Shape& shape) {
  return {shape.begin(), shape.end()};
}

Box block_of(const Context& context, const Parameter& parameter) {
  return {local_offset(*context.mesh, context.rank, parameter.spec.shape, parameter.array.sharding()),
          parameter.array.info().local};
}

}  // namespace

const ParameterSpec& Engine::Impl::spec(std::string_view name) const {
  std::vector<std::string> names;
  for (const ParameterSpec& s : on_ranks.specs) {
    if (s.name == name) return s;
    names.push_back(s.name);
  }
  fail_usage("[engine] parameter {}: the model has none of that name{}", name, nearest_hint(name, names));
}

void Engine::Impl::add_of_other_processes(Context& context, const Tensor& whole) const {
  if (processes->count() == 1) return;
  context.comm->barrier(everyone(*context.comm, "parameter"));
  if (!speaks(context)) return;
  ProcessGroup speakers{{}, processes->index(), "processes"};
  for (int p = 0; p < processes->count(); ++p)
    speakers.ranks.push_back(p * (mesh.size() / processes->count()));
  context.comm->all_reduce(speakers, TensorView::of_host(DType::i32, whole.raw(), {whole.size()}));
}

ParameterInfo Engine::Impl::info(const ParameterSpec& of) const {
  const Mesh own = stage_mesh(mesh);
  const AxisRules rules(config.axis_rules(), own);
  const Sharding sharding = rules.resolve(of.dims, of.shape).sharding;
  ParameterInfo info{.name = of.name,
                     .shape = numbers(of.shape),
                     .dtype = std::string(name_of(of.dtype)),
                     .axes = {},
                     .block = numbers(local_shape(own, of.shape, sharding)),
                     .trained = of.trained};
  for (const Axes& axes : sharding.dims) info.axes.push_back(joined(axes));
  return info;
}

ParameterView Engine::parameter(std::string_view name) {
  Impl& own = *impl_;
  const ParameterSpec& spec = own.spec(name);
  std::vector<std::optional<Shard>> found(own.ranks.size());
  own.loop->run([&](Context& context) {
    const Parameters& parameters = own.state(context)->parameters;
    if (!parameters.contains(spec.name)) return;  // it is another stage's
    const Array& array = parameters[spec.name];
    const Tensor& block = array.tensor();
    const bool on_gpu = block.view().device().kind() == DeviceKind::cuda;
    if (on_gpu) gpu::synchronize();  // whatever stream the caller reads on, the weights are there
    found[static_cast<std::size_t>(context.comm->rank())] =
        Shard{.rank = context.comm->rank(),
              .offset = numbers(local_offset(*context.mesh, context.rank, spec.shape, array.sharding())),
              .shape = numbers(block.shape()),
              .data = block.view().device().is_host() ? block.raw()
                      : on_gpu                        ? block.view().device_address()
                                                      : nullptr,
              .gpu = on_gpu ? gpu::device_index() : -1,
              .bytes = block.bytes(),
              .owner = block.buffer()};
  });
  ParameterView view{own.info(spec), {}};
  for (const std::optional<Shard>& shard : found) {
    if (shard) view.shards.push_back(*shard);
  }
  return view;
}

std::vector<ParameterInfo> Engine::parameters() {
  std::vector<ParameterInfo> all;
  for (const ParameterSpec& spec : impl_->on_ranks.specs) all.push_back(impl_->info(spec));
  return all;
}

std::vector<float> Engine::read_parameter(std::string_view name) {
  Impl& own = *impl_;
  const ParameterSpec& spec = own.spec(name);
  if (is_packed(spec.dtype))
    fail_usage("[engine] parameter {}: is packed ({}), which has no float32 values here", name,
               name_of(spec.dtype));
  return own.whole(spec, [](Context&, const Parameter& p) { return p.array.tensor(); });
}

std::vector<float> Engine::Impl::whole(const ParameterSpec& spec,
                                       const std::function<Tensor(Context&, const Parameter&)>& shard) {
  const Tensor whole = Tensor::zeros(DType::f32, spec.shape);
  loop->run([&](Context& context) {
    for (const Parameter& p : state(context)->parameters.all()) {
      if (p.spec.name != spec.name) continue;
      const Tensor block = shard(context, p);
      if (holders_of(context, p).index != 0) continue;  // one of the ranks that hold the same block
      place_block(to_host(block).cast(DType::f32),
                  local_offset(*context.mesh, context.rank, spec.shape, p.array.sharding()), whole);
    }
    add_of_other_processes(context, whole);
  });
  return {whole.span<float>().begin(), whole.span<float>().end()};
}

void Engine::Impl::write_block(Context& context, const Parameter& parameter, const Tensor& block) const {
  const std::vector<int>& holders = holders_of(context, parameter).ranks;
  const int here = context.comm->process_of(context.comm->rank());
  const auto first =
      std::ranges::find_if(holders, [&](int rank) { return context.comm->process_of(rank) == here; });
  if (*first != context.comm->rank()) return;
  copy(block.cast(parameter.spec.dtype).view(), parameter.array.tensor().view());
}

void Engine::Impl::drop_derived(Context& context) {
  RankState& own = *state(context);
  own.parameters.raise_version();
  if (own.trainer) own.trainer->updater().forget_weight_sums();
}

void Engine::assign(std::string_view name, std::span<const float> values) {
  Impl& own = *impl_;
  const ParameterSpec& spec = own.spec(name);
  if (is_packed(spec.dtype))
    fail_usage("[engine] assign: {} is packed ({}); open the engine with weight_format=dense", name,
               name_of(spec.dtype));
  if (std::ssize(values) != num_elements(spec.shape))
    fail_usage("[engine] assign: {} values for {} {}", values.size(), name, to_string(spec.shape));
  const Tensor whole(Memory(), DType::f32, spec.shape);
  std::ranges::copy(values, whole.span<float>().begin());
  own.loop->run([&](Context& context) {
    for (const Parameter& p : own.state(context)->parameters.all()) {
      if (p.spec.name != spec.name) continue;
      const Box block = block_of(context, p);
      own.write_block(context, p, slice_block(whole, block.start, block.shape));
    }
    own.drop_derived(context);
  });
}

void Engine::load(const std::string& path) {
  Impl& own = *impl_;
  own.refuse_packed("load", "open another engine");
  Config config = own.config;
  config.set("load_parameters_path", path, "load");
  config.set("load_full_state_path", "", "load");
  const auto made =
      std::make_shared<const ModelOnRanks>(ModelOnMesh(config, ModelUse::train_or_run), own.processes.get());
  const OtherWeights other = weights_like(own.on_ranks, made, path);
  const auto each_block = [&](const std::function<void(Context&, const Parameter&, const Tensor&)>& use) {
    own.loop->run([&](Context& context) {
      for (const Parameter& p : own.state(context)->parameters.all())
        if (!p.spec.of_adapter) use(context, p, other.fill(p.spec, block_of(context, p)));
    });
  };
  each_block([](Context&, const Parameter&, const Tensor&) {});  // damaged files are found here
  each_block(
      [&](Context& context, const Parameter& p, const Tensor& block) { own.write_block(context, p, block); });
  weights_changed();
}

void Engine::weights_changed() {
  impl_->loop->run([&](Context& context) { impl_->drop_derived(context); });
}

}  // namespace switchyard
