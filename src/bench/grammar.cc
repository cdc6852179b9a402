// Measures what answers bound to a schema cost: the time from a schema to its first mask, and the masks along
// texts that keep the schema.
#include "grammar/grammar.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <numeric>
#include <random>
#include <unordered_set>

#include "bench/cases.h"
#include "core/error.h"

namespace switchyard::bench {
namespace {

using grammar::Grammar;
using grammar::Json;
using grammar::Matcher;
using grammar::Vocabulary;

// Each has a name, a schema and texts that keep it, as in tests/golden/chat/schemas.json.
Json own_cases() {
  const Json text = {{"type", "string"}};
  const Json weather = {{"type", "object"},
                        {"properties", {{"city", text}, {"unit", {{"enum", {"celsius", "fahrenheit"}}}}}},
                        {"required", {"city", "unit"}},
                        {"additionalProperties", false}};
  const Json item = {{"type", "object"},
                     {"properties",
                      {{"id", {{"type", "string"}, {"pattern", "^[A-Z]{2}-[0-9]{4}$"}}},
                       {"count", {{"type", "integer"}, {"minimum", 1}, {"maximum", 500}}},
                       {"note", {{"type", "string"}, {"maxLength", 80}}}}},
                     {"required", {"id", "count"}},
                     {"additionalProperties", false}};
  const Json order = {{"type", "object"},
                      {"properties",
                       {{"items", {{"type", "array"}, {"items", item}, {"minItems", 1}}},
                        {"date", {{"type", "string"}, {"format", "date"}}}}},
                      {"required", {"items", "date"}}};
  return {
      {{"name", "weather"},
       {"schema", weather},
       {"accepted", {R"({"city":"Garmisch-Partenkirchen","unit":"celsius"})"}}},
      {{"name", "order"},
       {"schema", order},
       {"accepted",
        {R"({"items":[{"id":"AB-1234","count":12,"note":"two boxes, \"left\""},{"id":"ZZ-0001","count":500}],)"
         R"("date":"2026-11-27"})"}}},
      {{"name", "any object"},
       {"schema", {{"type", "object"}}},
       {"accepted", {R"({"a":[1,2.5e3,null,true],"b":{"c":"text with \u00e9 and spaces"},"d":[]})"}}}};
}

std::string random_word(std::mt19937& random) {
  static const std::vector<std::string> syllables = {
      "ing",  "er", "on", "th", "re",   "an",  "a",  "o", "e",  "st", "in", "de", "con",
      "tion", "al", "s",  "ly", "ment", "pre", "ed", "i", "un", "ab", "ko", "ra", "mi"};
  std::string word;
  for (std::size_t parts = 1 + random() % 4; parts > 0; --parts)
    word += syllables[random() % syllables.size()];
  return word;
}

std::string repeated_pick(std::mt19937& random, std::string_view letters, std::size_t most) {
  std::string text;
  for (std::size_t length = 1 + random() % most; length > 0; --length)
    text += letters[random() % letters.size()];
  return text;
}

// Words, numbers, JSON's marks, blanks and characters of other scripts, about as vocabularies have them.
std::string random_token(std::mt19937& random) {
  constexpr std::string_view marks = "{}[]\",:'()<>=-_+*/\\.;!?#$%&@ \n\t";
  switch (random() % 10) {
    case 0:
      return repeated_pick(random, "0123456789", 3);
    case 1:
      return repeated_pick(random, marks, 4);
    case 2: {
      const auto high = static_cast<char>(0xE4 + random() % 5);
      return high + repeated_pick(random, "\x80\x81\x93\xA5", 1) +
             repeated_pick(random, "\x84\x9A\xB7\xBF", 1);
    }
    case 3:
      return repeated_pick(random, marks, 1) + random_word(random);
    case 4:
      return std::string(1 + random() % 40, ' ');
  }
  std::string word = random_word(random);
  if (random() % 3 == 0) word[0] = static_cast<char>(word[0] - 'a' + 'A');
  return random() % 2 == 0 ? " " + word : word;
}

// All bytes, then random tokens, then the end.
Vocabulary made_vocabulary(std::int64_t count) {
  std::mt19937 random(1);
  std::vector<std::optional<std::string>> tokens;
  std::unordered_set<std::string> seen;
  const auto add = [&](std::string token) {
    if (seen.insert(token).second) tokens.emplace_back(std::move(token));
  };
  for (int byte = 0; byte < 256; ++byte) add(std::string(1, static_cast<char>(byte)));
  const auto texts = static_cast<std::size_t>(count - 1);
  for (std::size_t tries = 50 * texts; tries > 0 && tokens.size() < texts; --tries) add(random_token(random));
  tokens.resize(texts + 1);
  return Vocabulary(tokens, std::vector{static_cast<std::int32_t>(texts)});
}

