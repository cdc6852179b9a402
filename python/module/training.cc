// The parts of switchyard._native that train and score.
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <span>
#include <string>
#include <utility>
#include <vector>

#include "parts.h"

namespace switchyard::python {
namespace {

using Numbers = nb::ndarray<const float, nb::ro, nb::c_contig, nb::device::cpu>;

// A batch by its parts. Those that follow the tokens have their shape, or are None.
struct Parts {
  Tokens tokens;
  std::optional<Tokens> targets, segments, positions;
  std::optional<Numbers> weights;
};

TrainBatch train_batch_of(const char* what, const Parts& parts, std::int64_t vocabulary) {
  TrainBatch batch{batch_of(what, parts.tokens, vocabulary)};
  const auto take = [&](const std::optional<Tokens>& from, Ids& to) {
    if (from) to = ids_of(what, *from, vocabulary);
  };
  take(parts.targets, batch.targets);
  take(parts.segments, batch.segments);
  take(parts.positions, batch.positions);
  if (parts.weights)
    batch.weights.assign(parts.weights->data(), parts.weights->data() + parts.weights->size());
  return batch;
}

// A call that takes a batch.
template <typename Work>
auto with_batch(const char* what, const Work& work) {
  return [what, work](const Held& core, const Parts& parts) {
    const Call call(core, what);
    const TrainBatch batch = train_batch_of(what, parts, call.engine().vocabulary());
    return without_gil([&] { return work(call.engine(), batch); });
  };
}

Floats token_log_probs(const Held& core, const Parts& parts) {
  const Call call(core, "token_log_probs");
  const TrainBatch batch = train_batch_of("token_log_probs", parts, call.engine().vocabulary());
  return array_of(
      without_gil([&] { return call.engine().token_log_probs(batch); }),
      {static_cast<std::size_t>(batch.inputs.rows), static_cast<std::size_t>(batch.inputs.length)});
}

Floats read_gradient(const Held& core, const std::string& name, const std::vector<std::size_t>& shape) {
  const Call call(core, "gradients");
  return array_of(without_gil([&] { return call.engine().read_gradient(name); }), shape);
}

void assign(const Held& core, const std::string& name, const Numbers& values) {
  const Call call(core, "assign");
  without_gil([&] { call.engine().assign(name, std::span(values.data(), values.size())); });
}

// Runs `call`, which takes what a run tells, with the GIL, in the thread that called train(). A run that is
// asked to end, by a handler of a signal or by close(), ends behind its step.
TrainedRun train(const Held& core, const std::string& data, std::int64_t steps, const nb::object& after_step,
                 const nb::object& line, bool hears_signals) {
  Call call(core, "train");
  const auto goes_on = [&] {
    if (hears_signals && PyErr_CheckSignals() != 0) throw nb::python_error();
    return !call.stop().stop_requested();
  };
  const TrainCalls calls{.after_step =
                             [&](const std::string& metrics) {
                               const nb::gil_scoped_acquire held;
                               const bool wanted =
                                   after_step.is_none() || nb::cast<bool>(after_step(to_text(metrics)));
                               return goes_on() && wanted;
                             },
                         .line =
                             [&](const std::string& text) {
                               const nb::gil_scoped_acquire held;
                               if (!line.is_none()) line(to_text(text));
                             },
                         .between =
                             [&] {
                               const nb::gil_scoped_acquire held;
                               return goes_on();
                             }};
  TrainedRun run = without_gil([&] { return call.engine().train(data, steps, calls); });
  if (call.stop().stop_requested())
    throw Error(Error::Kind::usage, "[engine] train: the engine was closed before the run ended");
  return run;
}

std::vector<Score> score(const Held& core, const std::vector<Ids>& texts,
                         const std::vector<std::int64_t>& from, bool hears_signals) {
  return stoppable(core, "score", hears_signals, [&](Engine& engine, const std::stop_token& stop) {
    return engine.score(texts, from, stop);
  });
}

}  // namespace

void define_training(nb::module_& module, nb::class_<Core>& engine) {
  nb::class_<Parts>(module, "Batch")
      .def(
          "__init__",
          [](Parts* made, Tokens tokens, std::optional<Tokens> targets, std::optional<Tokens> segments,
             std::optional<Tokens> positions, std::optional<Numbers> weights) {
            new (made) Parts{std::move(tokens), std::move(targets), std::move(segments), std::move(positions),
                             std::move(weights)};
          },
          nb::arg("tokens"), nb::arg("targets").none(), nb::arg("segments").none(),
          nb::arg("positions").none(), nb::arg("weights").none());
  nb::class_<TrainStep>(module, "TrainStep")
      .def_ro("step", &TrainStep::step)
      .def_ro("loss", &TrainStep::loss)
      .def_ro("cross_entropy", &TrainStep::cross_entropy)
      .def_ro("balance_loss", &TrainStep::balance_loss)
      .def_ro("gradient_norm", &TrainStep::gradient_norm)
      .def_ro("learning_rate", &TrainStep::learning_rate)
      .def_ro("targets", &TrainStep::targets)
      .def_ro("skipped", &TrainStep::skipped);
  nb::class_<Loss>(module, "Loss")
      .def_ro("loss", &Loss::loss)
      .def_ro("cross_entropy", &Loss::cross_entropy)
      .def_ro("balance_loss", &Loss::balance_loss)
      .def_ro("targets", &Loss::targets);
  nb::class_<TrainedRun>(module, "TrainedRun")
      .def_ro("folder", &TrainedRun::folder)
      .def_ro("metrics_file", &TrainedRun::metrics_file)
      .def_ro("lines", &TrainedRun::lines)
      .def_prop_ro("sample", [](const TrainedRun& run) { return to_text(run.sample); })
      .def_ro("steps", &TrainedRun::steps)
      .def_ro("stopped", &TrainedRun::stopped);
  nb::class_<Score>(module, "Score")
      .def_ro("log_probs", &Score::log_probs)
      .def_ro("most_probable", &Score::most_probable);
  engine
      .def("train_step",
           with_batch("train_step", [](Engine& e, const TrainBatch& b) { return e.train_step(b); }))
      .def("forward_backward",
           with_batch("forward_backward",
                      [](Engine& e, const TrainBatch& b) { return e.forward_backward(b); }))
      .def("loss", with_batch("loss", [](Engine& e, const TrainBatch& b) { return e.loss(b); }))
      .def("token_log_probs", &token_log_probs)
      .def(
          "optimizer_step",
          [](const Held& core, std::optional<double> rate) {
            const Call call(core, "optimizer_step");
            return without_gil([&] { return call.engine().optimizer_step(rate); });
          },
          nb::arg("rate").none())
      .def("read_gradient", &read_gradient)
      .def("drop_gradients",
           [](const Held& core) {
             const Call call(core, "drop_gradients");
             without_gil([&] { call.engine().drop_gradients(); });
           })
      .def("assign", &assign)
      .def("load",
           [](const Held& core, const std::string& path) {
             const Call call(core, "load");
             without_gil([&] { call.engine().load(path); });
           })
      .def("weights_changed",
           [](const Held& core) {
             const Call call(core, "weights_changed");
             without_gil([&] { call.engine().weights_changed(); });
           })
      .def("add_adapter",
           [](const Held& core, const std::string& name, const std::string& folder) {
             const Call call(core, "add_adapter");
             without_gil([&] { call.engine().add_adapter(name, folder); });
           })
      .def("remove_adapter",
           [](const Held& core, const std::string& name) {
             const Call call(core, "remove_adapter");
             without_gil([&] { call.engine().remove_adapter(name); });
           })
      .def("adapters", [](const Held& core) { return Call(core, "adapters").engine().adapters(); })
      .def("train", &train, nb::arg("data"), nb::arg("steps"), nb::arg("after_step").none(),
           nb::arg("line").none(), nb::arg("hears_signals"))
      .def("score", &score);
}

}  // namespace switchyard::python
