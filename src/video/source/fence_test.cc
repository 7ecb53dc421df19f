#include "video/source/fence.h"

#include <gtest/gtest.h>

namespace kinora {
namespace {

TEST(Fence, KnowsTheHostOfAnAddress) {
  EXPECT_EQ(host_of("http://Example.org/a/b?c"), "example.org");
  EXPECT_EQ(host_of("https://example.org:8443"), "example.org");
  EXPECT_EQ(host_of("http://user:secret@example.org:80/x@y"), "example.org");
  EXPECT_EQ(host_of("http://[::1]:80/x"), "[::1]");
  EXPECT_EQ(host_of("http://good.org\\@evil.org/"), "good.org");
  EXPECT_EQ(host_of("http://good.org#@evil.org/"), "good.org");
  EXPECT_EQ(host_of("/etc/passwd"), "");
  EXPECT_EQ(host_of("file:///etc/passwd"), "");
}

TEST(Fence, RemoteSourcesStayOnTheirHost) {
  const Fence fence("https://videos.org/list.m3u8", false);
  for (const char* url : {"https://videos.org/list.m3u8", "https://videos.org/part1.ts",
                          "http://videos.org:8080/part1.ts", "https://VIDEOS.ORG/x",
                          "crypto+https://videos.org/part1.ts",
                          "crypto:https://videos.org/part1.ts", "data:text/plain;base64,AAAA"}) {
    EXPECT_TRUE(fence.permits(url)) << url;
  }
  for (const char* url : {"https://other.org/part1.ts",
                          "https://videos.org.other.org/x",
                          "http://127.0.0.1/x",
                          "file:///etc/passwd",
                          "/etc/passwd",
                          "etc/passwd",
                          "file:etc/passwd",
                          "",
                          "crypto+file:///etc/passwd",
                          "crypto:/etc/passwd",
                          "concat:/etc/passwd|/etc/group",
                          "subfile,,start,0,end,9,,:/etc/passwd",
                          "async:file:/etc/passwd",
                          "cache:/etc/passwd",
                          "pipe:0",
                          "fd:0",
                          "udp://videos.org:9",
                          "tcp://videos.org:9",
                          "rtp://videos.org:9",
                          "http:videos.org/x",
                          "https://user@other.org/@videos.org"}) {
    EXPECT_FALSE(fence.permits(url)) << url;
  }
}

TEST(Fence, OtherHostsCanBeAllowedAndLocalFilesCannot) {
  const Fence fence("http://videos.org/list.m3u8", true);
  EXPECT_TRUE(fence.permits("https://other.org/part1.ts"));
  EXPECT_FALSE(fence.permits("file:///etc/passwd"));
  EXPECT_FALSE(fence.permits("/etc/passwd"));
  EXPECT_FALSE(fence.permits("http:///etc/passwd"));
}

TEST(Fence, LocalSourcesLeadNowhere) {
  const Fence fence("", true);
  for (const char* url : {"", "clip.mp4", "file:clip.mp4", "http://videos.org/x", "data:,x"}) {
    EXPECT_FALSE(fence.permits(url)) << url;
  }
}

}  // namespace
}  // namespace kinora