// The masks before each byte of the texts, in seconds.
std::vector<double> mask_seconds(const std::shared_ptr<const Grammar>& grammar, const Json& texts,
                                 std::vector<std::uint32_t>& bits) {
  std::vector<double> seconds;
  for (const Json& text : texts) {
    Matcher matcher(grammar);
    for (const char byte : text.get_ref<const std::string&>()) {
      const double begin = now();
      matcher.mask(bits);
      seconds.push_back(now() - begin);
      if (!matcher.accept(static_cast<unsigned char>(byte)))
        fail_usage("bench grammar: a schema does not accept its text {}", text.dump());
    }
  }
  return seconds;
}

std::vector<Measurement> measure_grammar(const Json& one, std::int64_t vocab, const Vocabulary& vocabulary) {
  std::vector<std::uint32_t> bits(static_cast<std::size_t>((vocab + 31) / 32));
  const double begin = now();
  std::shared_ptr<const Grammar> grammar;
  try {
    grammar = Grammar::of_json_schema(vocabulary, one.at("schema"));
  } catch (const grammar::GrammarError& error) {
    fmt::print(stderr, "switchyard: [bench] grammar {}: not measured, as the schema is refused: {}\n",
               one.at("name").get<std::string>(), error.what());
    return {};
  }
  Matcher(grammar).mask(bits);
  const double first = now() - begin;
  std::vector<double> seconds = mask_seconds(grammar, one.at("accepted"), bits);
  if (seconds.empty()) return {};
  std::sort(seconds.begin(), seconds.end());
  Measurement m;
  m.name = "grammar";
  m.shape = {{"schema", one.at("name")}, {"vocab", vocab}};
  m.dtype = DType::i32;
  m.bytes = static_cast<double>(bits.size() * sizeof bits[0]);
  m.time = timing_of(seconds);
  m.more["first_mask_ms"] = first * 1e3;
  m.more["masks"] = seconds.size();
  m.more["mask_us_mean"] =
      std::accumulate(seconds.begin(), seconds.end(), 0.0) / static_cast<double>(seconds.size()) * 1e6;
  m.more["mask_us_p99"] = seconds[(seconds.size() - 1) * 99 / 100] * 1e6;
  m.more["mask_us_worst"] = seconds.back() * 1e6;
  return {m};
}

Json cases_of(const std::string& path) {
  if (path.empty()) return own_cases();
  std::ifstream in(path);
  if (!in) fail_usage("bench grammar: schemas: cannot read {}", path);
  try {
    Json cases = Json::parse(in).at("cases");
    for (const Json& one : cases) {
      one.at("name").get<std::string>();
      one.at("schema");
      one.at("accepted").get<std::vector<std::string>>();
    }
    return cases;
  } catch (const std::exception& error) {
    fail_usage("bench grammar: schemas: {}: {}", path, error.what());
  }
}

}  // namespace

std::vector<Key> grammar_keys() {
  return {{"schemas", "",
           "a JSON file with \"cases\": each a name, a schema, accepted texts; without: three of its own"},
          {"vocab", "151936", "vocabulary: bytes, then random words, numbers, marks"}};
}

std::vector<Job> grammar_jobs(const Keys& keys) {
  if (!grammar::is_built_in())
    fail_usage(
        "bench grammar: this build has no grammars (scripts/install_dependencies.sh fetches xgrammar)");
  const std::int64_t vocab = keys.integer("vocab", 257);
  const auto vocabulary = std::make_shared<std::optional<Vocabulary>>();  // made by the first job
  std::vector<Job> jobs;
  for (const Json& one : cases_of(keys.text("schemas"))) {
    jobs.push_back({fmt::format("grammar {}", one.at("name").get<std::string>()),
                    400.0 * static_cast<double>(vocab), [one, vocab, vocabulary](Bench&) {
                      if (!*vocabulary) vocabulary->emplace(made_vocabulary(vocab));
                      return measure_grammar(one, vocab, **vocabulary);
                    }});
  }
  return jobs;
}

}  // namespace switchyard::bench
