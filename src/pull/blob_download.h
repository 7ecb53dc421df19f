// One file of a hub into one blob of the cache: written beside it first, gone on with after a
// break, checked in size and hash, then renamed. Several processes may fetch the same blob; a lock
// that the official client knows too lets one of them do it. Used by pull.h.
#pragma once

#include <functional>
#include <string>

#include "pull/repository.h"

namespace kinora {

struct BlobPlaces {
  std::string blob;        // CACHE/models--…/blobs/ETAG
  std::string incomplete;  // the same with .incomplete
  std::string lock;        // CACHE/.locks/models--…/ETAG.lock
};

class BlobDownload {
 public:
  // `name` and `revision` are for messages; `on_bytes` is told how many bytes of the file are
  // there.
  BlobDownload(const HubSettings& settings, HttpClient& client, std::string name,
               std::function<bool()> stopped, std::function<void(int64_t)> on_bytes);

  // Returns the bytes that came over the network. Throws when a server refuses, a connection
  // breaks again and again, the disk is full, or the content is not what the hub promised.
  int64_t run(const HubFile& file, const BlobPlaces& places);

 private:
  class Part;
  int64_t fetch(const HubFile& file, Part& part);

  const HubSettings& settings_;
  HttpClient& client_;
  const std::string name_;
  const std::function<bool()> stopped_;
  const std::function<void(int64_t)> on_bytes_;
};

}  // namespace kinora
