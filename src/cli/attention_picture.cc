#include "cli/attention_picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "draw/colours.h"
#include "draw/data_url.h"
#include "draw/markup.h"
#include "draw/text.h"

namespace kinora::cli {
namespace {

constexpr Colour background = {20, 20, 24};
constexpr Colour hidden = {20, 20, 24};
constexpr int bar = 6;      // pixels of a modality bar
constexpr int header = 20;  // pixels of the line of text above
constexpr TextStyle words{11, false};
constexpr double floor_decades = 4;  // brightness spans this many decades of relative density

// Density of a cell relative to even attention of its row, on a logarithmic scale in [0, 1].
double brightness(const PooledMap& map, int query, int key) {
  const double even = 1.0 / (query + 1.0);
  const double density = static_cast<double>(map.at(query, key)) / even;
  if (density <= 0) return 0;
  return std::clamp((std::log10(density) + floor_decades - 1) / floor_decades, 0.0, 1.0);
}

Colour mix(Colour a, Colour b, double share) {
  const auto part = [&](uint8_t x, uint8_t y) {
    return static_cast<uint8_t>(std::lround(x + share * (y - x)));
  };
  return {part(a.red, b.red), part(a.green, b.green), part(a.blue, b.blue)};
}

std::vector<Modality> present(std::span<const Modality> modalities) {
  std::vector<Modality> found;
  for (const Modality modality :
       {Modality::text, Modality::image, Modality::video, Modality::audio}) {
    if (std::find(modalities.begin(), modalities.end(), modality) != modalities.end()) {
      found.push_back(modality);
    }
  }
  return found;
}

}  // namespace

Colour modality_colour(Modality modality) { return series_colour(static_cast<int>(modality)); }

Image draw_head(const HeadInspection& picture, std::span<const Modality> modalities, int cell) {
  const int side = picture.attention.side;
  const int size = side * cell;
  // Two squares: all attention, and what the policy keeps of it.
  const int gap = 8;
  Image image(2 * (bar + size) + 3 * gap, header + size + bar + 2 * gap, background);
  const auto modality_at = [&](int bucket) {
    const size_t at = static_cast<size_t>(bucket) * modalities.size() / static_cast<size_t>(side);
    return modalities[std::min(at, modalities.size() - 1)];
  };
  for (int square = 0; square < 2; ++square) {
    const int left = gap + square * (bar + size + gap) + bar;
    const int top = header + gap;
    for (int query = 0; query < side; ++query) {
      for (int key = 0; key < side; ++key) {
        Colour colour = hidden;
        if (key <= query) {
          colour = heat_colour(brightness(picture.attention, query, key));
          if (square == 1) {
            // What is not computed fades to blue.
            const double kept =
                std::clamp<double>(static_cast<double>(picture.coverage.at(query, key)), 0, 1);
            colour = mix(mix(colour, {30, 50, 110}, 0.8), colour, kept);
          }
        }
        image.fill({left + key * cell, top + query * cell, cell, cell}, colour);
      }
      image.fill({left - bar, top + query * cell, bar - 1, cell},
                 modality_colour(modality_at(query)));
      image.fill({left + query * cell, top + size + 1, cell, bar - 1},
                 modality_colour(modality_at(query)));
    }
  }
  // What is what, in the empty corners: keys after the query.
  const auto corner = [&](int square, int line, std::string_view text, Colour colour) {
    const int right = gap + square * (bar + size + gap) + bar + size;
    draw_text(image, right - text_width(text, words), header + gap + line * 14, text, colour,
              words);
  };
  constexpr Colour pale = {220, 220, 225};
  corner(0, 0, "attention", pale);
  corner(1, 0, "computed", pale);
  int line = 1;
  for (const Modality modality : present(modalities)) {
    corner(0, line++, modality_name(modality), modality_colour(modality));
  }
  const std::string line_above =
      fmt::format("head {}, {}, recall {:.3f}, {:.1f} % of FLOPs", picture.head, picture.pattern,
                  picture.recall, 100 * picture.share);
  draw_text(image, gap, 6, fit_text(line_above, image.width() - 2 * gap, words), pale, words);
  return image;
}

std::string head_page(const std::string& title, const std::vector<HeadInspection>& heads,
                      const std::vector<std::string>& pngs, std::span<const Modality> modalities) {
  std::string page = fmt::format(
      "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{0}</title>\n"
      "<style>body{{background:#141418;color:#dcdce1;font:14px system-ui,sans-serif;margin:2em}}"
      "img{{image-rendering:pixelated;max-width:100%;display:block;margin:.5em 0 2em}}"
      "table{{border-collapse:collapse}}td,th{{padding:.2em .8em;text-align:left}}"
      ".key{{display:inline-block;width:1em;height:1em;margin:0 .4em 0 1em;vertical-align:middle}}"
      "</style></head><body>\n<h1>{0}</h1>\n",
      escape_markup(title));
  page +=
      "<p>Left: where the attention of a query (down) lies among the keys (across), on a "
      "logarithmic scale relative to even attention. Right: the same, with what the policy does "
      "not compute faded to blue. Bars: modality.";
  for (const Modality modality : present(modalities)) {
    const Colour colour = modality_colour(modality);
    page += fmt::format("<span class=\"key\" style=\"background:rgb({},{},{})\"></span>{}",
                        colour.red, colour.green, colour.blue, modality_name(modality));
  }
  page += "</p>\n<table><tr><th>head</th><th>pattern</th><th>recall</th><th>FLOPs</th></tr>\n";
  for (const HeadInspection& head : heads) {
    page += fmt::format("<tr><td>{}</td><td>{}</td><td>{:.4f}</td><td>{:.1f} %</td></tr>\n",
                        head.head, escape_markup(head.pattern), head.recall, 100 * head.share);
  }
  page += "</table>\n";
  for (const std::string& png : pngs) {
    page += fmt::format("<img alt=\"attention map\" src=\"{}\">\n", png_data_url(png));
  }
  return page + "</body></html>\n";
}

}  // namespace kinora::cli
