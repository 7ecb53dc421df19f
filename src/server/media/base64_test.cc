#include "server/media/base64.h"

#include <gtest/gtest.h>

#include "server/test_media.h"
#include "support/random_data.h"

namespace kinora::server {
namespace {

TEST(Base64, ComesBackAsItWas) {
  KINORA_FRESH_RANDOM(random);
  for (const int size : {0, 1, 2, 3, 4, 63, 64, 65, 1000}) {
    std::string bytes;
    for (int i = 0; i < size; ++i) bytes += static_cast<char>(random.next());
    std::string text = encode_base64(bytes);
    EXPECT_EQ(decode_base64(text), bytes);
    text.insert(text.size() / 2, "\r\n ");
    EXPECT_EQ(decode_base64(text), bytes) << "white space";
    while (text.ends_with('=')) text.pop_back();
    EXPECT_EQ(decode_base64(text), bytes) << "padding left out";
  }
  EXPECT_EQ(decode_base64("-_-_"), decode_base64("+/+/"));
}

TEST(Base64, RefusesWhatIsNone) {
  for (const char* wrong : {"a", "abcde", "ab=c", "ab*c", "====", "abc==", "ab=", "\x80"}) {
    EXPECT_EQ(decode_base64(wrong), std::nullopt) << wrong;
  }
}

}  // namespace
}  // namespace kinora::server
