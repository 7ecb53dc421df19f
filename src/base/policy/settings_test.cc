#include "base/policy/settings.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "base/policy/names.h"
#include "support/random_data.h"

namespace kinora {
namespace {

enum class Rank { mean, mass };

struct Inner {
  int64_t tile = 128;
};

struct Options {
  int32_t k = 64;
  int64_t stride = 0;  // 0: auto
  double share = 0.25;
  bool trim = true;
  Rank rank = Rank::mean;
  std::string table = "own";
  Inner inner;
};

Settings<Options> all_types() {
  Settings<Options> settings;
  settings.count("k", &Options::k, {1, 1024}, "blocks")
      .count_or("stride", &Options::stride, {1}, {"auto", 0}, "queries")
      .share("share", &Options::share, "of the rows")
      .flag("trim", &Options::trim, "whether")
      .choice("rank", &Options::rank,
              std::vector<std::pair<std::string, Rank>>{{"mean", Rank::mean}, {"mass", Rank::mass}},
              "by what")
      .text("table", &Options::table, "a name", "which")
      .include(Settings<Inner>().count("tile", &Inner::tile, {1}, "queries of a tile"),
               &Options::inner);
  return settings;
}

Options read(const std::string& text) { return all_types().read(split_settings(text, ',')); }

// What is thrown, and "" where nothing is.
template <typename Work>
std::string problem(const Work& work) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::usage) << error.what();
    const std::string what = error.what();
    EXPECT_EQ(what.find('\n'), std::string::npos);
    EXPECT_LT(what.size(), 500u);
    return what;
  }
  return "";
}
std::string problem_with(const std::string& text) {
  return problem([&] { read(text); });
}

TEST(Settings, EveryTypeIsReadIntoItsField) {
  const Options options = read("k=1024,stride=7,share=1,trim=0,rank=mass,table=a:b,tile=3");
  EXPECT_EQ(options.k, 1024);
  EXPECT_EQ(options.stride, 7);
  EXPECT_EQ(options.share, 1);
  EXPECT_FALSE(options.trim);
  EXPECT_EQ(options.rank, Rank::mass);
  EXPECT_EQ(options.table, "a:b");
  EXPECT_EQ(options.inner.tile, 3);
  EXPECT_EQ(read("stride=auto").stride, 0);
  EXPECT_EQ(read("stride=auto").k, 64);  // what was not given keeps its default
}

TEST(Settings, OverWhatWasGivenBefore) {
  Options before;
  before.k = 5;
  before.inner.tile = 6;
  const Options after = all_types().read(split_settings("tile=7", ','), before);
  EXPECT_EQ(after.k, 5);
  EXPECT_EQ(after.inner.tile, 7);
}

TEST(Settings, DefaultsAreShownAsTheyAreTyped) {
  const Settings<Options> settings = all_types();
  std::string text;
  for (const SettingInfo& setting : settings.info()) {
    text += (text.empty() ? "" : ",") + setting.key + "=" + setting.initial;
  }
  EXPECT_EQ(text, "k=64,stride=auto,share=0.25,trim=1,rank=mean,table=own,tile=128");
  const Options options = read(text);
  EXPECT_EQ(options.stride, 0);
  EXPECT_EQ(options.share, 0.25);
  EXPECT_EQ(options.inner.tile, 128);
  EXPECT_EQ(settings.info()[0].accepts, "1 to 1024");
  EXPECT_EQ(settings.info()[1].accepts, "1 or more, or auto");
  EXPECT_EQ(settings.info()[4].accepts, "mean or mass");
}

TEST(Settings, BadValuesAreRefusedWithWhatIsAccepted) {
  for (const char* value : {"0", "1025", "-1", "-0", "+1", " 1", "1 ", "1.0", "0x10", "k", "1e3",
                            "", "99999999999999999999", "１"}) {
    EXPECT_NE(problem_with("k=" + std::string(value)).find("must be 1 to 1024"), std::string::npos)
        << value;
  }
  for (const char* value : {"0", "-1", "1073741825", "Auto", "auto ", ""}) {
    EXPECT_NE(problem_with("stride=" + std::string(value)).find("1 or more, or auto"),
              std::string::npos)
        << value;
  }
  for (const char* value : {"0", "1.5", "-0.5", "half", "nan", "inf", "1e-1", "0.5x", ".", ""}) {
    EXPECT_NE(problem_with("share=" + std::string(value)).find("above 0 and at most 1"),
              std::string::npos)
        << value;
  }
  for (const char* value : {"2", "yes", "true", "00", ""}) {
    EXPECT_NE(problem_with("trim=" + std::string(value)).find("0 or 1"), std::string::npos)
        << value;
  }
  for (const char* value : {"best", "Mean", ""}) {
    EXPECT_NE(problem_with("rank=" + std::string(value)).find("mean or mass"), std::string::npos)
        << value;
  }
  EXPECT_NE(problem_with("table="), "");
  EXPECT_EQ(problem_with("k=0"), "k is '0', but must be 1 to 1024");
}

