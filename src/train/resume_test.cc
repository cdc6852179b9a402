// What a run is told when it goes on with other data.
#include "train/resume.h"

#include <gtest/gtest.h>

#include "data/packing.h"
#include "data/token_folder.h"

namespace switchyard {
namespace {

class Described : public Dataset {
 public:
  Described(std::string text, std::uint64_t hash) : text_(std::move(text)), hash_(hash) {}
  Batch read(std::int64_t, std::int64_t rows) override { return empty_batch(rows, 1); }
  std::int64_t rows() const override { return 1; }
  std::string description() const override { return text_; }
  std::uint64_t fingerprint() const override { return hash_; }

 private:
  std::string text_;
  std::uint64_t hash_;
};

std::string note_of(const nlohmann::json& stored, const std::string& text, std::uint64_t hash,
                    bool own = true) {
  std::vector<std::string> notes;
  ResumePoint point{.candidates = {{3, "RUN/checkpoints/3"}}, .own = own, .data = stored};
  Described data(text, hash);
  note_other_contents(point, data, &notes);
  return notes.empty() ? "" : notes[0];
}

TEST(Resume, OtherContentsAreTold) {
  const nlohmann::json stored{{"description", "60 documents"}, {"contents", hash_text(1)}};
  EXPECT_EQ(note_of(stored, "60 documents", 1), "");
  EXPECT_EQ(note_of(stored, "60 documents in other rows", 1), "");  // of keys, which are told by themselves
  const std::string more = note_of(stored, "300 documents", 2), alike = note_of(stored, "60 documents", 2);
  for (const char* word :
       {"warning: RUN/checkpoints/3", "60 documents; this run has 300 documents", "come again"})
    EXPECT_NE(more.find(word), std::string::npos) << more;
  EXPECT_NE(alike.find("as many (60 documents)"), std::string::npos) << alike;
  EXPECT_EQ(note_of(stored, "300 documents", 2, false), "");
}

TEST(Resume, OlderCheckpointsHaveADescriptionOnly) {
  const nlohmann::json stored{{"description", "60 documents"}};
  EXPECT_EQ(note_of(stored, "60 documents", 2), "");
  EXPECT_NE(note_of(stored, "61 documents", 2), "");
  EXPECT_EQ(note_of(nlohmann::json::object(), "61 documents", 2), "");
}

}  // namespace
}  // namespace switchyard
