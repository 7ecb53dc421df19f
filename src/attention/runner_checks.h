// What every way into attention checks first (runner.cc). Private to attention/.
#pragma once

#include "attention/runner.h"

namespace kinora {

// Throws an internal error that names the first fault of devices, types and shapes, and an
// unsupported error where the device cannot do what the options ask for.
void check_attention(const Context& context, const QueryView& queries, const RowSet& rows,
                     const TensorView& out, const RunOptions& options);

}  // namespace kinora
