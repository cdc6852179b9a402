// ModelTokenizer for python/switchyard/tokenizer.py.
#include "switchyard/tokenizer.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "core.h"

namespace switchyard::python {

void define_tokenizer(nb::module_& module) {
  using Ids = std::vector<std::int32_t>;
  nb::class_<ModelTokenizer>(module, "Tokenizer")
      .def_static(
          "of", [](const std::string& path) { return without_gil([&] { return ModelTokenizer::of(path); }); })
      .def_static(
          "of_settings",
          [](const Settings& settings) { return without_gil([&] { return ModelTokenizer::of(settings); }); })
      .def_static("of_json",
                  [](const std::string& tokenizer, const std::string& config) {
                    return without_gil([&] { return ModelTokenizer::of_json(tokenizer, config); });
                  })
      .def("encode", [](const ModelTokenizer& of, const std::string& text,
                        bool special) { return without_gil([&] { return of.encode(text, special); }); })
      .def("decode", [](const ModelTokenizer& of, const Ids& tokens,
                        bool special) { return to_text(of.decode(tokens, special)); })
      .def("vocabulary", &ModelTokenizer::vocabulary)
      .def("begin_token", &ModelTokenizer::begin_token)
      .def("end_token", &ModelTokenizer::end_token)
      .def("end_tokens", [](const ModelTokenizer& of) { return of.end_tokens(); })
      .def("has_chat_template", &ModelTokenizer::has_chat_template)
      .def("chat_template", [](const ModelTokenizer& of) { return to_text(of.chat_template()); })
      .def("chat_text", [](const ModelTokenizer& of,
                           const std::string& request) { return to_text(of.chat_text(request)); })
      .def("chat_tokens", [](const ModelTokenizer& of, const std::string& request) {
        return without_gil([&] { return of.chat_tokens(request); });
      });
}

}  // namespace switchyard::python
