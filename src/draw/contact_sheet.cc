#include "draw/contact_sheet.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "draw/text.h"

namespace kinora {

int64_t ContactSheet::Layout::width() const {
  return int64_t{columns} * (frame_width + spacing) + spacing;
}

int64_t ContactSheet::Layout::height() const {
  return title_height + int64_t{rows} * (frame_height + label_height + spacing) + spacing;
}

ContactSheet::Layout ContactSheet::plan(int64_t frames, int frame_width, int frame_height,
                                        bool title, const ContactSheetOptions& options) {
  if (frames < 1 || frame_width < 1 || frame_height < 1)
    throw Error(ErrorKind::usage, "a contact sheet needs at least one frame");
  if (frames > 1 << 20)
    throw Error(ErrorKind::resource, "a contact sheet of " + std::to_string(frames) +
                                         " frames is too large; sample fewer");
  Layout layout{};
  layout.frame_width = frame_width;
  layout.frame_height = frame_height;
  layout.spacing = options.spacing;
  const double size = std::clamp(frame_width / 16.0, 10.0, 24.0);
  layout.label.size = std::round(options.text_size > 0 ? options.text_size : size);
  layout.title = {std::round(1.2 * layout.label.size), true};
  layout.label_height = text_height(layout.label) + 2;
  layout.title_height = title ? options.spacing + text_height(layout.title) : 0;
  const double cell_width = frame_width + layout.spacing;
  const double cell_height = frame_height + layout.label_height + layout.spacing;
  const auto count = static_cast<double>(frames);
  const auto chosen =
      static_cast<int64_t>(std::lround(std::sqrt(count * 4 / 3 * cell_height / cell_width)));
  layout.columns = static_cast<int>(
      std::clamp<int64_t>(options.columns > 0 ? options.columns : chosen, 1, frames));
  layout.rows = static_cast<int>((frames + layout.columns - 1) / layout.columns);
  return layout;
}

Image ContactSheet::empty_sheet(const Layout& layout, Colour background) {
  constexpr int64_t beyond = 1 << 30;  // refused by Image with a message
  return Image(static_cast<int>(std::min(layout.width(), beyond)),
               static_cast<int>(std::min(layout.height(), beyond)), background);
}

ContactSheet::ContactSheet(int64_t frames, int frame_width, int frame_height,
                           std::string_view title, const ContactSheetOptions& options)
    : layout_(plan(frames, frame_width, frame_height, !title.empty(), options)),
      options_(options),
      image_(empty_sheet(layout_, options.background)) {
  const int room = static_cast<int>(layout_.width()) - 2 * layout_.spacing;
  draw_text(image_, layout_.spacing, layout_.spacing, fit_text(title, room, layout_.title),
            options.label, layout_.title);
}

void ContactSheet::add(const uint8_t* rgb, size_t stride, std::string_view label) {
  const int64_t cells = int64_t{layout_.columns} * layout_.rows;
  if (added_ >= cells)
    throw Error(ErrorKind::internal, "more frames than the contact sheet was made for");
  const auto column = static_cast<int>(added_ % layout_.columns);
  const auto row = static_cast<int>(added_ / layout_.columns);
  ++added_;
  const int x = layout_.spacing + column * (layout_.frame_width + layout_.spacing);
  const int y = layout_.title_height + layout_.spacing +
                row * (layout_.frame_height + layout_.label_height + layout_.spacing);
  image_.paste(rgb, layout_.frame_width, layout_.frame_height, stride, x, y);
  draw_text(image_, x, y + layout_.frame_height + 1,
            fit_text(label, layout_.frame_width, layout_.label), options_.label, layout_.label);
}

}  // namespace kinora
