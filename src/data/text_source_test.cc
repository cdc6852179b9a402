// Files of all kinds as texts, and what is told of those that are none.
#include "data/text_source.h"

#include "data/test_support.h"
#include "data/text_files.h"

namespace switchyard {
namespace {

using Texts = std::vector<std::string>;

class Files : public TokenTest {
 protected:
  // The documents of a file; `told_` is what stderr got.
  Texts texts(const std::string& path, const TextSelection& selection = {}) {
    ::testing::internal::CaptureStderr();
    Texts documents;
    const std::string refusal = message_of([&] { documents = split_text({path}, selection).train; });
    told_ = ::testing::internal::GetCapturedStderr() + refusal;
    return documents;
  }
  void expect_told(const std::string& words) const {
    EXPECT_NE(told_.find(words), std::string::npos) << "\"" << words << "\" in: " << told_;
  }
  std::string told_;
};

TEST_F(Files, AnArrayOfDocuments) {
  for (const char* name : {"a.json", "a.jsonl"}) {
    const std::string path =
        write(name, "[\n {\"text\": \"one ]\\\"{\"},\n {\"id\": [1, {}], \"text\": \"two\"},\n \"three\"]\n");
    EXPECT_EQ(texts(path), (Texts{"one ]\"{", "two", "three"})) << name;
    EXPECT_EQ(told_, "");
  }
  EXPECT_EQ(texts(write("flat.json", R"([{"text":"a"},{"text":"b"}])")), (Texts{"a", "b"}));
  EXPECT_EQ(texts(write("apart.json", "{\n\"text\":\"a\"\n}\n{\n\"text\":\"b\"\n}\n")), (Texts{"a", "b"}));
  texts(write("cut.jsonl", "[{\"text\":\"a\"},\n{\"text\":"));
  expect_told("cut.jsonl:2");
  texts(write("open.jsonl", "[{\"text\":\"a\"},\n{\"text\":\"b\"}\n"));
  expect_told("open.jsonl:3: the file ends within the array");
  texts(write("long.jsonl", "[{\"text\":\"a\"}]\n{}"));
  expect_told("more text after the end of the array");
}

// A build goes on in the middle of an array.
TEST_F(Files, AnArrayIsReadFromAnyOfItsItems) {
  const std::string path = write("a.json", R"([{"text":"a"}, {"text":"b"},{"text":"c"} ])");
  std::vector<TextPosition> places;
  const auto read = [&](const TextPosition& from) {
    Texts found;
    for_documents({path}, {}, 100, from, [&](std::string&& text, bool, const TextPosition& next) {
      found.push_back(std::move(text));
      places.push_back(next);
    });
    return found;
  };
  EXPECT_EQ(read({}), (Texts{"a", "b", "c"}));
  EXPECT_EQ(read(TextPosition(places[0])), (Texts{"b", "c"}));
  EXPECT_EQ(read(TextPosition(places[1])), Texts{"c"});
}

TEST_F(Files, RecordsWithoutATextAreCounted) {
  const std::string path =
      write("a.jsonl",
            "{\"text\":\"one\"}\r\n{\"text\":null}\n\n{\"text\":7}\n{\"text\":[1]}\n{\"text\":{}}\n"
            "{\"text\":\"\"}\n{\"other\":\"x\"}\n{\"text\":null}\n{\"text\":\"two\"}\n");
  EXPECT_EQ(texts(path), (Texts{"one", "two"}));
  expect_told("skipped 7 records without a text under the key \"text\"");
  for (const char* kind : {"null: 2", "a number: 1", "an array: 1", "an object: 1", "an empty text: 1",
                           "none: 1", "the first is", "a.jsonl:2"})
    expect_told(kind);
  EXPECT_EQ(std::ranges::count(told_, '\n'), 1);
  EXPECT_EQ(texts(path, {.skip_records = false}), Texts());
  expect_told("a.jsonl:2: expected a text under the key \"text\", got null; set records_without_text=skip");
  texts(path, {.column = "body"});
  expect_told(
      "a.jsonl:1: expected a text under the key \"body\", got none; no record of the file has one: "
      "train_data_columns");
  EXPECT_EQ(texts(write("b.json", R"([null, {"text":"a"}])")), Texts{"a"});
  expect_told("null: 1");
}

TEST_F(Files, JsonThatHoldsNoTextsIsOneText) {
  EXPECT_EQ(texts(write("package.json", "{\n \"name\": \"x\"\n}\n")), Texts{"{\n \"name\": \"x\"\n}\n"});
  expect_told("package.json: read as one text as it stands");
  EXPECT_EQ(texts(write("table.csv", "body\nx\n"), {.column = "body"}), Texts{"body\nx\n"});
  expect_told("train_data_columns=body counts for");
}

TEST_F(Files, ByteOrderMarksAndUtf16) {
  using namespace std::string_literals;
  EXPECT_EQ(texts(write("mark.txt", "\xef\xbb\xbfone")), Texts{"one"});
  EXPECT_EQ(texts(write("mark.jsonl", "\xef\xbb\xbf{\"text\":\"one\"}\n")), Texts{"one"});
  EXPECT_EQ(texts(write("little.txt",
                        "\xff\xfe"
                        "a\0\xe9\0\x3d\xd8\x00\xde\n\0"s)),
            Texts{"a\xc3\xa9\xf0\x9f\x98\x80\n"});
  EXPECT_EQ(texts(write("big.txt", "\xfe\xff\0a\xd8\x00\0b"s)), Texts{"a\xef\xbf\xbd"
                                                                      "b"});
  std::string wide = "\xff\xfe";
  for (const char c : std::string("{\"text\":\"one\"}\n")) wide += {c, '\0'};
  EXPECT_EQ(texts(write("wide.jsonl", wide)), Texts{"one"});
  EXPECT_EQ(told_, "");
  EXPECT_EQ(texts(write("latin.txt", "caf\xe9\n")), Texts{"caf\xe9\n"});
  expect_told("latin.txt: holds bytes that are not UTF-8");
}

TEST_F(Files, WhatIsNoTextIsNamed) {
  using namespace std::string_literals;
  const std::pair<std::string, std::string> kinds[] = {{"\x1f\x8b\x08 packed", "gzip"},
                                                       {"\x28\xb5\x2f\xfd packed", "zstd"},
                                                       {"\xfd"
                                                        "7zXZ\0"s,
                                                        "xz"},
                                                       {"BZh91AY&SY", "bzip2"},
                                                       {"PAR1\0\0"s, "Parquet"},
                                                       {"\x93NUMPY", "NumPy"},
                                                       {"\x89PNG\r\n", "an image"},
                                                       {"\xff\xd8\xff\xe0", "an image"},
                                                       {"ab\0"s, "NUL bytes"},
                                                       {"GGUF\3\0\0\0"s, "GGUF"},
                                                       {"\xff\xfe\0\0a\0\0\0"s, "UTF-32"},
                                                       {"PK\x03\x04", "zip"}};
  for (const auto& [content, word] : kinds) {
    const std::string path = write("texts/file.jsonl", content);
    texts(path);
    expect_told("file.jsonl: it ");
    expect_told(word);
    const std::string refusal = message_of([&] { find_text_files(path); });
    EXPECT_NE(refusal.find(word), std::string::npos) << refusal;
  }
  EXPECT_EQ(texts(write("words.txt", "GGUF is a format, PAR1 begins another")).size(), 1u);
  texts(write("empty.txt", ""));
  expect_told("no text in " + path_ + "/empty.txt: it is empty");
}

TEST_F(Files, FoldersWithoutTexts) {
  write("tokens/dataset.json", "{}");
  write("tokens/train-00001.tokens", "x");
  EXPECT_NE(message_of([&] { find_text_files(path_ + "/tokens"); }).find("set dataset_type=tokenized"),
            std::string::npos);
  const std::string text = write("a.txt", "a");
  std::filesystem::create_directories(path_ + "/none");
  EXPECT_NE(message_of([&] {
              find_text_files(text + ":" + path_ + "/none");
            }).find("none: expected files with text"),
            std::string::npos);
}

}  // namespace
}  // namespace switchyard
