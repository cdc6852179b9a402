// switchyard._native: the public Engine for python/switchyard/, which checks arguments and names results.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <limits>
#include <string_view>
#include <utility>

#include "parts.h"

namespace switchyard::python {
namespace {

using View = nb::ndarray<nb::ro, nb::array_api>;

// With `experts` also the experts of each row, else None.
nb::tuple forward(const Held& core, const Tokens& tokens, bool last, bool experts) {
  const Call call(core, "forward");
  const TokenBatch batch = batch_of("forward", tokens, call.engine().vocabulary());
  Logits logits = without_gil(
      [&] { return call.engine().forward(batch, last ? Positions::last : Positions::all, experts); });
  return nb::make_tuple(array_of(std::move(logits.values), {static_cast<std::size_t>(logits.rows),
                                                            static_cast<std::size_t>(logits.positions),
                                                            static_cast<std::size_t>(logits.vocabulary)}),
                        std::move(logits.routing));
}

Held open(const Settings& settings, const nb::object& progress, bool hears_signals) {
  Start start;
  const OpenProgress hear = [&](std::int64_t read, std::int64_t all) {
    const nb::gil_scoped_acquire held;
    if (hears_signals && PyErr_CheckSignals() != 0) throw nb::python_error();
    if (!progress.is_none()) progress(read, all);
  };
  const bool hears = hears_signals || !progress.is_none();
  return std::make_shared<Core>(without_gil(
      [&] { return Engine::open(settings, start.stop.get_token(), hears ? hear : OpenProgress()); }));
}

std::vector<Text> complete(const Held& core, const std::vector<Ids>& prompts, const Sampling& sampling,
                           bool hears_signals) {
  return stoppable(core, "generate", hears_signals, [&](Engine& engine, const std::stop_token& stop) {
    return engine.complete(prompts, sampling, stop);
  });
}

std::string chat(const Held& core, const std::string& request, bool hears_signals) {
  return stoppable(core, "chat", hears_signals,
                   [&](Engine& engine, const std::stop_token& stop) { return engine.chat(request, stop); });
}

std::shared_ptr<Stream> stream(const Held& core, const Ids& prompt, const Sampling& sampling) {
  const Call call(core, "stream");
  auto made = std::make_shared<Stream>(without_gil([&] { return call.engine().generate(prompt, sampling); }));
  core->add(made);
  return made;
}

std::optional<nb::dlpack::dtype> dtype_of(const std::string& name) {
  if (name == "float32") return nb::dtype<float>();
  if (name == "bfloat16")
    return nb::dlpack::dtype{static_cast<std::uint8_t>(nb::dlpack::dtype_code::Bfloat), 16, 1};
  return {};
}

// The memory of a shard in its own type (None for packed weights), or as plain bits: of 16-bit numbers as
// such, of packed weights as bytes.
nb::object view_of(const Shard& shard, const std::string& dtype, bool as_bits) {
  const std::optional<nb::dlpack::dtype> type = dtype_of(dtype);
  if (shard.data == nullptr || (!type && !as_bits)) return nb::none();
  auto* const kept = new std::shared_ptr<const void>(shard.owner);
  const nb::capsule owner(
      kept, [](void* memory) noexcept { delete static_cast<std::shared_ptr<const void>*>(memory); });
  std::vector<std::size_t> shape(shard.shape.begin(), shard.shape.end());
  if (!type) shape = {shard.bytes};
  const nb::dlpack::dtype bits = !type              ? nb::dtype<std::uint8_t>()
                                 : type->bits == 16 ? nb::dtype<std::uint16_t>()
                                                    : nb::dtype<std::uint32_t>();
  return nb::cast(View(shard.data, shape.size(), shape.data(), owner, nullptr, as_bits ? bits : *type,
                       shard.gpu < 0 ? nb::device::cpu::value : nb::device::cuda::value,
                       std::max(shard.gpu, 0)));
}

nb::list shards_of(const Held& core, const std::string& name) {
  const Call call(core, "parameter");
  const ParameterView found = without_gil([&] { return call.engine().parameter(name); });
  nb::list shards;
  for (const Shard& shard : found.shards)
    shards.append(nb::make_tuple(shard.rank, nb::tuple(nb::cast(shard.offset)),
                                 nb::tuple(nb::cast(shard.shape)), view_of(shard, found.dtype, false),
                                 view_of(shard, found.dtype, true)));
  return shards;
}

nb::list parameters(const Held& core) {
  const Call call(core, "parameters");
  const std::vector<ParameterInfo> all = without_gil([&] { return call.engine().parameters(); });
  nb::list infos;
  for (const ParameterInfo& info : all)
    infos.append(nb::make_tuple(info.name, nb::tuple(nb::cast(info.shape)), info.dtype,
                                nb::tuple(nb::cast(info.axes)), info.trained));
  return infos;
}

Floats read_parameter(const Held& core, const std::string& name, const std::vector<std::size_t>& shape) {
  const Call call(core, "parameter");
  return array_of(without_gil([&] { return call.engine().read_parameter(name); }), shape);
}

// The package's own classes of errors: its Python half declares them.
void raise(const Error& error, const SettingError* setting) {
  const char* const names[] = {"UsageError", "RunError", "InternalError"};
  const nb::object type =
      nb::module_::import_("switchyard._errors").attr(names[static_cast<int>(error.kind())]);
  const auto part = [](const std::string& text) -> nb::object {
    return text.empty() ? nb::object(nb::none()) : to_text(text);
  };
  const nb::object instance = setting == nullptr ? type(error.what())
                                                 : type(error.what(), part(setting->key()),
                                                        part(setting->value()), part(setting->expected()));
  PyErr_SetObject(type.ptr(), instance.ptr());
}

void translate(const std::exception_ptr& thrown, void*) {
  try {
    std::rethrow_exception(thrown);
  } catch (const SettingError& error) {
    raise(error, &error);
  } catch (const Error& error) {
    raise(error, nullptr);
  }
}

void define_routing(nb::module_& module) {
  nb::class_<RoutedText>(module, "RoutedText")
      .def("tokens", [](const RoutedText& text) { return ids_array(text.tokens, {text.tokens.size()}); })
      .def_ro("layers", &RoutedText::layers)
      .def_ro("experts", &RoutedText::experts)
      .def("chosen",
           [](const RoutedText& text) {
             return ids_array(text.chosen,
                              {text.layers.size(), text.tokens.size(), static_cast<std::size_t>(text.slots)});
           })
      .def_ro("source", &RoutedText::source)
      .def_ro("step", &RoutedText::step)
      .def_ro("row", &RoutedText::row)
      .def_ro("first", &RoutedText::first);
  module.def("read_routing_record",
             [](const std::string& path) { return without_gil([&] { return read_routing_record(path); }); });
}

void define_values(nb::module_& module) {
  nb::class_<Settings>(module, "Settings")
      .def_static("parse",
                  [](const std::vector<std::string>& words) {
                    return without_gil([&] { return Settings::parse(words); });
                  })
      .def("json", [](const Settings& settings) { return to_text(settings.json()); });
  nb::class_<Sampling>(module, "Sampling")
      .def(nb::init<>())
      .def_rw("max_tokens", &Sampling::most_tokens)
      .def_rw("temperature", &Sampling::temperature)
      .def_rw("top_k", &Sampling::top_k)
      .def_rw("top_p", &Sampling::top_p)
      .def_rw("min_p", &Sampling::min_p)
      .def_rw("repetition_penalty", &Sampling::repetition_penalty)
      .def_rw("presence_penalty", &Sampling::presence_penalty)
      .def_rw("frequency_penalty", &Sampling::frequency_penalty)
      .def_rw("seed", &Sampling::seed)
      .def_rw("ends", &Sampling::ends)
      .def_rw("ends_by_model", &Sampling::ends_by_model)
      .def_rw("stop", &Sampling::stop)
      .def_rw("json_schema", &Sampling::json_schema)
      .def_rw("log_probs", &Sampling::log_probs)
      .def_rw("experts", &Sampling::experts)
      .def_rw("adapter", &Sampling::adapter);
  nb::class_<Text>(module, "Text")
      .def_ro("tokens", &Text::tokens)
      .def_ro("log_probs", &Text::log_probs)
      .def_ro("ended", &Text::ended)
      .def_ro("routing", &Text::routing)
      .def_prop_ro("text", [](const Text& text) { return to_text(text.text); });
}

void define_stream(nb::module_& module) {
  nb::class_<Stream>(module, "Stream")
      .def(
          "next",
          [](Stream& stream, const Held& core) -> nb::object {
            const std::optional<Stream::Token> token = [&] {
              const Call call(core, "stream");
              return without_gil([&] { return stream.next(); });
            }();
            // Ctrl-C came while the token was made. The traceback may hold the stream for long, as notebooks
            // do, and nobody will pull at it: its slot is free again.
            if (PyErr_CheckSignals() != 0) {
              nb::python_error raised;
              without_gil([&] { stream.close(); });
              throw raised;
            }
            if (!token) return nb::none();
            return nb::make_tuple(token->id, to_text(token->text), token->log_prob);
          },
          nb::sig("def next(self, engine: Engine, /) -> tuple[int, str, float | None] | None"))
      .def("close", [](Stream& stream) { without_gil([&] { stream.close(); }); });
}

void define_engine(nb::module_& module) {
  const auto folder_call = [](const char* what, auto work) {
    return [what, work](const Held& core, const std::string& folder, const std::string& dtype) {
      const Call call(core, what);
      return without_gil([&] { return work(call.engine(), folder, dtype); });
    };
  };
  nb::class_<Core> type(module, "Engine");
  type.def_static("open", &open, nb::arg("settings"), nb::arg("progress").none(), nb::arg("hears_signals"))
      .def_prop_ro("closed", &Core::is_closed)
      .def("close", &Core::close)
      .def("notes", [](const Held& core) { return Call(core, "notes").engine().notes(); })
      .def("vocabulary", [](const Held& core) { return Call(core, "vocabulary").engine().vocabulary(); })
      .def("ranks", [](const Held& core) { return Call(core, "ranks").engine().ranks(); })
      .def("mesh", [](const Held& core) { return Call(core, "mesh").engine().mesh(); })
      .def("device", [](const Held& core) { return Call(core, "device").engine().device(); })
      .def("model", [](const Held& core) { return to_text(Call(core, "model").engine().model()); })
      .def(
          "memory",
          [](const Held& core) {
            const MemoryUse use = Call(core, "memory").engine().memory();
            return nb::make_tuple(use.in_use, use.peak);
          },
          nb::sig("def memory(self) -> tuple[int, int]"))
      .def("forward", &forward,
           nb::sig("def forward(self, tokens: NDArray[Any], last: bool, experts: bool, /) -> "
                   "tuple[NDArray[numpy.float32], list[RoutedText]]"))
      .def("complete", &complete)
      .def("chat", [](const Held& core, const std::string& request,
                      bool hears_signals) { return to_text(chat(core, request, hears_signals)); })
      .def("stream", &stream)
      .def("encode", [](const Held& core,
                        const std::string& text) { return Call(core, "encode").engine().encode(text); })
      .def("decode", [](const Held& core,
                        const Ids& tokens) { return to_text(Call(core, "decode").engine().decode(tokens)); })
      .def("parameters", &parameters,
           nb::sig("def parameters(self) -> list[tuple[str, tuple[int, ...], str, tuple[str, ...], bool]]"))
      .def("shards", &shards_of,
           nb::sig("def shards(self, name: str, /) -> "
                   "list[tuple[int, tuple[int, ...], tuple[int, ...], object, object]]"))
      .def("read_parameter", &read_parameter)
      .def("save", folder_call("save", [](Engine& engine, const std::string& folder,
                                          const std::string&) { return engine.save(folder); }))
      .def("export",
           folder_call("export", [](Engine& engine, const std::string& folder, const std::string& dtype) {
             return engine.export_weights(folder, dtype);
           }));
  define_training(module, type);
}

}  // namespace

namespace {

template <typename T>
nb::ndarray<nb::numpy, T> owned(std::vector<T> values, const std::vector<std::size_t>& shape) {
  auto* const kept = new std::vector<T>(std::move(values));
  const nb::capsule owner(kept, [](void* memory) noexcept { delete static_cast<std::vector<T>*>(memory); });
  return {kept->data(), shape.size(), shape.data(), owner};
}

}  // namespace

Floats array_of(std::vector<float> values, const std::vector<std::size_t>& shape) {
  return owned(std::move(values), shape);
}

nb::ndarray<nb::numpy, std::int32_t> ids_array(std::vector<std::int32_t> values,
                                               const std::vector<std::size_t>& shape) {
  return owned(std::move(values), shape);
}

Ids ids_of(const char* what, const Tokens& tokens, std::int64_t vocabulary) {
  Ids ids(tokens.size());
  if (tokens.dtype() == nb::dtype<std::int32_t>()) {
    std::copy_n(static_cast<const std::int32_t*>(tokens.data()), ids.size(), ids.begin());
    return ids;
  }
  const auto* const wide = static_cast<const std::int64_t*>(tokens.data());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    // A wide id that is cut to 32 bits could be another token; the engine checks all others.
    if (wide[i] < std::numeric_limits<std::int32_t>::min() ||
        wide[i] > std::numeric_limits<std::int32_t>::max())
      throw Error(Error::Kind::usage, std::string("[engine] ") + what + ": token " + std::to_string(wide[i]) +
                                          " is outside the vocabulary of " + std::to_string(vocabulary));
    ids[i] = static_cast<std::int32_t>(wide[i]);
  }
  return ids;
}

TokenBatch batch_of(const char* what, const Tokens& tokens, std::int64_t vocabulary) {
  return {static_cast<std::int64_t>(tokens.shape(0)), static_cast<std::int64_t>(tokens.shape(1)),
          ids_of(what, tokens, vocabulary)};
}

NB_MODULE(_native, module) {
  define_processor(module);
  nb::set_leak_warnings(false);  // at exit others' modules may still hold our objects
  nb::register_exception_translator(&translate, nullptr);
  define_routing(module);
  define_values(module);
  define_stream(module);
  define_engine(module);
  define_layer(module);
  define_commands(module);
  define_messages(module);
  define_server(module);
  define_tokenizer(module);
  Core::watch_forks();
  module.def("shut_down", &Core::shut_down);
}

}  // namespace switchyard::python
