// Documents to ids.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/thread_pool.h"
#include "tokenizer/tokenizer.h"

namespace switchyard {

// Which of a tokenizer's ends stand around a document.
struct DocumentEnds {
  bool bos = true, eos = true;
};

// The ids of each text with its ends, by all threads of the pool. Throws what a tokenizer throws.
std::vector<std::vector<std::int32_t>> encode_documents(std::span<const std::string> texts,
                                                        const Tokenizer& tokenizer, DocumentEnds ends,
                                                        ThreadPool& pool);

}  // namespace switchyard
