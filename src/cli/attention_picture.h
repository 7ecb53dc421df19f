// The picture of one attention head: where its attention lies, what a policy computes of it, and
// where one modality ends and the next begins.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "attention/search/inspection.h"
#include "base/modality.h"
#include "draw/image.h"

namespace kinora::cli {

// Attention as brightness; cells that the policy leaves out are tinted. Bars along the left
// (queries) and the bottom (keys) show the modality of every token.
Image draw_head(const HeadInspection& picture, std::span<const Modality> modalities, int cell);

// A page with the picture inside, its numbers and a legend; no other file is needed.
std::string head_page(const std::string& title, const std::vector<HeadInspection>& heads,
                      const std::vector<std::string>& pngs, std::span<const Modality> modalities);

Colour modality_colour(Modality modality);

}  // namespace kinora::cli
