// Fetches media from http(s) addresses by libcurl. Whatever a name resolves to, and wherever a
// redirect leads, the address itself is checked at the moment a socket is opened for it: machines
// of this network are not reached unless they were named.
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "server/media/media.h"

namespace kinora::server {

struct FetchOptions {
  std::vector<std::string> allowed;  // "10.0.0.5:9000": private addresses that may be reached
  std::vector<std::string> resolve;  // "HOST:PORT:ADDRESS,…": known without asking DNS
  int64_t max_bytes = int64_t{8} << 30;
  double connect_seconds = 10;
  double stalled_seconds = 20;  // without a kilobyte a second
  double total_seconds = 600;
};

// Null where kinora was built without libcurl.
std::shared_ptr<MediaFetcher> make_fetcher(const FetchOptions& options);

// Neither loopback, private, link-local, shared, multicast nor reserved, also where it is an IPv4
// address inside an IPv6 one.
bool is_public_address(const sockaddr& address);

}  // namespace kinora::server
