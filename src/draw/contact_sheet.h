// Many frames on one picture, each with a label below: what `kinora frames --contact-sheet` writes.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "draw/image.h"
#include "draw/text.h"

namespace kinora {

struct ContactSheetOptions {
  int columns = 0;       // 0: chosen so that the sheet is about 4 : 3
  int spacing = 6;       // pixels between frames and around them
  double text_size = 0;  // 0: by the frame's width
  Colour background = {24, 24, 28};
  Colour label = {220, 220, 225};
};

// Frames are added one after the other, so that only the sheet itself is in memory.
class ContactSheet {
 public:
  // All frames have the same size. Throws a usage error when there is nothing to show and a
  // resource error when the sheet would be too large.
  ContactSheet(int64_t frames, int frame_width, int frame_height, std::string_view title,
               const ContactSheetOptions& options = {});

  // Packed RGB of the frame size. A label that is too long is cut.
  void add(const uint8_t* rgb, size_t stride, std::string_view label);

  const Image& image() const { return image_; }
  int columns() const { return layout_.columns; }
  int rows() const { return layout_.rows; }

 private:
  struct Layout {
    int frame_width, frame_height;
    int columns, rows;
    int spacing;
    TextStyle label;
    TextStyle title;
    int title_height;  // with the spacing above it
    int label_height;

    int64_t width() const;
    int64_t height() const;
  };
  static Layout plan(int64_t frames, int frame_width, int frame_height, bool title,
                     const ContactSheetOptions& options);
  static Image empty_sheet(const Layout& layout, Colour background);

  Layout layout_;
  ContactSheetOptions options_;
  Image image_;
  int64_t added_ = 0;
};

}  // namespace kinora
