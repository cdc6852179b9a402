// The library says these lines while it works: lines for people that belong to no result.
#pragma once

#include <functional>
#include <string>

namespace switchyard {

using MessageHandler = std::function<void(const std::string& line)>;

// Sets who gets each line, in place of standard error; {}: standard error again. The handler is called from
// any thread, one at a time: it must be short, throw nothing, and call nothing of the library.
void set_message_handler(MessageHandler handler);

}  // namespace switchyard
