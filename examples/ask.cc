// The API in one page: open a video, ask, stream the answer, ask again, stop an answer, close.
//
//   ask MODEL VIDEO
#include <kinora/session.h>

#include <cstdio>
#include <exception>
#include <iostream>
#include <thread>

namespace {

void show(std::string_view piece) { std::cout << piece << std::flush; }

int run(const std::string& model, const std::string& video) {
  // Weights are read once; any number of sessions, on any threads, share them.
  const kinora::Engine engine({.model = model});

  kinora::SessionOptions options;
  options.retain = "all";  // or "key-norm:0.5": half of the video's rows stay in memory
  kinora::Session session(engine, options);

  // Opens and samples the video. Nothing is decoded yet, so the cost is known first.
  const kinora::InputInfo input = session.add(video, {.frames = kinora::FrameChoice::rate(1)});
  const kinora::Forecast cost = session.forecast("What happens?");
  std::cout << input.times.size() << " frames, " << cost.tokens << " tokens, " << cost.row_bytes
            << " bytes of keys and values\n";

  // Pieces come as they are made; the whole answer is returned too.
  kinora::AnswerOptions answering;
  answering.temperature = 0;
  answering.max_tokens = 32;
  const kinora::Answer first = session.ask("What happens?", answering, show);
  std::cout << "\n[" << first.frames << " frames read]\n";
  for (const std::string& warning : first.warnings) std::cout << "note: " << warning << "\n";

  // The video is in memory: a second question reads only its own words.
  const kinora::Answer second = session.ask("And then?", answering, show);
  std::cout << "\n[" << second.frames << " frames read]\n";

  // Any thread may stop an answer. The session is then as it was before the question.
  kinora::AnswerOptions long_answer = answering;
  long_answer.max_tokens = 1'000'000;
  long_answer.ignore_stop_tokens = true;
  long_answer.cancel = kinora::CancelToken();  // copies of a token share their flag
  {
    const std::jthread other([cancel = long_answer.cancel] { cancel.cancel(); });
    try {
      session.ask("Tell me everything.", long_answer);
    } catch (const kinora::Error& error) {
      if (error.kind() != kinora::ErrorKind::cancelled) throw;
      std::cout << "[stopped]\n";
    }
  }

  // Two sessions at once, each with a conversation of its own.
  std::jthread neighbour([&] {
    kinora::Session another(engine);
    another.ask("Who are you?", answering);
  });
  session.clear();  // forgets the conversation, keeps the video
  const kinora::Answer again = session.ask("What happens?", answering);
  neighbour.join();
  std::cout << (again.text == first.text ? "[the same answer again]\n" : "[another answer]\n");
  return again.text == first.text ? 0 : 1;
}  // closing is leaving the scope

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: ask MODEL VIDEO\n");
    return 2;
  }
  try {
    return run(argv[1], argv[2]);
  } catch (const kinora::Error& error) {
    std::fprintf(stderr, "ask: %s\n", error.what());
    return kinora::exit_code(error.kind());
  }
}
