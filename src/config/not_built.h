// What of the reference's models is not built here, in words for an error.
#pragma once

#include <string>
#include <string_view>

namespace switchyard {

// What a decoder_block of the reference has that no block here has; empty of any other word.
std::string_view missing_in_block(std::string_view block);

// Why a model of the reference cannot be had, as the end of an error after its name; empty of any other name.
std::string reason_not_built(std::string_view model);

// Why weights in fp8 are not trained, and what to do instead.
extern const std::string_view kNoFp8Training;

}  // namespace switchyard
