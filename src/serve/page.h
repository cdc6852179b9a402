// The chat page, src/serve/page/page.html, which the build embeds in the program (cmake/page.cc.in).
//
// The page loads nothing but what its own origin answers. Its policy allows exactly the one script that is in
// it, by that script's hash, so that text of a model which would reach the page as HTML still could not run.
#pragma once

#include <string>
#include <string_view>

namespace switchyard::serve {

std::string_view page_html();

// The value of the header Content-Security-Policy to send with page_html().
std::string page_content_security_policy();

}  // namespace switchyard::serve
