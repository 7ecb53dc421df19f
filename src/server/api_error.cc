#include "server/api_error.h"

#include <new>

namespace kinora::server {

ApiError bad_request(const std::string& param, const std::string& message) {
  return ApiError(400, "invalid_value", param.empty() ? message : param + ": " + message, param);
}

ApiError api_error(const Error& error) {
  switch (error.kind()) {
    case ErrorKind::usage:
      return ApiError(400, "invalid_request", error.what());
    case ErrorKind::not_found:
      return ApiError(404, "media_not_found", error.what());
    case ErrorKind::bad_input:
      return ApiError(400, "invalid_media", error.what());
    case ErrorKind::unsupported:
      return ApiError(400, "unsupported", error.what());
    case ErrorKind::resource:
      return ApiError(400, "context_length_exceeded", error.what());
    case ErrorKind::network:
      return ApiError(400, "media_unreachable", error.what());
    case ErrorKind::cancelled: {
      ApiError cancelled(503, "cancelled", "the work was cancelled; ask again");
      cancelled.retry_after = 1;
      return cancelled;
    }
    case ErrorKind::internal:
      break;
  }
  return ApiError(500, "internal_error", error.what());
}

ApiError current_error() {
  try {
    throw;
  } catch (const ApiError& error) {
    return error;
  } catch (const Error& error) {
    return api_error(error);
  } catch (const std::bad_alloc&) {
    ApiError error(503, "out_of_memory", "the server is out of memory; ask again later");
    error.retry_after = 10;
    return error;
  } catch (const std::exception& error) {
    return ApiError(500, "internal_error", error.what());
  }
}

nlohmann::json error_json(const ApiError& error) {
  const char* type = error.status == 401   ? "authentication_error"
                     : error.status == 403 ? "permission_error"
                     : error.status == 429 ? "rate_limit_error"
                     : error.status >= 500 ? "server_error"
                                           : "invalid_request_error";
  return {{"error",
           {{"message", error.what()},
            {"type", type},
            {"param", error.param.empty() ? nlohmann::json() : nlohmann::json(error.param)},
            {"code", error.code}}}};
}

Headers error_headers(const ApiError& error) {
  Headers headers{{"Content-Type", "application/json"}};
  if (error.retry_after) headers.emplace_back("Retry-After", std::to_string(*error.retry_after));
  if (error.status == 401) headers.emplace_back("WWW-Authenticate", "Bearer");
  return headers;
}

std::string dump(const nlohmann::json& value) {
  return value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace kinora::server
