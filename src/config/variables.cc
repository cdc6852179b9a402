#include "config/variables.h"

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

#include "config/declaration.h"
#include "config/value.h"
#include "core/error.h"

namespace switchyard {
namespace {

using Json = nlohmann::json;

std::string_view without_spaces(std::string_view text) {
  const auto first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

class Filling {
 public:
  Filling(std::string_view key, std::string_view source, const KeyLookup& value_of_key)
      : source_(source), value_of_key_(value_of_key), way_{std::string(key)} {}

  Json filled(const Json& value) {
    if (value.is_string()) return text_filled(value.get_ref<const std::string&>());
    Json all = value;
    if (value.is_structured()) {
      for (Json& item : all) item = filled(item);
    }
    return all;
  }

 private:
  // A text is pieces of letters and variables; one that is a variable alone keeps the type of what it is.
  Json text_filled(std::string_view text) {
    std::string done;
    std::size_t at = 0;
    while (at < text.size()) {
      const std::size_t next = text.find("${", at);
      if (next == std::string_view::npos) break;
      std::size_t slashes = 0;
      while (slashes < next - at && text[next - 1 - slashes] == '\\') ++slashes;
      done += text.substr(at, next - at - slashes);
      done.append(slashes / 2, '\\');
      at = next + 2;
      if (slashes % 2 == 1) {
        done += "${";
        continue;
      }
      const std::size_t end = end_of_variable(text, at);
      const Json value = variable(text.substr(at, end - at));
      at = end + 1;
      if (done.empty() && next == 0 && at == text.size()) return value;
      done += value_text(value);
    }
    done += text.substr(std::min(at, text.size()));
    return done;
  }

  // The place of the } that ends the variable whose inside begins at `begin`.
  std::size_t end_of_variable(std::string_view text, std::size_t begin) {
    int open = 1;
    for (std::size_t at = begin; at < text.size(); ++at) {
      if (text[at] == '$' && at + 1 < text.size() && text[at + 1] == '{') ++open;
      if (text[at] == '}' && --open == 0) return at;
    }
    refuse(text.substr(begin), "it has no end");
  }

  // Returns the value of the variable whose text between ${ and } is `inside`.
  Json variable(std::string_view inside) {
    constexpr std::string_view kOfEnvironment = "oc.env:";
    const std::string_view name = without_spaces(inside);
    if (name.starts_with(kOfEnvironment)) return of_environment(inside, name.substr(kOfEnvironment.size()));
    if (find_key(name) == nullptr) refuse(inside, unknown(std::string(name)));
    return of_key(std::string(name));
  }

  Json of_environment(std::string_view inside, std::string_view rest) {
    const std::size_t comma = rest.find(',');
    const std::string name(without_spaces(rest.substr(0, comma)));
    if (name.empty() || name.find("${") != std::string::npos)
      refuse(inside, "expected the name of a variable");
    if (const char* const value = std::getenv(name.c_str()))
      return of_list_key() ? untyped_value(way_[0], value) : Json(value);
    if (comma == std::string_view::npos) refuse(inside, "the environment has no " + name);
    return in_environment(without_spaces(rest.substr(comma + 1)));
  }

  // Returns the fallback of a variable that is not set, with quotes or without.
  Json in_environment(std::string_view other) {
    const bool quoted =
        other.size() >= 2 && (other[0] == '\'' || other[0] == '"') && other.back() == other[0];
    if (!quoted) return other == "null" ? Json() : text_filled(other);
    return text_filled(other.substr(1, other.size() - 2));
  }

  bool of_list_key() const {
    const KeyDeclaration* const key = find_key(way_[0]);
    return key != nullptr && (key->type == KeyType::text_list || key->type == KeyType::integer_list ||
                              key->type == KeyType::number_list || key->type == KeyType::structure);
  }

  Json of_key(const std::string& name) {
    const bool leads_back = std::ranges::find(way_, name) != way_.end();
    way_.push_back(name);
    if (leads_back) {
      std::string circle;
      for (const std::string& key : way_) circle += (circle.empty() ? "" : ", then ") + key;
      fail_usage("[config] {}: its variables lead back to {}: {} ({})", way_[0], name, circle, source_);
    }
    const Json value = filled(value_of_key_(name));
    way_.pop_back();
    return value;
  }

  static std::string unknown(const std::string& name) {
    if (std::getenv(name.c_str()) != nullptr)
      return fmt::format("no key has that name; ${{oc.env:{}}} is the variable of the environment", name);
    const std::string nearest = nearest_key(name);
    return "expected ${oc.env:NAME}, ${oc.env:NAME,else} or ${key}" +
           (nearest.empty() ? "" : "; the nearest known key is " + nearest) + "; \\${ is ${ itself";
  }

  [[noreturn]] void refuse(std::string_view inside, const std::string& why) const {
    std::string shown(inside.substr(0, 80));
    std::ranges::replace_if(
        shown, [](unsigned char letter) { return letter < ' '; }, ' ');
    fail_usage("[config] {}: ${{{}}} cannot be filled in: {} ({})", way_[0], shown, why, source_);
  }

  const std::string_view source_;
  const KeyLookup& value_of_key_;
  std::vector<std::string> way_;  // from the key whose value is filled in to the one that is looked at
};

}  // namespace

nlohmann::json filled_in(std::string_view key, const nlohmann::json& value, std::string_view source,
                         const KeyLookup& value_of_key) {
  return Filling(key, source, value_of_key).filled(value);
}

}  // namespace switchyard