TEST(Settings, UnknownKeysAreRefusedWithTheNearest) {
  EXPECT_EQ(problem_with("shar=1"),
            "no setting is called 'shar'; did you mean share? There are k, stride, share, trim, "
            "rank, table and tile");
  EXPECT_NE(problem_with("tri=1").find("did you mean trim?"), std::string::npos);
  EXPECT_NE(problem_with("RANK=mass").find("did you mean rank?"), std::string::npos);
  EXPECT_NE(problem_with("st=1").find("did you mean stride?"), std::string::npos);
  EXPECT_EQ(problem_with("x=1").find("did you mean"), std::string::npos);
  EXPECT_EQ(problem_with("colour=1").find("did you mean"), std::string::npos);
  EXPECT_EQ(problem([] { Settings<Inner>().read(split_settings("a=1", ',')); }),
            "it has no settings, and 'a' was given");
}

TEST(Settings, WhatIsNoSettingIsRefused) {
  EXPECT_EQ(problem_with("k=1,k=2"), "k is given twice");
  EXPECT_EQ(problem_with("k=1,k=1"), "k is given twice");
  for (const char* text : {"", ",", "k=1,", ",k=1", "k=1,,trim=0", "=1", "k"}) {
    EXPECT_NE(problem_with(text).find("is not a setting; write key=value"), std::string::npos)
        << text;
  }
}

TEST(Settings, OneMayBeNeededAndStandWithoutItsKey) {
  Settings<Options> settings;
  settings.share("share", &Options::share, "of the rows").needed().bare();
  settings.flag("trim", &Options::trim, "whether");
  EXPECT_EQ(settings.read(split_settings("0.5,trim=0", ',')).share, 0.5);
  EXPECT_EQ(settings.read(split_settings("share=0.5", ',')).share, 0.5);
  EXPECT_EQ(settings.info()[0].initial, "");
  EXPECT_EQ(problem([&] { settings.read({}); }),
            "share is missing; it must be above 0 and at most 1");
  EXPECT_EQ(problem([&] { settings.read(split_settings("0.5,share=0.5", ',')); }),
            "share is given twice");
  // Also where it is part of another struct.
  Settings<std::pair<Options, int>> outer;
  outer.include(settings, &std::pair<Options, int>::first);
  EXPECT_EQ(outer.read(split_settings("0.5", ',')).first.share, 0.5);
  EXPECT_NE(problem([&] { outer.read({}); }), "");
}

TEST(Settings, HostileTextsAreRefusedInOneShortLine) {
  KINORA_FRESH_RANDOM(random);
  for (int round = 0; round < 200; ++round) {
    std::string text(10'000, ' ');
    const bool wild = random.below(2) == 0;
    const std::string_view usual = "k=1,;:+-.0\n";
    for (char& c : text) {
      c = wild ? static_cast<char>(random.below(256))
               : usual[static_cast<size_t>(random.below(static_cast<int64_t>(usual.size())))];
    }
    EXPECT_NE(problem_with(text), "");
    problem_with("k=" + text);
    problem_with(text + "=1");
    problem_with("table=" + text);
  }
  std::string many;
  for (int i = 0; i < 3000; ++i) many += "k=1,";
  EXPECT_EQ(problem_with(many + "k=1"), "k is given twice");
}

TEST(Names, AreListedAndSuggested) {
  const std::vector<std::string> names{"dense", "momo", "a-shape", "mminference"};
  EXPECT_EQ(list_names(names), "dense, momo, a-shape and mminference");
  EXPECT_EQ(list_names(std::span(names).first(2), "or"), "dense or momo");
  EXPECT_EQ(list_names(std::span(names).first(1)), "dense");
  EXPECT_EQ(nearest_name("mommo", names), "momo");
  EXPECT_EQ(nearest_name("MOMO", names), "momo");
  EXPECT_EQ(nearest_name("ashape", names), "a-shape");
  EXPECT_EQ(nearest_name("snede", names), "");
  EXPECT_EQ(nearest_name("mminf", names), "mminference");
  EXPECT_EQ(nearest_name("", names), "");
  EXPECT_EQ(nearest_name(std::string(10'000, 'm'), names), "");
  EXPECT_EQ(suggest_name("x", std::span(names).first(1)), "there is dense");
}

TEST(Names, AreQuotedOnOneLine) {
  EXPECT_EQ(in_quotes("momo"), "'momo'");
  EXPECT_EQ(in_quotes("a\nb\tc\x7f"), "'a?b?c?'");
  EXPECT_EQ(in_quotes(""), "''");
  const std::string cut = in_quotes(std::string(59, 'x') + "…" + std::string(100, 'y'));
  EXPECT_EQ(cut, "'" + std::string(59, 'x') + "…'");  // not in the middle of the dots
  EXPECT_LT(in_quotes(std::string(10'000, 'x')).size(), 70u);
}

}  // namespace
}  // namespace kinora
