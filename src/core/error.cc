#include "core/error.h"

namespace switchyard {

void throw_error(Error::Kind kind, fmt::string_view format, fmt::format_args args) {
  throw Error(kind, fmt::vformat(format, args));
}

void check_failed(const char* file, int line, const char* condition, const std::string& detail) {
  throw Error(Error::Kind::internal, fmt::format("{}:{}: CHECK failed: {}{}{}", file, line, condition,
                                                 detail.empty() ? "" : " ", detail));
}

}  // namespace switchyard
