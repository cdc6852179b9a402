#include "checkpoint/safetensors_header.h"

#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "core/error.h"
#include "core/json_file.h"

namespace switchyard {
namespace {

using nlohmann::json;

// Receives the parse as events, so that duplicate keys are detected and nothing deeper than the format is
// built. Depth 1 is the whole object, 2 a tensor or the metadata, 3 a shape or a pair of offsets.
class HeaderReader {
 public:
  using number_integer_t = json::number_integer_t;
  using number_unsigned_t = json::number_unsigned_t;
  using number_float_t = json::number_float_t;
  using string_t = json::string_t;
  using binary_t = json::binary_t;

  SafetensorsHeader header;
  std::string error;

  bool null() { return refuse("null"); }
  bool boolean(bool) { return refuse("a boolean"); }
  bool number_integer(number_integer_t value) { return refuse(fmt::format("the number {}", value)); }
  bool number_float(number_float_t, const string_t& text) { return refuse("the number " + text); }
  bool binary(binary_t&) { return refuse("binary data"); }

  bool number_unsigned(number_unsigned_t value) {
    if (depth_ != 3) return refuse(fmt::format("the number {}", value));
    auto& list = key_ == "shape" ? item_->shape : item_->offsets;
    if (key_ == "data_offsets" && list.size() == 2)
      return rule(at("data_offsets") + " has more than two numbers");
    if (list.size() == 32) return rule(at("shape") + " has more than 32 dimensions");
    list.push_back(value);
    return true;
  }

  bool string(string_t& value) {
    if (depth_ == 2 && in_metadata_) {
      header.metadata[key_] = value;
    } else if (depth_ == 2 && key_ == "dtype") {
      item_->dtype = value;
    } else {
      return refuse("the string " + in_quotes(value));
    }
    return true;
  }

  bool start_object(std::size_t) {
    if (depth_ >= 2) return refuse("an object");
    if (++depth_ == 1) return true;
    inner_keys_.clear();
    in_metadata_ = name_ == "__metadata__";
    if (!in_metadata_) item_ = &header.items[name_];
    return true;
  }

  bool key(string_t& value) {
    if (depth_ == 1) {
      name_ = value;
      return names_.insert(value).second || rule("duplicate key " + in_quotes(value));
    }
    key_ = value;
    if (!inner_keys_.insert(value).second)
      return rule("duplicate key " + in_quotes(value) + " in " + in_quotes(name_));
    if (in_metadata_ || key_ == "dtype" || key_ == "shape" || key_ == "data_offsets") return true;
    return rule("unknown key " + in_quotes(value) + " in tensor " + in_quotes(name_));
  }

  bool end_object() {
    if (depth_-- == 2 && !in_metadata_) {
      for (const char* needed : {"dtype", "shape", "data_offsets"}) {
        if (!inner_keys_.contains(needed))
          return rule(fmt::format("tensor {} has no {}", in_quotes(name_), needed));
      }
      if (item_->offsets.size() != 2) return rule(at("data_offsets") + " is not two numbers");
    }
    return true;
  }

  bool start_array(std::size_t) {
    if (depth_ != 2 || in_metadata_ || key_ == "dtype") return refuse("an array");
    depth_ = 3;
    return true;
  }
  bool end_array() {
    depth_ = 2;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const json::exception&) {
    return rule(fmt::format("header is not valid JSON at byte {}", position));
  }

 private:
  bool rule(std::string text) {
    error = std::move(text);
    return false;
  }
  bool refuse(const std::string& what) {
    if (depth_ == 0) return rule("header is " + what + ", expected an object");
    if (depth_ == 1) return rule(fmt::format("{} is {}, expected an object", in_quotes(name_), what));
    const char* expected = in_metadata_      ? "a string"
                           : key_ == "dtype" ? "a string"
                           : depth_ == 3     ? "whole numbers from 0 to 2^64-1"
                                             : "a list of numbers";
    return rule(fmt::format("{} is {}, expected {}", at(key_), what, expected));
  }
  std::string at(const std::string& key) const { return in_quotes(key) + " of " + in_quotes(name_); }

  int depth_ = 0;
  bool in_metadata_ = false;
  std::string name_, key_;
  std::set<std::string> names_, inner_keys_;
  SafetensorsHeader::Item* item_ = nullptr;
};

}  // namespace

SafetensorsHeader parse_safetensors_header(std::string_view text, const std::string& path) {
  if (text.empty() || text.front() != '{')
    fail_usage("[safetensors] {}: header does not begin with '{{'", path);
  // To the parser a NUL ends the text.
  if (const std::size_t nul = text.find('\0'); nul != std::string_view::npos)
    fail_usage("[safetensors] {}: header is not valid JSON at byte {}", path, nul);
  HeaderReader reader;
  if (!json::sax_parse(text, &reader)) fail_usage("[safetensors] {}: {}", path, reader.error);
  return std::move(reader.header);
}

}  // namespace switchyard
