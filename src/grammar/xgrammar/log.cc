// xgrammar's messages: errors are thrown; warnings, which name tokens that a mask forbids, are not printed.
#include <stdexcept>
#include <string>

namespace xgrammar {

[[noreturn]] void LogFatalImpl(const std::string&, int, const std::string& message);
void LogMessageImpl(const std::string&, int, int, const std::string&);

void LogFatalImpl(const std::string&, int, const std::string& message) {
  throw std::runtime_error(message);
}

void LogMessageImpl(const std::string&, int, int, const std::string&) {}

}  // namespace xgrammar
