#include "data/encode.h"

#include <exception>
#include <mutex>

namespace switchyard {
namespace {

std::vector<std::int32_t> encode_document(const std::string& text, const Tokenizer& tokenizer,
                                          DocumentEnds ends) {
  std::vector<std::int32_t> ids = tokenizer.encode(text);
  if (const auto bos = tokenizer.bos(); bos && ends.bos) ids.insert(ids.begin(), *bos);
  if (const auto eos = tokenizer.eos(); eos && ends.eos) ids.push_back(*eos);
  return ids;
}

}  // namespace

std::vector<std::vector<std::int32_t>> encode_documents(std::span<const std::string> texts,
                                                        const Tokenizer& tokenizer, DocumentEnds ends,
                                                        ThreadPool& pool) {
  std::vector<std::vector<std::int32_t>> ids(texts.size());
  std::mutex mutex;
  std::exception_ptr failure;
  pool.for_range(static_cast<std::int64_t>(texts.size()), 1, [&](std::int64_t begin, std::int64_t end) {
    try {
      for (auto i = static_cast<std::size_t>(begin); i < static_cast<std::size_t>(end); ++i)
        ids[i] = encode_document(texts[i], tokenizer, ends);
    } catch (...) {
      const std::lock_guard lock(mutex);
      failure = std::current_exception();
    }
  });
  if (failure) std::rethrow_exception(failure);
  return ids;
}

}  // namespace switchyard
