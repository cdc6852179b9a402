// call_grammar: a grammar's parts for the calls of a model's format.
#pragma once

#include <vector>

#include "chat/call_form.h"
#include "grammar/grammar.h"

namespace switchyard::serve {

// Returns the parts of an answer's calls, of which there is one or more, but one where `one_call`.
// `behind_marker`: the form's marker has been written already.
std::vector<grammar::Part> call_parts(const chat::CallForm& form, bool one_call, bool behind_marker);

}  // namespace switchyard::serve
