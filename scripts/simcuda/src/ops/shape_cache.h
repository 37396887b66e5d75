// Remembers what meta kernels said: many are written in Python and take longer
// than all else that a simulated operator does.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "shapes.h"

namespace simcuda {

// Everything that the shapes of an operator's results can depend on; nothing
// when an argument is of a kind that this cannot tell.
std::optional<std::string> describe_call(const c10::OperatorHandle& op,
                                         c10::ArrayRef<c10::IValue> arguments);

// nullptr when it is not known.
std::shared_ptr<const Shapes> recall_shapes(const std::string& call);
void remember_shapes(const std::string& call, const Shapes& shapes);

}  // namespace simcuda
