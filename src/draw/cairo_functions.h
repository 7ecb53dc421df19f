// Cairo's functions, found when the first text is drawn: most commands draw none, and Cairo brings
// a dozen libraries along. A function that is missing here is an undefined reference: add it.
#pragma once

#include <cairo.h>

#include <memory>

#include "base/system/late_function.h"

namespace kinora {

// Throws unsupported where Cairo is not installed.
void* find_cairo(const char* function);

// A name can only be repeated by a macro.
#define KINORA_CAIRO(name) \
  inline constinit const decltype(late_like(&::name)) name { &find_cairo, #name }

KINORA_CAIRO(cairo_create);
KINORA_CAIRO(cairo_destroy);
KINORA_CAIRO(cairo_font_extents);
KINORA_CAIRO(cairo_image_surface_create);
KINORA_CAIRO(cairo_image_surface_get_data);
KINORA_CAIRO(cairo_image_surface_get_stride);
KINORA_CAIRO(cairo_move_to);
KINORA_CAIRO(cairo_select_font_face);
KINORA_CAIRO(cairo_set_font_size);
KINORA_CAIRO(cairo_set_source_rgba);
KINORA_CAIRO(cairo_show_text);
KINORA_CAIRO(cairo_status);
KINORA_CAIRO(cairo_surface_destroy);
KINORA_CAIRO(cairo_surface_flush);
KINORA_CAIRO(cairo_text_extents);

#undef KINORA_CAIRO

struct CairoDeleter {
  void operator()(cairo_t* context) const { cairo_destroy(context); }
  void operator()(cairo_surface_t* surface) const { cairo_surface_destroy(surface); }
};
using CairoPtr = std::unique_ptr<cairo_t, CairoDeleter>;
using SurfacePtr = std::unique_ptr<cairo_surface_t, CairoDeleter>;

}  // namespace kinora
