// The layer for torch: the public MoeLayer over arrays of DLPack.
#include "switchyard/layer.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <mutex>
#include <utility>

#include "core.h"

namespace switchyard::python {
namespace {

using In = nb::ndarray<nb::ro, nb::c_contig, nb::device::cpu>;
using Out = nb::ndarray<nb::array_api>;

const nb::dlpack::dtype kBfloat16{static_cast<std::uint8_t>(nb::dlpack::dtype_code::Bfloat), 16, 1};

FloatArray array_of(const In& in) {
  const bool wide = in.dtype() == nb::dtype<float>();
  if (!wide && in.dtype() != kBfloat16)
    throw Error(Error::Kind::usage, "[layer] expected arrays of float32 or bfloat16");
  FloatArray array{.type = wide ? FloatType::float32 : FloatType::bfloat16, .shape = {}, .data = in.data()};
  for (std::size_t d = 0; d < in.ndim(); ++d) array.shape.push_back(static_cast<std::int64_t>(in.shape(d)));
  return array;
}

// Python's from now on: the memory of the array.
Out out_of(const FloatArray& array) {
  auto* const kept = new std::shared_ptr<const void>(array.owner);
  const nb::capsule owner(
      kept, [](void* memory) noexcept { delete static_cast<std::shared_ptr<const void>*>(memory); });
  const std::vector<std::size_t> shape(array.shape.begin(), array.shape.end());
  return Out(const_cast<void*>(array.data), shape.size(), shape.data(), owner, nullptr,
             array.type == FloatType::float32 ? nb::dtype<float>() : kBfloat16);
}

// An entry holds what one forward keeps for its backward. A ticket, an array of one integer, has the entry's
// number, and the entry ends with the ticket's memory: autograd saves the ticket, so both live equally long.
struct Kept {
  MoeLayer::Kept kept;
  std::vector<In> used;  // memory that it reads; freed after it
};

struct AllKept {
  std::mutex mutex;
  std::map<std::int64_t, Kept> entries;
  std::int64_t next = 1;

  std::optional<Kept> take(std::int64_t ticket) {
    const std::scoped_lock lock(mutex);
    auto node = entries.extract(ticket);
    return node.empty() ? std::nullopt : std::optional(std::move(node.mapped()));
  }
};

// Never destroyed: tickets may outlive the module.
AllKept* const all_kept = new AllKept;

Out ticket_for(MoeLayer::Kept kept, std::vector<In> used) {
  auto* const ticket = new std::int64_t(0);
  if (!kept.empty()) {
    const std::scoped_lock lock(all_kept->mutex);
    *ticket = all_kept->next++;
    all_kept->entries.emplace(*ticket, Kept{.kept = std::move(kept), .used = std::move(used)});
  }
  const nb::capsule owner(ticket, [](void* memory) noexcept {
    auto* const number = static_cast<std::int64_t*>(memory);
    all_kept->take(*number);
    delete number;
  });
  const std::size_t one = 1;
  return Out(ticket, 1, &one, owner, nullptr, nb::dtype<std::int64_t>());
}

class Layer {
 public:
  explicit Layer(MoeLayer layer) : layer_(std::make_shared<MoeLayer>(std::move(layer))) {}
  ~Layer() {
    // After a fork its threads are not here: it is left alone.
    if (process_ != ::getpid()) static_cast<void>(new std::shared_ptr<MoeLayer>(std::move(layer_)));
  }
  Layer(const Layer&) = delete;

  std::shared_ptr<MoeLayer> get() const {
    if (process_ != ::getpid())
      throw Error(Error::Kind::usage,
                  "[layer] this process is a fork of the one that made the layer: make it here");
    return layer_;
  }

 private:
  const pid_t process_ = ::getpid();
  std::shared_ptr<MoeLayer> layer_;
};

nb::tuple forward(const Layer& layer, const In& x, const std::optional<In>& segments,
                  const std::vector<In>& weights, const std::vector<bool>& differentiated) {
  const std::shared_ptr<MoeLayer> own = layer.get();
  const FloatArray input = array_of(x);
  std::vector<FloatArray> arrays;
  for (const In& weight : weights) arrays.push_back(array_of(weight));
  std::span<const std::int32_t> places;
  if (segments) {
    if (segments->dtype() != nb::dtype<std::int32_t>())
      throw Error(Error::Kind::usage, "[layer] segments: expected int32");
    places = {static_cast<const std::int32_t*>(segments->data()), segments->size()};
  }
  MoeLayer::Result made = without_gil([&] { return own->forward(input, arrays, differentiated, places); });
  std::vector<In> used(weights);
  used.push_back(x);
  return nb::make_tuple(out_of(made.y), made.balance_loss, ticket_for(std::move(made.kept), std::move(used)));
}

// None where nothing is kept under the ticket.
nb::object backward(const Layer& layer, std::int64_t ticket, const std::optional<In>& dy, double dloss,
                    const std::vector<bool>& wanted) {
  const std::shared_ptr<MoeLayer> own = layer.get();
  std::optional<Kept> kept = all_kept->take(ticket);
  if (!kept) return nb::none();
  const FloatArray cotangent = dy ? array_of(*dy) : FloatArray();
  const std::vector<FloatArray> gradients =
      without_gil([&] { return own->backward(std::move(kept->kept), cotangent, dloss, wanted); });
  nb::list found;
  for (const FloatArray& gradient : gradients) {
    if (gradient.data != nullptr) found.append(out_of(gradient));
  }
  return found;
}

}  // namespace

void define_layer(nb::module_& module) {
  nb::class_<Layer>(module, "MoeLayer")
      .def_static("open",
                  [](const Settings& settings) {
                    return std::make_shared<Layer>(without_gil([&] { return MoeLayer::open(settings); }));
                  })
      .def("width", [](const Layer& layer) { return layer.get()->width(); })
      .def(
          "weights",
          [](const Layer& layer) {
            nb::list all;
            for (const LayerWeight& weight : layer.get()->weights())
              all.append(nb::make_tuple(weight.name, nb::tuple(nb::cast(weight.shape)), weight.deviation,
                                        weight.trained));
            return all;
          },
          nb::sig("def weights(self) -> list[tuple[str, tuple[int, ...], float, bool]]"))
      .def("forward", &forward, nb::arg("x"), nb::arg("segments").none(), nb::arg("weights"),
           nb::arg("differentiated"),
           nb::sig("def forward(self, x: object, segments: object | None, weights: Sequence[object], "
                   "differentiated: Sequence[bool]) -> tuple[object, float, object]"))
      .def("backward", &backward, nb::arg("ticket"), nb::arg("dy").none(), nb::arg("dloss"),
           nb::arg("wanted"),
           nb::sig(
               "def backward(self, ticket: int, dy: object | None, dloss: float, wanted: Sequence[bool]) -> "
               "list[object] | None"));
  module.def("layers_kept", [] {
    const std::scoped_lock lock(all_kept->mutex);
    return all_kept->entries.size();
  });
}

}  // namespace switchyard::python
