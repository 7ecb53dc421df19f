// Another project's program: it compiles against the installed headers and links the library.
#include <kinora/error.h>
#include <kinora/session.h>
#include <kinora/version.h>

#include <cstdio>

int main() {
  std::printf("kinora %s\n", kinora::version());
  try {
    const kinora::Engine engine({.model = "/nowhere"});
    kinora::Session session(engine);
    session.add("talk.mp4", {.frames = kinora::FrameChoice::rate(1)});
  } catch (const kinora::Error& error) {
    std::printf("%s\n", error.what());
    return error.kind() == kinora::ErrorKind::not_found ? 0 : 1;
  }
  return 1;
}
