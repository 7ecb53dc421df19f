// Failures as OpenAI's API words them: a status, and {"error": {message, type, param, code}}.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>

#include "base/error.h"
#include "server/http/http.h"

namespace kinora::server {

struct ApiError : std::runtime_error {
  ApiError(int status_given, std::string code_given, const std::string& message,
           std::string param_given = "")
      : std::runtime_error(message),
        status(status_given),
        code(std::move(code_given)),
        param(std::move(param_given)) {}

  int status;
  std::string code;                     // "unknown_field", "queue_full" …; one word per cause
  std::string param;                    // the field that is to blame; may be empty
  std::optional<int> retry_after = {};  // seconds
};

// A request that is wrong in this field.
ApiError bad_request(const std::string& param, const std::string& message);
// What an error from below comes to.
ApiError api_error(const Error& error);
// The exception being handled, whatever it is.
ApiError current_error();

nlohmann::json error_json(const ApiError& error);
Headers error_headers(const ApiError& error);
// Of a JSON value that may hold any bytes.
std::string dump(const nlohmann::json& value);

}  // namespace kinora::server
